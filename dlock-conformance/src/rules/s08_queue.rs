//! §8, the rules about the order of grants.

use super::prelude::*;
use super::s02_extremes::endurance;

rules! {
    first_come_first_served, a_long_line_keeps_its_order, a_try_does_not_overtake,
    a_live_waiter_keeps_its_place, the_most_urgent_is_next, the_least_urgent_is_served,
}

/// The waiters of one name, and the order in which they were granted.
pub(super) struct Line {
    cx: Cx,
    name: LockName,
    granted: Arc<Mutex<Vec<usize>>>,
    waits: Vec<Task<Verdict>>,
}

impl Line {
    pub(super) fn new(cx: &Cx, name: LockName) -> Self {
        Self {
            cx: cx.clone(),
            name,
            granted: Arc::default(),
            waits: Vec::new(),
        }
    }

    /// A line behind a holder.
    async fn behind(
        holder: &dyn Subject,
        cx: &Cx,
        name: LockName,
        ask: &Ask,
    ) -> Verdict<(Self, Box<dyn Held>)> {
        let held = holder.takes(&name, ask, "the holder acquires").await?;
        Ok((Self::new(cx, name), held))
    }

    /// One more waiter arrives, and is seen to wait.
    async fn add(&mut self, client: &Client, ask: &Ask, observer: &dyn Subject) -> Verdict {
        self.join(client, ask);
        self.until_waiting(observer, self.waits.len()).await
    }

    /// The holder releases, before which no waiter may have been granted.
    async fn begin(&self, held: Box<dyn Held>) -> Verdict {
        let passed = self.order();
        ensure!(
            passed.is_empty(),
            "the waiters {passed:?} were granted beside the holder"
        );
        held.released("the holder releases").await
    }

    /// The holder releases, and all of them get their turn: the order.
    async fn serve(mut self, held: Box<dyn Held>) -> Verdict<Vec<usize>> {
        self.begin(held).await?;
        self.drain().await?;
        Ok(self.order())
    }

    /// A waiter in a task, which holds for a moment and releases.
    fn join(&mut self, client: &Client, ask: &Ask) {
        let (cx, client, name, ask) = (self.cx.clone(), client.clone(), self.name.clone(), ask.clone());
        let (granted, number) = (self.granted.clone(), self.waits.len());
        self.waits.push(self.cx.spawn(async move {
            let held = client.takes(&name, &ask, format!("waiter {number}")).await?;
            lock(&granted).push(number);
            cx.sleep(ms(2)).await;
            held.released(format!("waiter {number} releases")).await
        }));
    }

    /// The grants so far.
    fn order(&self) -> Vec<usize> {
        lock(&self.granted).clone()
    }

    /// Returns when the store shows that many waiters, or after enough time for a request to arrive.
    pub(super) async fn until_waiting(&self, client: &dyn Subject, number: usize) -> Verdict {
        let look = client.observe().filter(|_| self.cx.has(Need::Inspect));
        let Some(look) = look else {
            self.cx.sleep(ms(100)).await;
            return Ok(());
        };
        let by = self.cx.now() + self.cx.claims().op_bound * 4;
        loop {
            let seen = look.inspect(&self.name).await.seen("inspecting the waiters")?;
            if seen.waiting as usize >= number {
                return Ok(());
            }
            if self.cx.now() >= by {
                inconclusive!(
                    "{number} clients wait for `{}`, and the store shows {} of them",
                    self.name,
                    seen.waiting
                );
            }
            self.cx.sleep(ms(1)).await;
        }
    }

    /// Waits for all of them.
    async fn drain(&mut self) -> Verdict {
        let bound = self.cx.claims().wake_p99 + self.cx.slack() * 2;
        for waiting in self.waits.drain(..) {
            let what = "the next waiter, after a release";
            self.cx.within(bound, what, waiting).await??;
        }
        Ok(())
    }
}

/// They arrived in the order of their numbers.
fn in_order(order: &[usize], when: impl std::fmt::Display) -> Verdict {
    ensure!(
        order.is_sorted(),
        "{when}the waiters were granted in the order {order:?}, but arrived in the order of their numbers"
    );
    Ok(())
}

rule! { "8.04" Must phase 2 [Lock, Wait, Fair] Both A D first_come_first_served,
    evidence ["hand_overs" >= 16], bug "lifo_queue"
    "Waiters are granted in the order of their arrival."
    why "A queue is claimed for its order. Without it a waiter has no bound on how many others pass it."
    check "At which end do new waiters enter, and by what are they sorted?"
}
async fn first_come_first_served(cx: Cx) -> Verdict {
    let (holder, clients) = (cx.connect().await?, cx.clients(3).await?);
    for round in 0..cx.rounds(2, 30) {
        granted_in_order(&cx, &*holder, &clients, cx.name(round), 8).await?;
    }
    Ok(())
}

/// Waiters arrive one after the other, and must be granted in that order.
async fn granted_in_order(
    cx: &Cx,
    holder: &dyn Subject,
    clients: &[Client],
    name: LockName,
    waiters: usize,
) -> Verdict {
    let ask = cx.ask();
    let (mut line, held) = Line::behind(holder, cx, name, &ask).await?;
    // Some waiters share a client: they must not overtake each other either.
    for client in clients.iter().cycle().take(waiters) {
        line.add(client, &ask, holder).await?;
    }
    let order = line.serve(held).await?;
    in_order(&order, "")?;
    cx.evidence_by("hand_overs", order.len() as u64);
    Ok(())
}

rule! { "8.13" Must phase 2 [Lock, Wait, Fair] Both A D a_long_line_keeps_its_order,
    evidence ["hand_overs" >= 28], bug "long_line_overtaken"
    "A new waiter enters a queue of twenty or more at its end."
    why "If the queue is read, sorted or kept only up to some length, it works with three waiters. With \
        many, newcomers overtake."
    check "Is there a limit to how much of the queue is read, sorted or kept?"
}
async fn a_long_line_keeps_its_order(cx: Cx) -> Verdict {
    let (holder, clients) = (cx.connect().await?, cx.clients(4).await?);
    granted_in_order(&cx, &*holder, &clients, cx.name("long"), 28).await
}

rule! { "8.05" Must phase 2 [Lock, Try, Wait, Fair] Both A D a_try_does_not_overtake,
    evidence ["tries" >= 12], bug "barging_try"
    "A try, or a wait that begins later, is not granted before the earlier waiters, even if it is compatible \
        with the current holders."
    why "Under a steady stream of readers that overtake it, a queued writer never gets its turn."
    check "Does the fast path check the queue, or only the holders?"
}
async fn a_try_does_not_overtake(cx: Cx) -> Verdict {
    tries_during_hand_overs(&cx).await?;
    if cx.has(Need::Shared) {
        readers_behind_a_writer(&cx).await?;
    }
    Ok(())
}

/// The name changes hands while a client tries all the time.
async fn tries_during_hand_overs(cx: &Cx) -> Verdict {
    let (holder, waiter, other) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    let (mut line, held) = Line::behind(&*holder, cx, cx.name("exclusive"), &ask).await?;
    let all = 6;
    for _ in 0..all {
        line.add(&waiter, &ask, &*holder).await?;
    }
    let trying = async {
        loop {
            let granted = other.try_acquire(&line.name, &ask).await.seen("another tries")?;
            cx.evidence("tries");
            if let Some(granted) = granted {
                // Legal once the last waiter has had its turn.
                let served = line.order().len();
                ensure!(served == all, "a try was granted after {served} of {all} waiters");
                return granted.release().await.seen("it releases");
            }
            cx.sleep(Duration::from_micros(300)).await;
        }
    };
    let serving = async {
        cx.sleep(ms(2)).await;
        held.release().await.seen("the holder releases")
    };
    let bound = (cx.claims().wake_p99 + cx.slack()) * 6 + cx.claims().op_bound;
    let both = async { futures::try_join!(trying, serving) };
    cx.within(bound, "granting the queue, and then a try", both)
        .await??;
    line.drain().await
}

/// A try that is compatible with the holders, but not with the waiter.
async fn readers_behind_a_writer(cx: &Cx) -> Verdict {
    let (reader, writer, other) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    for round in 0..cx.rounds(2, 20) {
        let (name, ask) = (cx.name(format_args!("shared-{round}")), cx.ask().reader());
        let (mut line, held) = Line::behind(&*reader, cx, name, &ask).await?;
        line.add(&writer, &cx.ask(), &*reader).await?;
        for _ in 0..3 {
            let when = "a writer waits for the first reader, and another reader tries";
            other.is_refused(&line.name, &ask, when).await?;
            cx.evidence("tries");
        }
        let limit = ms(15);
        let when = "a later reader waits behind the waiting writer";
        cx.expect_timeout(&*other, &line.name, &ask, limit, when).await?;
        cx.evidence("tries");
        held.release().await.seen("the reader releases")?;
        line.drain().await?;
    }
    Ok(())
}

rule! { "8.07" Must phase 2 [Lock, Wait, Fair] Both A T a_live_waiter_keeps_its_place,
    evidence ["kept_places" >= 5], bug "live_waiter_evicted", budget 120 s
    "A live waiter keeps its place in the queue however long it waits."
    why "If entries are dropped after a fixed time, the longest waiter goes back to the end, again and again \
        (Redisson 3004)."
    check "What keeps a queue entry alive, and does that continue for as long as the waiter waits?"
}
async fn a_live_waiter_keeps_its_place(cx: Cx) -> Verdict {
    let (holder, client) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("waited-for-long");
    let (mut line, held) = Line::behind(&*holder, &cx, name, &cx.ask()).await?;
    // A short ttl: what keeps a place in the queue alive is often as long as that.
    let ask = cx.ask().ttl(cx.short_ttl());
    let from = cx.now();
    // Uneven: a waiter that is dropped after a fixed time, and comes back, changes the order at any time.
    for percent in [0, 37, 61, 113, 149] {
        cx.sleep_until(from + ask.ttl * percent / 100).await;
        line.add(&client, &ask, &*holder).await?;
    }
    let long = match cx.is_virtual() {
        true => (ask.ttl * 5).max(endurance(&cx)),
        false => ask.ttl * 5,
    };
    cx.sleep_until(from + long).await;
    let order = line.serve(held).await?;
    in_order(&order, format_args!("after {long:?} of waiting "))?;
    cx.note(format_args!("waited for {long:?}, {:?} each", ask.ttl));
    cx.evidence_by("kept_places", order.len() as u64);
    Ok(())
}

rule! { "8.08" Must phase 2 [Lock, Wait, Fair, Priority] Both A D the_most_urgent_is_next,
    evidence ["hand_overs" >= 24], bug "prio_ignored"
    "The waiter with the highest priority is granted next. Among equal priorities it is the one that came \
        first."
    why "If a priority is accepted but not applied, an urgent repair waits behind a hundred nightly jobs."
    check "Is the queue sorted by priority first and by arrival second?"
}
async fn the_most_urgent_is_next(cx: Cx) -> Verdict {
    let holder = cx.connect().await?;
    let clients = [cx.connect().await?, cx.connect().await?];
    let mut rng = cx.rng();
    for name in cx.names(3, 30) {
        let (mut line, held) = Line::behind(&*holder, &cx, name, &cx.ask()).await?;
        let mut priorities = [5, 1, 10, 5, 10, 7, 1, 5];
        rng.shuffle(&mut priorities);
        for (client, priority) in clients.iter().cycle().zip(priorities) {
            line.add(client, &cx.ask().priority(priority), &*holder).await?;
        }
        let order = line.serve(held).await?;
        let mut due: Vec<usize> = (0..priorities.len()).collect();
        // A stable sort: within one priority by arrival.
        due.sort_by_key(|n| std::cmp::Reverse(priorities[*n]));
        ensure!(
            order == due,
            "waiters with the priorities {priorities:?} were granted in the order {order:?} instead of \
                {due:?}"
        );
        cx.evidence_by("hand_overs", order.len() as u64);
    }
    match cx.has(Need::Shared) {
        true => urgent_readers_are_next(&cx, &*holder, &clients).await,
        false => Ok(()),
    }
}

/// Whether they read or write. No two readers are adjacent, because they would be granted together.
async fn urgent_readers_are_next(cx: &Cx, holder: &dyn Subject, clients: &[Client; 2]) -> Verdict {
    let name = cx.name("readers-and-writers");
    let (mut line, held) = Line::behind(holder, cx, name, &cx.ask()).await?;
    let asks = [(false, 5), (true, 9), (true, 2), (false, 7), (false, 3)];
    for (client, (reads, priority)) in clients.iter().cycle().zip(asks) {
        let ask = cx.ask().priority(priority);
        let ask = if reads { ask.reader() } else { ask };
        line.add(client, &ask, holder).await?;
    }
    let (order, due) = (line.serve(held).await?, [1, 3, 0, 4, 2]);
    ensure!(
        order == due,
        "waiters (whether they read, and their priority) {asks:?} were granted in the order {order:?} \
            instead of {due:?}"
    );
    Ok(())
}

rule! { "8.09" Should phase 3 [Lock, Wait, Fair, Priority] Both A X the_least_urgent_is_served,
    evidence ["served" >= 2, "overtaken" >= 6], bug "prio_starves"
    "The waiter with the lowest priority is granted within the claimed ageing bound. With strict priorities, \
        it is granted as soon as no waiter with a higher one is left."
    why "It is easy to forget a waiter that everyone may overtake: the lock is free, and the last waiter is \
        never woken."
    check "Does the end of a hold with a higher priority check the whole queue, however that hold ends?"
}
async fn the_least_urgent_is_served(cx: Cx) -> Verdict {
    const LOW: usize = 0;
    let (holder, low) = (cx.connect().await?, cx.connect().await?);
    let urgent = cx.ask().priority(9);
    for name in cx.names(2, 10) {
        let (mut line, held) = Line::behind(&*holder, &cx, name, &cx.ask()).await?;
        let from = cx.now();
        line.add(&low, &cx.ask().priority(1), &*holder).await?;
        for _ in 0..6 {
            line.add(&holder, &urgent, &*holder).await?;
        }
        line.begin(held).await?;
        if let Some(bound) = cx.claims().ageing {
            // As many more as it takes.
            let end = from + bound + cx.slack();
            while cx.now() < end && !line.order().contains(&LOW) {
                line.join(&holder, &urgent);
                cx.sleep(ms(1)).await;
            }
            ensure!(
                line.order().contains(&LOW),
                "the waiter with the lowest priority was not granted within {bound:?}, the claimed bound"
            );
        }
        // If priorities are strict, it is granted when all the others have been: it is waited for last.
        line.waits.rotate_left(1);
        line.drain().await?;
        let overtaken = line.order().iter().position(|n| *n == LOW).unwrap_or(0);
        cx.evidence_by("overtaken", overtaken as u64);
        cx.evidence("served");
    }
    Ok(())
}
