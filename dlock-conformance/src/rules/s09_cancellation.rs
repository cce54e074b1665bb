//! §9 Cancellation and async contract: what a dropped operation leaves behind.

use futures::channel::oneshot;
use futures::pin_mut;

use super::prelude::*;
use crate::sweep::{Cut, Sweep, Waking};

rules! {
    cancelled_acquire_leaves_nothing, cancelled_acquire_is_undone_promptly, cancelled_release_still_ends_it,
    cancelled_renewal_promises_nothing, client_is_sane_after_a_drop,
}

/// The operations that are swept.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Try,
    Acquire,
    Timed,
    /// An acquire that waits for a holder.
    Waiting,
}

const KINDS: [Kind; 4] = [Kind::Try, Kind::Acquire, Kind::Timed, Kind::Waiting];

/// After that many polls an operation that still has not completed is given up.
const MOST_POLLS: usize = 200;

/// Counts a sweep of that operation, and says how much of it there was to cut.
///
/// One that completes at its first poll cannot be cut: the only evidence is that its sweep completed.
fn swept(cx: &Cx, sweep: &Sweep, what: &str) -> Verdict {
    let cuts = sweep.cut_points();
    if !sweep.is_complete() {
        inconclusive!(
            "{what}: not complete after {MOST_POLLS} polls; {cuts} points were cut, the rest was not seen"
        );
    }
    cx.evidence("sweeps_completed");
    cx.evidence_by("cut_while_pending", cuts as u64);
    cx.note(format_args!(
        "{what}: {cuts} cut points, complete at poll {}",
        cuts + 1
    ));
    Ok(())
}

/// Who takes part in a sweep: `a` drops, `b` holds and probes.
struct Stage {
    cx: Cx,
    a: Client,
    b: Client,
    ask: Ask,
    rng: Rng,
}

impl Stage {
    async fn new(cx: &Cx, ask: Ask) -> Verdict<Self> {
        Ok(Self {
            a: cx.connect().await?,
            b: cx.connect().await?,
            ask,
            rng: cx.rng(),
            cx: cx.clone(),
        })
    }

    /// One operation of that kind, cut by the sweep. `None` when the sweep is over.
    async fn cut(&mut self, sweep: &mut Sweep, kind: Kind, name: &LockName) -> Verdict<Option<Cut<()>>> {
        let (cx, a, ask) = (&self.cx, &self.a, &self.ask);
        // The holder releases only after the wait has begun, so that there is a wait to cut.
        let (begun, begins) = oneshot::channel::<()>();
        let blocking = match kind {
            Kind::Waiting => {
                let held = self.b.acquire(name, &cx.ask()).await.seen("B acquires")?;
                let pause = self.rng.duration(ms(1), ms(8));
                let task = cx.clone();
                Some(cx.spawn(async move {
                    // Or it was dropped before its first poll.
                    let _ = begins.await;
                    task.sleep(pause).await;
                    held.release().await
                }))
            }
            _ => None,
        };
        let cut = sweep
            .next(async move {
                drop(begun);
                match kind {
                    Kind::Try => a.try_acquire(name, ask).await,
                    Kind::Acquire | Kind::Waiting => a.acquire(name, ask).await.map(Some),
                    Kind::Timed => a.acquire_timeout(name, ask, cx.long_ttl()).await.map(Some),
                }
            })
            .await;
        if let Some(task) = blocking {
            task.await.seen("B releases")?;
        }
        let done = match cut {
            None => return Ok(None),
            Some(Cut::Dropped) => return Ok(Some(Cut::Dropped)),
            Some(Cut::Completed(done)) => done,
        };
        let granted = done.seen(format_args!("{kind:?}: A acquires"))?;
        match granted {
            Some(held) => held.release().await.seen("A releases")?,
            None => fail!("{kind:?}: A's try of a free name was refused"),
        }
        Ok(Some(Cut::Completed(())))
    }

    /// Drops a waiting acquire, without another poll, while the release that will grant it is in flight.
    async fn drop_with_a_grant_on_its_way(&mut self, name: &LockName) -> Verdict {
        let cx = &self.cx;
        let held = self.b.acquire(name, &cx.ask()).await.seen("B acquires")?;
        let waiting = self.a.acquire(name, &self.ask);
        pin_mut!(waiting);
        if cx.timeout(ms(10), &mut waiting).await.is_some() {
            fail!("A was granted a name that B holds");
        }
        held.release().await.seen("B releases")?;
        cx.sleep(self.rng.duration(Duration::ZERO, ms(4))).await;
        cx.evidence("dropped_with_a_grant_on_its_way");
        // Dropped at the end of this function: granted, or about to be, and it has not seen that.
        Ok(())
    }

    /// What is left behind by the `n`-th drop.
    async fn look(&self, name: &LockName, n: usize, bound: Option<Duration>, when: String) -> Verdict {
        match bound {
            Some(bound) => self.is_free(name, bound, n % 2 == 1, when).await,
            None => ten_operations(self, &when, name).await,
        }
    }

    /// The name must be free within `bound`, with an empty queue.
    async fn is_free(&self, name: &LockName, bound: Duration, contend: bool, when: String) -> Verdict {
        let cx = &self.cx;
        let by = cx.now() + bound;
        let held = if contend {
            match self.b.acquire_timeout(name, &cx.ask(), bound).await {
                Ok(held) => held,
                Err(e) => fail!("{when}: the next contender is not granted within {bound:?}: {e:?}"),
            }
        } else {
            cx.free_by(&*self.b, name, &cx.ask(), by, &when).await?
        };
        if cx.has(Need::Inspect)
            && let Some(observer) = self.b.observe()
        {
            loop {
                let asked = cx.now();
                let waiting = observer.inspect(name).await.seen("inspect")?.waiting;
                if waiting == 0 {
                    break;
                }
                ensure!(
                    asked < by,
                    "{when}: the queue has {waiting} entries although no client waits"
                );
                cx.sleep(ms(2)).await;
            }
        }
        held.release().await.seen("B releases")
    }
}

/// Sweeps every kind of acquire under every way of waking. After each drop the name must be free within the
/// bound, or, without one, the client must answer ten further operations.
async fn sweep_acquires(cx: &Cx, ask: Ask, on_their_way: usize, bound: Option<Duration>) -> Verdict {
    let mut stage = Stage::new(cx, ask).await?;
    for waking in Waking::ALL {
        for kind in KINDS {
            let mut sweep = Sweep::new(waking, MOST_POLLS);
            for k in 0.. {
                let name = cx.name(format_args!("{kind:?}-{waking:?}-{k}"));
                let Some(cut) = stage.cut(&mut sweep, kind, &name).await? else {
                    break;
                };
                let when = format!("{kind:?}, {waking}, {}", cut.how(k));
                stage.look(&name, k, bound, when).await?;
            }
            swept(cx, &sweep, &format!("{kind:?}, {waking}"))?;
        }
    }
    for n in 0..on_their_way {
        let name = cx.name(format_args!("granted-{n}"));
        stage.drop_with_a_grant_on_its_way(&name).await?;
        let when = format!("drop {n} of an acquire whose grant was on its way");
        stage.look(&name, n, bound, when).await?;
    }
    Ok(())
}

rule! { "9.01" Must phase 1 [Lock, Try, Wait, Lease, PerGrantTtl] Both A Z cancelled_acquire_leaves_nothing,
    evidence ["sweeps_completed" >= 12, "cut_while_pending" >= 3, "dropped_with_a_grant_on_its_way" >= 4],
    bug "cancel_leaks_grant", budget 300 s
    "An acquire that is dropped at any poll leaves the name acquirable within its ttl and slack, and nothing \
        in the queue."
    why "A select or a timeout around an acquire is everyday code. A grant without an owner blocks the name \
        (sqlx 4198)."
    check "When the future is dropped, what undoes a request that was sent, and what renews its grant?"
}
async fn cancelled_acquire_leaves_nothing(cx: Cx) -> Verdict {
    let ask = cx.ask().ttl(cx.short_ttl());
    let bound = ask.ttl + cx.slack();
    sweep_acquires(&cx, ask, cx.rounds(6, 60), Some(bound)).await
}

rule! { "9.02" Should phase 1 [Lock, Try, Wait, CancelFrees] Both A Z cancelled_acquire_is_undone_promptly,
    evidence ["sweeps_completed" >= 12, "cut_while_pending" >= 3, "dropped_with_a_grant_on_its_way" >= 4],
    bug "cancel_waits_ttl", budget 300 s
    "An acquire that is dropped at any poll leaves the name acquirable within the claimed bound, long before \
        its ttl is over."
    why "If a cancelled request is left to its ttl of minutes, each cancellation is an outage of minutes."
    check "Is a dropped request withdrawn by a message, or left to expire?"
}
async fn cancelled_acquire_is_undone_promptly(cx: Cx) -> Verdict {
    let bound = cx.claims().cancel_prompt + cx.slack();
    sweep_acquires(&cx, cx.ask(), cx.rounds(6, 60), Some(bound)).await
}

rule! { "9.03" Must phase 1 [Lock, Try, Lease, AutoRenew, PerGrantTtl] Engine A Z
        cancelled_release_still_ends_it,
    evidence ["sweeps_completed" >= 3], bug "cancelled_release_renews", budget 300 s
    "A release that is dropped at any poll after it has begun still releases, or lets the lease lapse by its \
        ttl: renewal has stopped."
    why "A guard that is gone and still renewed holds the lock until the process ends."
    check "Does renewal stop when the release begins, or when it is confirmed?"
}
async fn cancelled_release_still_ends_it(cx: Cx) -> Verdict {
    let stage = Stage::new(&cx, cx.ask().ttl(cx.short_ttl()).auto_renew()).await?;
    for waking in Waking::ALL {
        let mut sweep = Sweep::new(waking, MOST_POLLS);
        for k in 0.. {
            let name = cx.name(format_args!("{waking:?}-{k}"));
            let held = stage.a.takes(&name, &stage.ask, "A acquires a free name").await?;
            let Some(cut) = sweep.next(held.release()).await else {
                break;
            };
            let when = format!("release, {waking}, {}", cut.how(k));
            match cut {
                Cut::Completed(released) => released.seen("A releases")?,
                // It has not begun: it is held, and that is right.
                Cut::Dropped if k == 0 => {
                    ensure!(held.is_valid(), "a release that was never polled ended the hold");
                    held.release().await.seen("A releases after all")?;
                }
                Cut::Dropped => ensure!(
                    !held.is_valid(),
                    "the guard is valid after its release was begun and dropped"
                ),
            }
            // The guard is not dropped: its renewal must have stopped all the same.
            stage
                .is_free(&name, stage.ask.ttl + cx.slack(), k % 2 == 1, when)
                .await?;
        }
        swept(&cx, &sweep, &format!("release, {waking}"))?;
    }
    Ok(())
}

rule! { "9.04" Must phase 1 [Lease, Try, Renew, PerGrantTtl] Both A Z cancelled_renewal_promises_nothing,
    evidence ["sweeps_completed" >= 3, "ends_seen" >= 4], bug "cancelled_renew_extends", budget 300 s
    "After a renewal is dropped at any poll, the local validity is the old or the new one, and never beyond \
        the store's."
    why "A holder that counts an unconfirmed renewal works on under a lease that has ended."
    check "Is the deadline moved when the renewal is sent, or when it is confirmed?"
}
async fn cancelled_renewal_promises_nothing(cx: Cx) -> Verdict {
    let stage = Stage::new(&cx, cx.ask().ttl(cx.short_ttl())).await?;
    let mut ends = Vec::new();
    for waking in Waking::ALL {
        let mut sweep = Sweep::new(waking, MOST_POLLS);
        for k in 0.. {
            let name = cx.name(format_args!("{waking:?}-{k}"));
            let held = stage.a.takes(&name, &stage.ask, "A acquires a free name").await?;
            cx.sleep(stage.ask.ttl / 20).await;
            let old = held.deadline();
            let Some(cut) = sweep.next(held.renew()).await else {
                break;
            };
            let when = format!("renewal, {waking}, {}", cut.how(k));
            if let Cut::Completed(renewed) = cut {
                renewed.seen("A renews")?;
            }
            let (now, deadline) = (cx.now(), held.deadline());
            ensure!(
                deadline >= old && deadline <= now + stage.ask.ttl,
                "{when}: the deadline was {:?} away and is {:?} away now; the ttl is {:?}",
                now.until(old),
                now.until(deadline),
                stage.ask.ttl
            );
            // When another is granted, the holder must no longer believe that it holds. All cuts at once.
            let (cx, b, ask) = (cx.clone(), stage.b.clone(), stage.ask.clone());
            ends.push(async move {
                let by = now + ask.ttl + cx.slack();
                let next = cx.free_by(&*b, &name, &ask, by, &when).await?;
                held.must_be_over(format_args!(
                    "{when}: A believes for another {:?} that it holds the name that B was granted",
                    held.remaining()
                ))?;
                cx.evidence("ends_seen");
                next.release().await.seen("B releases")?;
                Ok::<(), Failure>(())
            });
        }
        swept(&cx, &sweep, &format!("renewal, {waking}"))?;
    }
    try_join_all(ends).await?;
    Ok(())
}

rule! { "9.05" Must phase 1 [Lock, Try, Wait] Both A Z client_is_sane_after_a_drop,
    evidence ["sweeps_completed" >= 12, "cut_while_pending" >= 3, "further_operations" >= 100],
    bug "reply_desync", budget 300 s
    "After an operation is dropped at any poll, each of ten further operations of the client gets its own \
        reply."
    why "An unread reply is taken by the next request on that connection. From then on every reply goes to \
        the wrong request."
    check "Are replies matched by an id, or by their order on the connection?"
}
async fn client_is_sane_after_a_drop(cx: Cx) -> Verdict {
    sweep_acquires(&cx, cx.ask(), cx.rounds(3, 30), None).await
}

/// Ten operations whose right answers are known.
async fn ten_operations(stage: &Stage, when: &str, name: &LockName) -> Verdict {
    let Stage { cx, a, b, .. } = stage;
    let ask = cx.ask();
    let other = |n: usize| {
        let bytes = [name.as_bytes(), format!("-then-{n}").as_bytes()].concat();
        LockName::new(bytes).map_err(|e| Failure::Kit(e.to_string()))
    };
    let name = &other(0)?;
    let theirs = b.acquire(name, &ask).await.seen("B acquires")?;
    let mut ids = vec![theirs.id()];
    for n in 1..=3 {
        let meant = format!("{when}; then A tries a free name ({n})");
        let own = a.is_granted(&other(n)?, &ask, meant).await?;
        ensure!(
            !ids.contains(&own.id()),
            "{when}; then A got a grant with the id of another grant"
        );
        ids.push(own.id());
        let what = format!("{when}; then A tries a name that B holds ({n})");
        a.is_refused(name, &ask, what).await?;
        own.released(format!("{when}; then A releases ({n})")).await?;
    }
    theirs.release().await.seen("B releases")?;
    let then = format!("{when}; then A tries a name that B has released");
    a.passes(name, &ask, then).await?;
    cx.evidence_by("further_operations", 13);
    Ok(())
}
