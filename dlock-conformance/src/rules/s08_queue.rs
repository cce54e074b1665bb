//! §8, the rules about the order of grants.

use std::sync::Mutex;

use super::prelude::*;
use super::s02_extremes::endurance;
use crate::task::Task;

rules! {
    first_come_first_served, a_long_line_keeps_its_order, a_try_does_not_overtake,
    a_live_waiter_keeps_its_place, the_most_urgent_is_next, the_least_urgent_is_served,
}

/// The waiters of one name, and the order in which they were granted.
pub(super) struct Line {
    cx: Cx,
    name: LockName,
    granted: Arc<Mutex<Vec<usize>>>,
}

impl Line {
    pub(super) fn new(cx: &Cx, name: LockName) -> Self {
        Self {
            cx: cx.clone(),
            name,
            granted: Arc::default(),
        }
    }

    /// A waiter in a task, which holds for a moment and releases.
    pub(super) fn join(&self, client: &Arc<dyn Subject>, ask: &Ask, number: usize) -> Task<Verdict> {
        let (cx, client, name, ask) = (self.cx.clone(), client.clone(), self.name.clone(), ask.clone());
        let granted = self.granted.clone();
        self.cx.spawn(async move {
            let held = client.acquire(&name, &ask).await;
            let held = held.seen(format_args!("waiter {number}"))?;
            lock(&granted).push(number);
            cx.sleep(ms(2)).await;
            let released = held.release().await;
            released.seen(format_args!("waiter {number} releases"))
        })
    }

    /// No waiter is granted before the holder releases.
    fn nobody_passed(&self) -> Verdict {
        let passed = self.order();
        ensure!(
            passed.is_empty(),
            "the waiters {passed:?} were granted beside the holder"
        );
        Ok(())
    }

    /// The grants so far.
    pub(super) fn order(&self) -> Vec<usize> {
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
    pub(super) async fn drain(&self, waits: Vec<Task<Verdict>>) -> Verdict {
        let bound = self.cx.claims().wake_p99 + self.cx.slack() * 2;
        for waiting in waits {
            let what = "the next waiter, after a release";
            self.cx.within(bound, what, waiting).await??;
        }
        Ok(())
    }
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
    clients: &[Arc<dyn Subject>],
    name: LockName,
    waiters: usize,
) -> Verdict {
    let (line, ask) = (Line::new(cx, name), cx.ask());
    let held = holder.acquire(&line.name, &ask).await;
    let held = held.seen("the holder acquires")?;
    let mut waits = Vec::new();
    for number in 0..waiters {
        // Some waiters share a client: they must not overtake each other either.
        waits.push(line.join(&clients[number % clients.len()], &ask, number));
        line.until_waiting(holder, number + 1).await?;
    }
    line.nobody_passed()?;
    held.release().await.seen("the holder releases")?;
    line.drain(waits).await?;
    let order = line.order();
    ensure!(
        order.is_sorted(),
        "the waiters were granted in the order {order:?}, but arrived in the order of their numbers"
    );
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
    let line = Line::new(cx, cx.name("exclusive"));
    let held = holder.acquire(&line.name, &ask).await;
    let held = held.seen("the holder acquires")?;
    let mut waits = Vec::new();
    for number in 0..6 {
        waits.push(line.join(&waiter, &ask, number));
        line.until_waiting(&*holder, number + 1).await?;
    }
    let all = waits.len();
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
    line.drain(waits).await
}

/// A try that is compatible with the holders, but not with the waiter.
async fn readers_behind_a_writer(cx: &Cx) -> Verdict {
    let (reader, writer, other) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    for round in 0..cx.rounds(2, 20) {
        let line = Line::new(cx, cx.name(format_args!("shared-{round}")));
        let held = reader.acquire(&line.name, &cx.ask().reader()).await;
        let held = held.seen("a reader acquires")?;
        let waits = vec![line.join(&writer, &cx.ask(), 0)];
        line.until_waiting(&*reader, 1).await?;
        let ask = cx.ask().reader();
        for _ in 0..3 {
            let granted = other.try_acquire(&line.name, &ask).await;
            let granted = granted.seen("another reader tries")?;
            ensure!(
                granted.is_none(),
                "a reader's try was granted while a writer waits for the first reader"
            );
            cx.evidence("tries");
        }
        let limit = ms(15);
        let when = "a later reader waits behind the waiting writer";
        cx.expect_timeout(&*other, &line.name, &ask, limit, when).await?;
        cx.evidence("tries");
        held.release().await.seen("the reader releases")?;
        line.drain(waits).await?;
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
    let holder = cx.connect().await?;
    let client = cx.connect().await?;
    let line = Line::new(&cx, cx.name("waited-for-long"));
    let held = holder.acquire(&line.name, &cx.ask()).await;
    let held = held.seen("the holder acquires")?;
    // A short ttl: what keeps a place in the queue alive is often as long as that.
    let ask = cx.ask().ttl(cx.short_ttl());
    let from = cx.now();
    let mut waits = Vec::new();
    // Uneven, so that a waiter that is dropped after a fixed time, and comes back, changes the order at any
    // time.
    for (number, percent) in [0, 37, 61, 113, 149].into_iter().enumerate() {
        cx.sleep_until(from + ask.ttl * percent / 100).await;
        waits.push(line.join(&client, &ask, number));
        line.until_waiting(&*holder, number + 1).await?;
    }
    let long = ask.ttl * 5;
    let long = if cx.is_virtual() {
        long.max(endurance(&cx))
    } else {
        long
    };
    cx.sleep_until(from + long).await;
    line.nobody_passed()?;
    held.release().await.seen("the holder releases")?;
    line.drain(waits).await?;
    let order = line.order();
    ensure!(
        order.is_sorted(),
        "after {long:?} of waiting the waiters were granted in the order {order:?}, but arrived in the order \
            of their numbers"
    );
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
    for round in 0..cx.rounds(3, 30) {
        let line = Line::new(&cx, cx.name(round));
        let held = holder.acquire(&line.name, &cx.ask()).await;
        let held = held.seen("the holder acquires")?;
        let mut priorities = [5, 1, 10, 5, 10, 7, 1, 5];
        rng.shuffle(&mut priorities);
        let mut waits = Vec::new();
        for (number, priority) in priorities.into_iter().enumerate() {
            let ask = cx.ask().priority(priority);
            waits.push(line.join(&clients[number % 2], &ask, number));
            line.until_waiting(&*holder, number + 1).await?;
        }
        line.nobody_passed()?;
        held.release().await.seen("the holder releases")?;
        line.drain(waits).await?;
        let order = line.order();
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

/// Whether they read or write. In the due order no two readers are adjacent, because they would be granted
/// together.
async fn urgent_readers_are_next(cx: &Cx, holder: &dyn Subject, clients: &[Arc<dyn Subject>; 2]) -> Verdict {
    let line = Line::new(cx, cx.name("readers-and-writers"));
    let held = holder.acquire(&line.name, &cx.ask()).await;
    let held = held.seen("the holder acquires")?;
    let mut waits = Vec::new();
    let asks = [(false, 5), (true, 9), (true, 2), (false, 7), (false, 3)];
    for (number, (reads, priority)) in asks.into_iter().enumerate() {
        let ask = cx.ask().priority(priority);
        let ask = if reads { ask.reader() } else { ask };
        waits.push(line.join(&clients[number % 2], &ask, number));
        line.until_waiting(holder, number + 1).await?;
    }
    held.release().await.seen("the holder releases")?;
    line.drain(waits).await?;
    let (order, due) = (line.order(), [1, 3, 0, 4, 2]);
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
    let (holder, low) = (cx.connect().await?, cx.connect().await?);
    let ageing = cx.claims().ageing;
    for round in 0..cx.rounds(2, 10) {
        let line = Line::new(&cx, cx.name(round));
        let held = holder.acquire(&line.name, &cx.ask()).await;
        let held = held.seen("the holder acquires")?;
        const LOW: usize = 0;
        let waiting = line.join(&low, &cx.ask().priority(1), LOW);
        let from = cx.now();
        line.until_waiting(&*holder, 1).await?;
        let mut storm = Vec::new();
        for number in 1..=6 {
            storm.push(line.join(&holder, &cx.ask().priority(9), number));
            line.until_waiting(&*holder, number + 1).await?;
        }
        line.nobody_passed()?;
        held.release().await.seen("the holder releases")?;
        match ageing {
            // Strict: it is granted when all the others have been.
            None => line.drain(storm).await?,
            // As many more as it takes.
            Some(bound) => {
                let end = from + bound + cx.slack();
                while cx.now() < end && !line.order().contains(&LOW) {
                    let next = storm.len() + 1;
                    storm.push(line.join(&holder, &cx.ask().priority(9), next));
                    cx.sleep(ms(1)).await;
                }
                ensure!(
                    line.order().contains(&LOW),
                    "the waiter with the lowest priority was not granted within {bound:?}, the claimed bound"
                );
                line.drain(storm).await?;
            }
        }
        line.drain(vec![waiting]).await?;
        let overtaken = line.order().iter().position(|n| *n == LOW).unwrap_or(0);
        cx.evidence_by("overtaken", overtaken as u64);
        cx.evidence("served");
    }
    Ok(())
}
