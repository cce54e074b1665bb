//! §12 Watch: what a stream of changes tells.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::LockName;
use futures::future::{join, try_join_all};

use super::cut_watch::{a_cut_is_told, nothing_is_told_that_never_was};
use super::s12_cost::{slow_consumer_is_told, watching_slows_nobody};
use super::s12_operators::{force_ends_every_hold, inspection_is_true};
use super::watching::{Grants, Told, Watching};
use crate::claims::Need;
use crate::cx::Cx;
use crate::rng::Rng;
use crate::rule::{Rule, rule};
use crate::subject::Subject;
use crate::task::Task;
use crate::verdict::{Failure, Seen, Verdict};
use crate::{ensure, fail};

pub(super) static RULES: &[Rule] = &[
    rule! {
        "12.01" MUST phase 2 [Watch, Wait]
        layer: Backend, access: A, test: X,
        title: "snapshot and then every change",
        statement: "A stream begins with a snapshot of what is, and tells every change from then on: none \
            falls between the two.",
        intent: "A watcher that misses the release between its snapshot and its first event waits for it \
            for ever.",
        check_first: "Is the watcher entered in the same step in which the snapshot is taken, or before?",
        evidence: ["watches_begun" >= 8, "changes_after_a_snapshot" >= 20],
        budget: 120 s,
        bug: "watch_gap" stochastic
        => snapshot_and_then_every_change
    },
    rule! {
        "12.02" MUST phase 2 [Watch, Wait]
        layer: Backend, access: A, test: X,
        title: "events are in grant order",
        statement: "The grants of a name are told in the order in which they were made, with tokens that \
            never fall.",
        intent: "A watcher that is told of the old holder last believes in it until the next change.",
        check_first: "Are events written down in the step that makes the change, or sent from tasks that \
            overtake each other?",
        evidence: ["grants_told" >= 30],
        budget: 120 s,
        bug: "watch_reorder" deterministic
        => events_are_in_grant_order
    },
    rule! {
        "12.03" MUST phase 2 [Watch, Wait]
        layer: Backend, access: A, test: X,
        title: "last state is told",
        statement: "Changes are merged only as is declared, and the state in which a name is left is always \
            told, to fast and to slow readers.",
        intent: "A dashboard that shows a holder who left an hour ago is worse than none.",
        check_first: "Is the last change held back until there is another one to send with it?",
        evidence: ["final_states" >= 12],
        budget: 120 s,
        bug: "watch_misses_last" deterministic
        => last_state_is_told
    },
    rule! {
        "12.04" MUST phase 2 [Watch, Lease, PerGrantTtl, Wait]
        layer: Backend, access: A, test: T,
        title: "expiry is told in time",
        statement: "When the holder has vanished, a watcher is told of the expiry, not before the lease has \
            ended and within the slack after it, though nobody else touches the name.",
        intent: "Nobody sends an event when a process dies; a watcher that waits for one is never told.",
        check_first: "Who looks for what has run out while nobody asks for the name?",
        evidence: ["expiries_told" >= 2],
        budget: 60 s,
        bug: "watch_no_expire_event" deterministic
        => expiry_is_told_in_time
    },
    rule! {
        "12.05" MUST phase 2 [Watch, Lock, Wait]
        layer: Both, access: P, test: T,
        title: "cut is told",
        statement: "A stream whose connection breaks ends with an error, or goes on with a snapshot that \
            says that changes are missing, or misses none; it is never silent, and watching again shows \
            what is.",
        intent: "A stream that has died and says nothing looks like a lock that nobody touches; the \
            follower waits for the end of a leader that has long gone.",
        check_first: "Who hears that the connection of a watch broke, and what does the reader of the \
            stream see of it?",
        evidence: ["cuts_told" >= 4],
        budget: 120 s,
        bug: "watch_silent_stall" deterministic
        => a_cut_is_told
    },
    rule! {
        "12.06" MUST phase 2 [Watch, Lock, Wait, Try, Renew]
        layer: Both, access: P, test: D,
        title: "nothing is told that never was",
        statement: "No watcher is told of a hold that is none: a late sign of life of a former holder is no \
            grant, and a watcher that comes back from a cut is shown what is, and nothing from before it.",
        intent: "A leader that is seen once more after its end is followed once more; that is how two of \
            them come to be at work (CURATOR-604).",
        check_first: "Are changes told from what the store has done, or from what it was asked to do? Is \
            anything of a connection that broke kept for the next?",
        evidence: ["late_messages" >= 2, "snapshots_after_a_cut" >= 2],
        budget: 120 s,
        bug: "watch_phantom" deterministic
        => nothing_is_told_that_never_was
    },
    rule! {
        "12.07" MUST phase 3 [Watch, Wait]
        layer: Backend, access: A, test: D,
        title: "slow consumer is told",
        statement: "A reader that takes nothing costs a bounded number of changes, no more than the \
            declared backlog, and is told by a snapshot that others are missing.",
        intent: "One dashboard that hangs fills the memory of the server that feeds it.",
        check_first: "Is the buffer of a stream bounded, and is what did not fit replaced by a snapshot?",
        evidence: ["slow_consumers" >= 2, "changes_not_taken" >= 100],
        budget: 120 s,
        bug: "watch_unbounded" deterministic
        => slow_consumer_is_told
    },
    rule! {
        "12.08" MUST phase 2 [Watch, Try, Wait]
        layer: Backend, access: A, test: D,
        title: "watching slows nobody",
        statement: "Watchers of a name, however many, neither hold it nor stand in its queue, and do not \
            slow those who use it.",
        intent: "A dashboard that queues for the lock that it shows takes it one day.",
        check_first: "Does a watcher have an entry among those who hold or wait?",
        evidence: ["watchers" >= 20, "cycles_watched" >= 30],
        budget: 120 s,
        bug: "watch_enqueues" deterministic
        => watching_slows_nobody
    },
    rule! {
        "12.09" SHOULD phase 3 [Watch, Wait]
        layer: Backend, access: A, test: X,
        title: "hand-over is visible",
        statement: "A hand-over from one holder to the next is told, though the name was never free in \
            between.",
        intent: "Who shows or bills the holder goes on with the former one when only held and free are told.",
        check_first: "Is a release that grants the next one reported as no change at all?",
        evidence: ["hand_overs" >= 5],
        budget: 60 s,
        bug: "watch_no_handoff" deterministic
        => hand_over_is_visible
    },
    rule! {
        "12.10" MUST phase 2 [Inspect, Lock, Try, Wait]
        layer: Backend, access: A, test: D,
        title: "inspection is true",
        statement: "inspect shows who holds a name, every one of them, in which mode, with which token and \
            label and for how long, and nobody who does not.",
        intent: "Whoever is called at night ends by force what they see there.",
        check_first: "Is what is shown read in one step, and what has been released left out?",
        evidence: ["holders_shown" >= 9],
        budget: 60 s,
        bug: "inspect_shows_one" deterministic
        => inspection_is_true
    },
    rule! {
        "12.11" MUST phase 2 [ForceRelease, Lock, Try, Wait]
        layer: Both, access: A, test: D,
        title: "force ends every hold",
        statement: "force_release ends every hold of the name and says how many there were: the name is \
            free or the next waiter's, the token grows, and a late release of what was ended harms nobody.",
        intent: "An operator who has ended a hung holder must be able to rely on it.",
        check_first: "Does it end one entry or all of them, and does it admit whoever is next?",
        evidence: ["ended" >= 1, "late_releases" >= 1],
        budget: 60 s,
        bug: "force_ends_one" deterministic
        => force_ends_every_hold
    },
];

/// One who comes and goes, and writes down its grants.
pub(super) struct Comer {
    pub(super) cx: Cx,
    pub(super) client: Arc<dyn Subject>,
    pub(super) name: LockName,
    pub(super) grants: Grants,
    pub(super) rng: Rng,
}

impl Comer {
    /// Acquires, holds for up to `hold`, releases, rests for up to that long, so many times.
    pub(super) async fn come_and_go(mut self, times: usize, hold: Duration) -> Verdict {
        let ask = self.cx.ask();
        for _ in 0..times {
            let asked = self.cx.now();
            let held = self.client.acquire(&self.name, &ask).await;
            let held = held.seen("one of those who come and go acquires")?;
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

/// Starts those who come and go, each `times` times; `done` is set when the last has gone.
fn churn(
    cx: &Cx,
    clients: &[Arc<dyn Subject>],
    name: &LockName,
    grants: &Grants,
    (times, hold): (usize, Duration),
    done: &Arc<AtomicBool>,
) -> Task<Verdict> {
    let comers: Vec<_> = clients
        .iter()
        .map(|client| Comer {
            cx: cx.clone(),
            client: client.clone(),
            name: name.clone(),
            grants: grants.clone(),
            rng: cx.rng(),
        })
        .collect();
    let done = done.clone();
    cx.spawn(async move {
        let all = try_join_all(comers.into_iter().map(|comer| comer.come_and_go(times, hold))).await;
        done.store(true, Ordering::SeqCst);
        all.map(drop)
    })
}

async fn snapshot_and_then_every_change(cx: Cx) -> Verdict {
    let (a, b, w) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, grants) = (cx.name("gaps"), Grants::default());
    let mut rng = cx.rng();
    let done = Arc::new(AtomicBool::new(false));
    let hold = Duration::from_millis(3);
    let times = cx.rounds(90, 600);
    let coming = churn(&cx, &[a.clone(), b], &name, &grants, (times, hold), &done);
    let mut streams = Vec::new();
    while !done.load(Ordering::SeqCst) {
        let client = if streams.len() % 2 == 0 { &a } else { &w };
        let who = format!("watch {}", streams.len() + 1);
        let mut stream = Watching::begin(&cx, &**client, &name, who).await?;
        cx.evidence("watches_begun");
        stream
            .follow_until(&cx, cx.now() + Duration::from_millis(25))
            .await?;
        cx.evidence_by("changes_after_a_snapshot", stream.items() as u64 - 1);
        streams.push(stream);
        cx.sleep(rng.duration(Duration::ZERO, Duration::from_millis(4)))
            .await;
        // The earlier ones are dropped: what they were told is kept.
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

async fn events_are_in_grant_order(cx: Cx) -> Verdict {
    let (a, b, w) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, grants) = (cx.name("order"), Grants::default());
    let mut streams = Vec::new();
    for (who, client) in [("a watcher beside a holder", &a), ("a watcher elsewhere", &w)] {
        streams.push(Watching::begin(&cx, &**client, &name, who).await?);
    }
    let done = Arc::new(AtomicBool::new(false));
    let hold = Duration::from_millis(2);
    let coming = churn(
        &cx,
        &[a.clone(), a, b],
        &name,
        &grants,
        (cx.rounds(20, 200), hold),
        &done,
    );
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
                stream
                    .follow_until(cx, cx.now() + Duration::from_millis(10))
                    .await?;
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

async fn last_state_is_told(cx: Cx) -> Verdict {
    let (a, b, w) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, grants) = (cx.name("last"), Grants::default());
    let paces = [Duration::ZERO, Duration::from_millis(9)];
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
            let coming = churn(
                &cx,
                &clients,
                &name,
                &grants,
                (6, Duration::from_millis(3)),
                &done,
            );
            let followed = try_join_all(streams.iter_mut().map(|(stream, pace)| {
                let (cx, done) = (&cx, &done);
                async move {
                    while !done.load(Ordering::SeqCst) {
                        stream.next(cx, Duration::from_millis(10)).await?;
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
            try_join_all(
                streams
                    .iter_mut()
                    .map(|(s, _)| s.until_holders(&cx, by, &holders)),
            )
            .await?;
            cx.evidence_by("final_states", streams.len() as u64);
            if held_at_the_end {
                last.release().await.seen("the last holder releases")?;
            }
        }
    }
    for (stream, _) in &streams {
        stream.is_unbroken(&grants, cx.claims().merging)?;
    }
    if cx.claims().has(Need::Shared) {
        readers_are_told(&cx, &a, &b, &w).await?;
    }
    Ok(())
}

/// The same for a state with several holders.
async fn readers_are_told(
    cx: &Cx,
    a: &Arc<dyn Subject>,
    b: &Arc<dyn Subject>,
    w: &Arc<dyn Subject>,
) -> Verdict {
    let (name, read) = (cx.name("readers"), cx.ask().reader());
    let mut streams = Vec::new();
    for (who, client) in [("a watcher beside a reader", a), ("a watcher elsewhere", w)] {
        streams.push(Watching::begin(cx, &**client, &name, who).await?);
    }
    let mut held = Vec::new();
    for client in [a, b, a] {
        held.push(client.acquire(&name, &read).await.seen("a reader")?);
    }
    while let Some(reader) = held.pop() {
        let by = cx.now() + cx.slack();
        let ids: Vec<_> = held.iter().map(|h| h.id()).chain([reader.id()]).collect();
        try_join_all(streams.iter_mut().map(|s| s.until_holders(cx, by, &ids))).await?;
        reader.release().await.seen("a reader releases")?;
    }
    let by = cx.now() + cx.slack();
    try_join_all(streams.iter_mut().map(|s| s.until_holders(cx, by, &[]))).await?;
    Ok(())
}

async fn expiry_is_told_in_time(cx: Cx) -> Verdict {
    let w = cx.connect().await?;
    let ttl = cx.short_ttl();
    let ask = cx.ask().ttl(ttl);
    for round in 0..cx.rounds(1, 5) {
        let (name, a) = (cx.name(round), cx.connect().await?);
        let mut before = Watching::begin(&cx, &*w, &name, "a watcher of before the grant").await?;
        let asked = cx.now();
        let held = a.acquire(&name, &ask).await.seen("A acquires")?;
        let granted = cx.now();
        let mut after = Watching::begin(&cx, &*w, &name, "a watcher of after the grant").await?;
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
                        fail!("a watcher was not told of the grant");
                    }
                }
                stream.until_holders(cx, by, &[]).await?;
                let at = cx.now();
                ensure!(
                    at + skew >= asked + ttl,
                    "the expiry was told {:?} after the lease of {ttl:?} was asked for",
                    asked.until(at)
                );
                match stream.told().last() {
                    Some(Told::Ended(ended, "expired")) if ended == id => Ok(()),
                    Some(Told::Snapshot(_)) => Ok(()),
                    other => fail!("an expiry was told as {other:?}"),
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

async fn hand_over_is_visible(cx: Cx) -> Verdict {
    // Long enough for a store that only looks now and then to see each holder.
    const HOLD: Duration = Duration::from_millis(80);
    let (a, b, w) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("baton"), cx.ask());
    let mut streams = Vec::new();
    for (who, client) in [("a watcher beside a holder", &a), ("a watcher elsewhere", &w)] {
        streams.push(Watching::begin(&cx, &**client, &name, who).await?);
    }
    let mut held = a.acquire(&name, &ask).await.seen("the first holder")?;
    // A store that is looked at shows the first one only to who looks while it holds.
    let (by, now) = (cx.now() + HOLD + cx.slack(), [held.id()]);
    try_join_all(streams.iter_mut().map(|s| s.until_holders(&cx, by, &now))).await?;
    for round in 0..cx.rounds(6, 60) {
        let next = if round % 2 == 0 { &b } else { &a };
        let waiting = super::s11_policy::acquiring(&cx, next, &name, &ask);
        super::s11_policy::queued(&cx, &*w, &name, 1).await?;
        let before = held.id();
        held.release().await.seen("handing over")?;
        let bound = cx.claims().wake_p99 + cx.slack();
        held = cx
            .within(bound, "the hand-over to the one in line", waiting)
            .await?
            .seen("the one in line")?;
        let (by, now) = (cx.now() + HOLD + cx.slack(), [held.id()]);
        try_join_all(streams.iter_mut().map(|s| s.until_holders(&cx, by, &now))).await?;
        ensure!(
            streams.iter().all(|s| s.was_told_of(&before)),
            "a watcher was not told of {before}, which held for {HOLD:?}"
        );
        cx.evidence("hand_overs");
        cx.sleep(HOLD).await;
    }
    held.release().await.seen("the last holder releases")
}
