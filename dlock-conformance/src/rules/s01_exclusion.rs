//! §1 Mutual exclusion and ownership.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dlock_core::LockName;
use futures::FutureExt;
use futures::channel::oneshot;

use super::late_replies::a_grant_is_live;
use crate::checker::lost_update::LostUpdates;
use crate::cx::Cx;
use crate::ensure;
use crate::rule::{Rule, rule};
use crate::subject::{Held, Subject};
use crate::verdict::{Failure, Seen, Verdict};

pub(super) static RULES: &[Rule] = &[
    rule! {
        "1.01" MUST phase 1 [Lock, Wait]
        layer: Both, access: A, test: X,
        title: "one holder at a time",
        statement: "At any instant at most one live exclusive grant of a name exists.",
        intent: "This is what a lock is; two holders at once oversell the stock.",
        check_first: "Is finding the name free and taking it one step in the store?",
        evidence: ["grants" >= 80, "contended" >= 20],
        budget: 120 s,
        bug: "grant_without_check" stochastic
        => one_holder_at_a_time
    },
    rule! {
        "1.02" MUST phase 1 [Lock, Wait]
        layer: Backend, access: C, test: X,
        title: "one holder over processes",
        statement: "At any instant at most one live exclusive grant of a name exists, over all processes.",
        intent: "A lock that lives in the memory of a process passes every test of that process.",
        check_first: "Is there any way to a grant that does not pass the store?",
        evidence: ["processes" >= 4, "grants" >= 60, "contended" >= 20],
        budget: 120 s,
        bug: "process_local_lock" deterministic
        => super::s01_processes::one_holder_over_processes
    },
    rule! {
        "1.03" MUST phase 1 [Lock, Try]
        layer: Backend, access: A, test: D,
        title: "one winner of a race",
        statement: "Of any number of simultaneous acquires of a free name exactly one is granted.",
        intent: "Reading and then writing works in every demo, and grants two the first time that two come \
            at once.",
        check_first: "Is the lock taken by one conditional write, or by a read and a write?",
        evidence: ["rounds" >= 5, "losers" >= 300],
        budget: 120 s,
        bug: "check_then_set" deterministic
        => one_winner_of_a_race
    },
    rule! {
        "1.04" MUST phase 1 [Lock, Wait]
        layer: Both, access: A, test: X,
        title: "no lost update",
        statement: "Read-modify-write of unsynchronised data under the lock loses no element while no lease \
            lapses.",
        intent: "The number that people ask for: how much of the data is lost under this lock.",
        check_first: "Is the lock released when the guard ends, or at an earlier end of scope?",
        evidence: ["updates" >= 60, "contended" >= 20],
        budget: 120 s,
        bug: "early_unlock" stochastic
        => no_lost_update
    },
    rule! {
        "1.05" MUST phase 1 [Lock, Wait, Lease]
        layer: Engine, access: P, test: T,
        title: "a grant is live",
        statement: "A grant that is already over is never handed out: the call errs, or goes on waiting \
            within its deadline.",
        intent: "The reply came after the lease had run out; whoever is handed that guard works beside the \
            next holder from the first moment.",
        check_first: "Is the deadline of a grant looked at when it arrives, before there is a guard?",
        evidence: ["late_grants" >= 2],
        budget: 120 s,
        bug: "no_check_after_wait" deterministic
        => a_grant_is_live
    },
    rule! {
        "1.06" MUST phase 1 [Lock, Wait]
        layer: Both, access: C, test: D,
        title: "grant ids are unique",
        statement: "No two grants have the same id, over clients, processes and restarts.",
        intent: "Two holders with one id are one to the store: each releases and renews the other's lock.",
        check_first: "Is the id made of something that two processes can share, such as a process number \
            and a time?",
        evidence: ["ids" >= 130, "processes" >= 8],
        budget: 120 s,
        bug: "owner_from_pid_time" deterministic
        => super::s01_processes::grant_ids_are_unique
    },
    rule! {
        "1.07" MUST phase 1 [Lock, Try, Wait]
        layer: Both, access: A, test: D,
        title: "handles of one client exclude each other",
        statement: "Without re-entrancy, two handles of one client exclude one another exactly like two \
            clients.",
        intent: "A lock that knows clients instead of acquisitions lets two tasks of one process in \
            together.",
        check_first: "Is ownership kept per acquisition, or per client, session or connection?",
        evidence: ["refusals" >= 10, "hand_overs" >= 5],
        budget: 60 s,
        bug: "owner_is_client" deterministic
        => handles_of_one_client_exclude_each_other
    },
];

/// Tasks over half as many clients, so that neighbours in one process compete as well as strangers.
async fn clients(cx: &Cx, tasks: usize) -> Verdict<Vec<Arc<dyn Subject>>> {
    let mut all = Vec::new();
    for _ in 0..tasks.div_ceil(2) {
        let client = cx.connect().await?;
        all.extend([Arc::clone(&client), client]);
    }
    all.truncate(tasks);
    Ok(all)
}

async fn one_holder_at_a_time(cx: Cx) -> Verdict {
    let name = cx.name("one");
    let rounds = cx.rounds(30, 200);
    let asking = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for client in clients(&cx, 8).await? {
        let (task, name, asking, mut rng) = (cx.clone(), name.clone(), Arc::clone(&asking), cx.rng());
        tasks.push(cx.spawn(async move {
            let cx = task;
            let (ask, lane) = (cx.ask(), cx.lane(&client));
            for _ in 0..rounds {
                asking.fetch_add(1, Ordering::SeqCst);
                let held = lane.acquire(&name, &ask).await.seen("one of eight acquires")?;
                cx.evidence("grants");
                // Granted while others ask: a race was won.
                if asking.fetch_sub(1, Ordering::SeqCst) > 1 {
                    cx.evidence("contended");
                }
                cx.sleep(rng.duration(Duration::from_millis(3), Duration::from_millis(6)))
                    .await;
                // Some end their hold by a drop: the history only knows then that it ended at some time
                // later.
                if rng.one_in(4) {
                    lane.drop_guard(held);
                } else {
                    lane.release(&held).await.seen("the holder releases")?;
                }
            }
            Ok::<(), Failure>(())
        }));
    }
    let mut ended = Ok(());
    for task in tasks {
        ended = ended.and(task.await);
    }
    // What the history shows comes first: it explains why a release went wrong.
    cx.check_history()?;
    ended
}

async fn one_winner_of_a_race(cx: Cx) -> Verdict {
    const RACERS: usize = 64;
    let mut racers: Vec<Arc<dyn Subject>> = Vec::new();
    for _ in 0..8 {
        let client = cx.connect().await?;
        racers.extend((0..RACERS / 8).map(|_| Arc::clone(&client)));
    }
    for round in 0..cx.rounds(6, 200) {
        let name = cx.name(format!("race-{round}"));
        let (fire, start) = oneshot::channel::<()>();
        let start = start.shared();
        let mut tasks = Vec::new();
        for client in &racers {
            let (client, name, ask, start) = (Arc::clone(client), name.clone(), cx.ask(), start.clone());
            tasks.push(cx.spawn(async move {
                // A barrier: nobody asks before everybody stands at the line.
                let _ = start.await;
                client.try_acquire(&name, &ask).await
            }));
        }
        drop(fire);
        let mut won = Vec::new();
        for task in tasks {
            match task
                .await
                .seen(format_args!("round {round}: one of {RACERS} tries"))?
            {
                Some(held) => won.push(held),
                None => cx.evidence("losers"),
            }
        }
        ensure!(
            won.len() == 1,
            "round {round}: {} of {RACERS} simultaneous acquires of a free name were granted",
            won.len()
        );
        for held in won {
            held.release()
                .await
                .seen(format_args!("round {round}: the winner releases"))?;
        }
        cx.evidence("rounds");
    }
    Ok(())
}

async fn no_lost_update(cx: Cx) -> Verdict {
    let name = cx.name("set");
    let rounds = cx.rounds(10, 100) as u64;
    let set: Arc<Mutex<Vec<u64>>> = Arc::default();
    let asking = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for (client, number) in clients(&cx, 8).await?.into_iter().zip(0_u64..) {
        let (task, name, set, asking, mut rng) = (
            cx.clone(),
            name.clone(),
            Arc::clone(&set),
            Arc::clone(&asking),
            cx.rng(),
        );
        tasks.push(cx.spawn(async move {
            let cx = task;
            let ask = cx.ask();
            let mut added = Vec::new();
            for round in 0..rounds {
                asking.fetch_add(1, Ordering::SeqCst);
                let held = client.acquire(&name, &ask).await.seen("one of eight acquires")?;
                // Granted while others ask: a race was won.
                if asking.fetch_sub(1, Ordering::SeqCst) > 1 {
                    cx.evidence("contended");
                }
                // Read, think, write: the mutex is held for neither, only the lock under test spans the
                // three.
                let mut copy = set.lock().unwrap_or_else(PoisonError::into_inner).clone();
                cx.sleep(rng.duration(Duration::from_millis(1), Duration::from_millis(4)))
                    .await;
                let element = number * 1_000_000 + round;
                copy.push(element);
                *set.lock().unwrap_or_else(PoisonError::into_inner) = copy;
                added.push(element);
                cx.evidence("updates");
                held.release().await.seen("the holder releases")?;
            }
            Ok::<_, Failure>(added)
        }));
    }
    let mut added = Vec::new();
    for task in tasks {
        added.extend(task.await?);
    }
    let found = set.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let lost = LostUpdates::count(added, [], found);
    cx.note(format_args!("lost updates: {:.1} %", lost.percentage()));
    ensure!(
        lost.is_none(),
        "{} of {} elements that were added under the lock are lost ({:.1} %)",
        lost.lost.len(),
        lost.expected,
        lost.percentage()
    );
    Ok(())
}

async fn handles_of_one_client_exclude_each_other(cx: Cx) -> Verdict {
    let client = cx.connect().await?;
    let ask = cx.ask();
    for round in 0..cx.rounds(5, 50) {
        let name = cx.name(round);
        let first = client
            .acquire(&name, &ask)
            .await
            .seen("one handle acquires a free name")?;
        cx.expect_held(
            &*client,
            &name,
            &ask,
            "another handle of the same client, while the first holds",
        )
        .await?;
        cx.evidence("refusals");
        refused_wait(&cx, &*client, &name).await?;
        cx.evidence("refusals");
        ensure!(
            first.is_valid(),
            "the first handle lost its lock to the other handle's attempts"
        );
        let waiting = {
            let (client, name, ask) = (Arc::clone(&client), name.clone(), ask.clone());
            cx.spawn(async move { client.acquire(&name, &ask).await })
        };
        cx.sleep(Duration::from_millis(10)).await;
        first.release().await.seen("the first handle releases")?;
        let second: Box<dyn Held> = cx
            .within(
                cx.claims().op_bound + cx.slack(),
                "a waiting handle, after the release by its neighbour",
                waiting,
            )
            .await?
            .seen("the second handle waits for the first")?;
        second.release().await.seen("the second handle releases")?;
        cx.evidence("hand_overs");
    }
    Ok(())
}

async fn refused_wait(cx: &Cx, client: &dyn Subject, name: &LockName) -> Verdict {
    let when = "a second handle of the same client waits while the first holds";
    cx.expect_timeout(client, name, &cx.ask(), Duration::from_millis(20), when)
        .await
}
