//! §12 Watch: what a stream of changes reports.

use futures::future::join;

use super::prelude::*;
use super::watching::{Grants, Told, Watching, all_believe, beside_and_elsewhere};

rules! {
    snapshot_and_then_every_change, events_are_in_grant_order, last_state_is_told, expiry_is_told_in_time,
    hand_over_is_visible,
}

/// A client that comes and goes, and records its grants.
pub(super) struct Comer {
    cx: Cx,
    client: Client,
    name: LockName,
    grants: Grants,
    rng: Rng,
}

impl Comer {
    pub(super) fn new(cx: &Cx, client: &Client, name: &LockName, grants: &Grants) -> Self {
        Self {
            cx: cx.clone(),
            client: client.clone(),
            name: name.clone(),
            grants: grants.clone(),
            rng: cx.rng(),
        }
    }

    /// Acquires, holds for up to `hold`, releases, rests for up to that long, so many times.
    pub(super) async fn come_and_go(mut self, times: usize, hold: Duration) -> Verdict {
        let ask = self.cx.ask();
        for _ in 0..times {
            let asked = self.cx.now();
            let held = self.client.acquire(&self.name, &ask).await;
            let held = held.seen("one of many clients acquires")?;
            self.grants.note(held.id(), asked);
            self.rest(hold).await;
            held.release().await.seen("and releases")?;
            self.rest(hold).await;
        }
        Ok(())
    }

    async fn rest(&mut self, most: Duration) {
        if !most.is_zero() {
            let pause = self.rng.duration(Duration::ZERO, most);
            self.cx.sleep(pause).await;
        }
    }
}

/// Starts the clients that come and go, each `times` times. `done` is set when the last has gone.
fn churn(
    cx: &Cx,
    clients: &[Client],
    name: &LockName,
    grants: &Grants,
    (times, hold): (usize, Duration),
    done: &Arc<AtomicBool>,
) -> Task<Verdict> {
    let comers = clients.iter().map(|client| Comer::new(cx, client, name, grants));
    let comers: Vec<_> = comers.collect();
    let done = done.clone();
    cx.spawn(async move {
        let all = try_join_all(comers.into_iter().map(|comer| comer.come_and_go(times, hold))).await;
        done.store(true, Ordering::SeqCst);
        all.map(drop)
    })
}

rule! { "12.01" Must phase 2 [Watch, Wait] Backend A X snapshot_and_then_every_change,
    evidence ["watches_begun" >= 8, "changes_after_a_snapshot" >= 20], bug "watch_gap" stochastic,
    budget 120 s
    "A stream begins with a snapshot of the current state and then reports every change. No change is missed \
        between the two."
    why "A watcher that misses the release between its snapshot and its first event waits for it for ever."
    check "Is the watcher registered before the snapshot is taken, or in the same step?"
}
async fn snapshot_and_then_every_change(cx: Cx) -> Verdict {
    let (a, b, w) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, grants) = (cx.name("gaps"), Grants::default());
    let mut rng = cx.rng();
    let done = Arc::new(AtomicBool::new(false));
    let hold = ms(3);
    let times = cx.rounds(90, 600);
    let coming = churn(&cx, &[a.clone(), b], &name, &grants, (times, hold), &done);
    let mut streams = Vec::new();
    while !done.load(Ordering::SeqCst) {
        let client = if streams.len() % 2 == 0 { &a } else { &w };
        let who = format!("watch {}", streams.len() + 1);
        let mut stream = Watching::begin(&cx, &**client, &name, who).await?;
        cx.evidence("watches_begun");
        stream.follow_until(&cx, cx.now() + ms(25)).await?;
        cx.evidence_by("changes_after_a_snapshot", stream.items() as u64 - 1);
        streams.push(stream);
        cx.sleep(rng.duration(Duration::ZERO, ms(4))).await;
        // The earlier ones are dropped. Their items are kept.
        if let Some(stream) = streams.last_mut() {
            stream.stop();
        }
    }
    coming.await?;
    for stream in &streams {
        stream.is_unbroken(&grants, cx.claims().merging)?;
    }
    cx.note(format_args!(
        "{} streams over {} grants; {} snapshots said that changes are missing",
        streams.len(),
        grants.all().len(),
        streams.iter().map(|s| s.skips).sum::<usize>()
    ));
    Ok(())
}

rule! { "12.02" Must phase 2 [Watch, Wait] Backend A X events_are_in_grant_order,
    evidence ["grants_told" >= 30], bug "watch_reorder", budget 120 s
    "The stream reports the grants of a name in the order in which they were made, with tokens that never \
        decrease."
    why "If the old holder is reported last, a watcher believes in it until the next change."
    check "Are events recorded in the step that makes the change, or sent from tasks that may overtake each \
        other?"
}
async fn events_are_in_grant_order(cx: Cx) -> Verdict {
    let (a, b, w) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, grants) = (cx.name("order"), Grants::default());
    let mut streams = beside_and_elsewhere(&cx, &name, (&*a, &*w), "a watcher").await?;
    let done = Arc::new(AtomicBool::new(false));
    let (clients, turns) = ([a.clone(), a, b], (cx.rounds(20, 200), ms(2)));
    let coming = churn(&cx, &clients, &name, &grants, turns, &done);
    let coming = async {
        coming.await?;
        // What is on its way.
        cx.sleep(cx.slack()).await;
        Ok::<(), Failure>(())
    };
    let followed = try_join_all(streams.iter_mut().map(|stream| {
        let (cx, done) = (&cx, &done);
        async move {
            while !done.load(Ordering::SeqCst) {
                stream.follow_until(cx, cx.now() + ms(10)).await?;
            }
            stream.follow_until(cx, cx.now() + cx.slack()).await
        }
    }));
    // That tokens never fall is seen as the items come.
    let (coming, followed) = join(coming, followed).await;
    coming?;
    followed?;
    for stream in &streams {
        stream.is_unbroken(&grants, cx.claims().merging)?;
        let granted = |told: &&Told| matches!(told, Told::Granted(_));
        cx.evidence_by("grants_told", stream.told().iter().filter(granted).count() as u64);
    }
    Ok(())
}

rule! { "12.03" Must phase 2 [Watch, Wait] Backend A X last_state_is_told, evidence ["final_states" >= 12],
    bug "watch_misses_last", budget 120 s
    "Changes are merged only as declared. The final state of a name is always reported, to fast and to slow \
        readers."
    why "A dashboard that shows a holder who left an hour ago is worse than none."
    check "Is the last change held back until another one is sent with it?"
}
async fn last_state_is_told(cx: Cx) -> Verdict {
    let (a, b, w) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, grants) = (cx.name("last"), Grants::default());
    let paces = [Duration::ZERO, ms(9)];
    let mut streams = Vec::new();
    for (beside, client) in [("beside a holder", &a), ("elsewhere", &w)] {
        for pace in paces {
            let who = format!("a watcher {beside} that rests for {pace:?} after each change");
            streams.push((Watching::begin(&cx, &**client, &name, who).await?, pace));
        }
    }
    for round in 0..cx.rounds(2, 20) {
        for held_at_the_end in [true, false] {
            let done = Arc::new(AtomicBool::new(false));
            let clients = [a.clone(), b.clone()];
            let coming = churn(&cx, &clients, &name, &grants, (6, ms(3)), &done);
            let followed = try_join_all(streams.iter_mut().map(|(stream, pace)| {
                let (cx, done) = (&cx, &done);
                async move {
                    while !done.load(Ordering::SeqCst) {
                        stream.next(cx, ms(10)).await?;
                        cx.sleep(*pace).await;
                    }
                    Ok::<(), Failure>(())
                }
            }));
            let (coming, followed) = join(coming, followed).await;
            coming?;
            followed?;
            let asked = cx.now();
            let client = if round % 2 == 0 { &b } else { &a };
            let last = client.acquire(&name, &cx.ask()).await.seen("the last holder")?;
            grants.note(last.id(), asked);
            let mut holders = vec![last.id()];
            if !held_at_the_end {
                last.release().await.seen("the last holder releases")?;
                holders.clear();
            }
            let by = cx.now() + cx.slack();
            let streams = streams.iter_mut();
            try_join_all(streams.map(|(s, _)| s.until_holders(&cx, by, &holders))).await?;
            cx.evidence_by("final_states", 2 * paces.len() as u64);
            if held_at_the_end {
                last.release().await.seen("the last holder releases")?;
            }
        }
    }
    for (stream, _) in &streams {
        stream.is_unbroken(&grants, cx.claims().merging)?;
    }
    if cx.has(Need::Shared) {
        readers_are_told(&cx, &a, &b, &w).await?;
    }
    Ok(())
}

/// The same for a state with several holders.
async fn readers_are_told(cx: &Cx, a: &Client, b: &Client, w: &Client) -> Verdict {
    let (name, read) = (cx.name("readers"), cx.ask().reader());
    let mut streams = beside_and_elsewhere(cx, &name, (&**a, &**w), "a watcher").await?;
    let mut held = Vec::new();
    for client in [a, b, a] {
        held.push(client.acquire(&name, &read).await.seen("a reader")?);
    }
    while let Some(reader) = held.pop() {
        let by = cx.now() + cx.slack();
        let ids: Vec<_> = held.iter().map(|h| h.id()).chain([reader.id()]).collect();
        all_believe(cx, &mut streams, by, &ids).await?;
        reader.release().await.seen("a reader releases")?;
    }
    let by = cx.now() + cx.slack();
    all_believe(cx, &mut streams, by, &[]).await
}

rule! { "12.04" Must phase 2 [Watch, Lease, PerGrantTtl, Wait] Backend A T expiry_is_told_in_time,
    evidence ["expiries_told" >= 2], bug "watch_no_expire_event"
    "When the holder vanishes, the stream reports the expiry, not before the lease has ended and within \
        slack after it, even if no other client uses the name."
    why "A process that dies sends no event. A watcher that depends on one never sees the end."
    check "What checks for expired leases while no client uses the name?"
}
async fn expiry_is_told_in_time(cx: Cx) -> Verdict {
    let w = cx.connect().await?;
    let ttl = cx.short_ttl();
    let ask = cx.ask().ttl(ttl);
    for round in 0..cx.rounds(1, 5) {
        let (name, a) = (cx.name(round), cx.connect().await?);
        let mut before = Watching::begin(&cx, &*w, &name, "a watcher from before the grant").await?;
        let asked = cx.now();
        let held = a.acquire(&name, &ask).await.seen("A acquires")?;
        let granted = cx.now();
        let mut after = Watching::begin(&cx, &*w, &name, "a watcher from after the grant").await?;
        // It renews nothing and releases nothing; where it cannot be stopped its guard is left alone.
        a.vanish();
        let id = held.id();
        let skew = cx.skew(ttl);
        let by = granted + ttl + skew + cx.slack();
        let streams = [&mut before, &mut after].map(|stream| {
            let (cx, id) = (&cx, &id);
            async move {
                // The grant first, which one of them has in its snapshot.
                while !stream.was_told_of(id) {
                    if cx.now() >= by || !stream.next(cx, cx.now().until(by)).await? {
                        fail!("a watcher did not see the grant");
                    }
                }
                stream.until_holders(cx, by, &[]).await?;
                let at = cx.now();
                ensure!(
                    at + skew >= asked + ttl,
                    "the expiry was reported {:?} after the lease of {ttl:?} was requested",
                    asked.until(at)
                );
                match stream.told().last() {
                    Some(Told::Ended(ended, "expired")) if ended == id => Ok(()),
                    Some(Told::Snapshot(_)) => Ok(()),
                    other => fail!("an expiry was reported as {other:?}"),
                }
            }
        });
        for told in futures::future::join_all(streams).await {
            told?;
            cx.evidence("expiries_told");
        }
        drop(held);
    }
    Ok(())
}

rule! { "12.09" Should phase 3 [Watch, Wait] Backend A X hand_over_is_visible, evidence ["hand_overs" >= 5],
    bug "watch_no_handoff"
    "A hand-off from one holder to the next is reported, although the name was never free in between."
    why "If only `held` and `free` are reported, a program that shows or bills the holder continues with the \
        former one."
    check "Is a release that grants the next waiter reported as no change?"
}
async fn hand_over_is_visible(cx: Cx) -> Verdict {
    // Long enough for a polling store to see each holder.
    const HOLD: Duration = ms(80);
    let (a, b, w) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("baton"), cx.ask());
    let mut streams = beside_and_elsewhere(&cx, &name, (&*a, &*w), "a watcher").await?;
    let mut held = a.acquire(&name, &ask).await.seen("the first holder")?;
    // A polled store shows the first one only to a poll while it holds.
    let (by, now) = (cx.now() + HOLD + cx.slack(), [held.id()]);
    all_believe(&cx, &mut streams, by, &now).await?;
    for round in 0..cx.rounds(6, 60) {
        let next = if round % 2 == 0 { &b } else { &a };
        let waiting = cx.waits(next, &name, &ask);
        cx.in_line(&*w, &name, 1).await?;
        let before = held.id();
        held.release().await.seen("handing over")?;
        let bound = cx.claims().wake_p99 + cx.slack();
        held = cx.done(bound, "the hand-off to the waiter", waiting).await?;
        let (by, now) = (cx.now() + HOLD + cx.slack(), [held.id()]);
        all_believe(&cx, &mut streams, by, &now).await?;
        ensure!(
            streams.iter().all(|s| s.was_told_of(&before)),
            "a watcher did not see {before}, which held for {HOLD:?}"
        );
        cx.evidence("hand_overs");
        cx.sleep(HOLD).await;
    }
    held.release().await.seen("the last holder releases")
}
