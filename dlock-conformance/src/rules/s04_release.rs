//! §4 Release and guard drop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use dlock_core::ErrorKind;

use super::late_requests::a_retried_release_frees_nobody_else;
use super::s04_guards::{a_drop_frees_promptly, a_leaked_guard_lapses};
use super::s06_faults::{a_failed_release_lapses, release_says_how_it_went};
use super::stale::{Successor, stale_guard};
use crate::claims::Need;
use crate::cx::Cx;
use crate::rule::{Rule, rule};
use crate::subject::{Held, Subject};
use crate::verdict::{Failure, Seen, Verdict};
use crate::{ensure, fail};

pub(super) static RULES: &[Rule] = &[
    rule! {
        "4.01" MUST phase 1 [Lock, Try]
        layer: Both, access: A, test: D,
        title: "released is free at once",
        statement: "When release answers Ok, with no waiter queued and no minimum hold, another client's \
            try_acquire succeeds at once.",
        intent: "A release that takes effect some time later makes every hand-over slow and every cron job \
            skip a turn.",
        check_first: "Does release answer before the store has confirmed it?",
        evidence: ["hand_overs" >= 20],
        budget: 60 s,
        bug: "lazy_release" deterministic
        => released_is_free_at_once
    },
    rule! {
        "4.02" MUST phase 1 [Lock, Lease, Try]
        layer: Both, access: A, test: D,
        title: "release names the grant",
        statement: "Release is checked against the grant, not the name, the client or the session: a stale \
            guard cannot free a later grant of the same client.",
        intent: "A second task of the same process inherits the lock, and the first one's late release \
            takes it away.",
        check_first: "What does the store compare: the session, or an id that is new with each acquisition?",
        evidence: ["stale_ends" >= 1],
        budget: 60 s,
        bug: "release_by_session" deterministic
        => release_names_the_grant
    },
    rule! {
        "4.03" MUST phase 1 [Lock, Try]
        layer: Both, access: A, test: D,
        title: "no second release",
        statement: "A second release is impossible by type, or answers Lost and has no effect.",
        intent: "A release in the body and one more in the clean-up must not end the next holder's turn.",
        check_first: "Does the guard know that it was released, and does the store know whose lock it \
            deletes?",
        evidence: ["second_releases" >= 5],
        budget: 60 s,
        bug: "double_release_frees_next" deterministic
        => no_second_release
    },
    rule! {
        "4.04" MUST phase 2 [Lock, Try]
        layer: Both, access: P, test: D,
        title: "retried release frees nobody else",
        statement: "A release whose reply was lost can be asked for again, by the user and by the client \
            itself: it answers Ok, Lost or Unknown, and never frees whoever was granted meanwhile.",
        intent: "The second copy of a release finds another holder, and a release that does not ask whose \
            lock it ends ends that one.",
        check_first: "Does the retry of a release name the grant, and what does it do when that is not \
            there any more?",
        evidence: ["lost_replies" >= 2, "retries" >= 4, "successors_kept" >= 2],
        budget: 120 s,
        bug: "release_retry_blind_delete" deterministic
        => a_retried_release_frees_nobody_else
    },
    rule! {
        "4.05" MUST phase 1 [Lock, Lease, PerGrantTtl]
        layer: Both, access: P, test: D,
        title: "release says how it went",
        statement: "Release tells apart: released, Lost, and Unknown where the transport failed.",
        intent: "Whoever is told `released` reports that the work was done under the lock; after a loss it \
            was not.",
        check_first: "Which answers of the store and which errors of the driver become Ok?",
        evidence: ["released" >= 1, "lost" >= 1, "unknown" >= 1],
        budget: 120 s,
        bug: "release_swallows_not_held" deterministic
        => release_says_how_it_went
    },
    rule! {
        "4.06" MUST phase 1 [Lock, Lease, Try, AutoRenew]
        layer: Engine, access: P, test: T,
        title: "a failed release lapses",
        statement: "If a release fails in transport the lock still lapses by its ttl: renewal has stopped \
            before.",
        intent: "A renewer that survives the failed release keeps a lock that nobody holds and nobody can \
            release.",
        check_first: "Is renewal stopped before the release is sent, or when it has succeeded?",
        evidence: ["failed_releases" >= 1],
        budget: 120 s,
        bug: "renewer_survives_failed_release" deterministic
        => a_failed_release_lapses
    },
    rule! {
        "4.07" MUST phase 1 [Lock, Try]
        layer: Backend, access: A, test: D,
        title: "lock and unlock on one session",
        statement: "Lock and unlock run on the same backend session, however busy the client is: after many \
            interleaved cycles everything is free.",
        intent: "A connection pool that hands the unlock to another connection leaks a lock with each cycle.",
        check_first: "On which connection does the unlock run?",
        evidence: ["cycles" >= 200],
        budget: 60 s,
        bug: "unlock_on_other_conn" deterministic
        => lock_and_unlock_on_one_session
    },
    rule! {
        "4.08" MUST phase 1 [Lock, Try]
        layer: Engine, access: A, test: D,
        title: "drop works anywhere",
        statement: "Dropping a guard outside of any runtime, on any thread, and in the unwinding of a panic \
            neither panics nor blocks.",
        intent: "A destructor that needs a runtime panics in the one place where panicking aborts the \
            process.",
        check_first: "Does the destructor spawn, block, or ask for the current runtime?",
        evidence: ["drops" >= 2],
        budget: 60 s,
        bug: "drop_needs_runtime" deterministic
        => drop_works_anywhere
    },
    rule! {
        "4.09" MUST phase 1 [Lock, Lease, AutoRenew, Try]
        layer: Engine, access: A, test: T,
        title: "renewal ends with the guard",
        statement: "The lock of a dropped guard is free by its ttl plus slack at the latest: renewal ends \
            with the guard.",
        intent: "A background task that outlives its guard renews a lock for ever that nobody holds.",
        check_first: "What stops the renewal when the guard is dropped, and not released?",
        evidence: ["renewed" >= 1, "freed" >= 1],
        budget: 60 s,
        bug: "drop_keeps_renewing" deterministic
        => renewal_ends_with_the_guard
    },
    rule! {
        "4.10" SHOULD phase 2 [Lock, Try]
        layer: Engine, access: A, test: T,
        title: "a drop frees promptly",
        statement: "While its client and runtime live, a dropped guard's lock is free within the claimed \
            bound, not only at the end of its ttl.",
        intent: "An early return with `?` drops the guard; if that costs the others the whole ttl, every \
            error becomes a standstill.",
        check_first: "Who sends the release of a dropped guard, and is it woken for that?",
        evidence: ["drops" >= 3],
        budget: 120 s,
        bug: "drop_waits_ttl" deterministic
        => a_drop_frees_promptly
    },
    rule! {
        "4.11" MUST phase 1 [Lock, Wait]
        layer: Both, access: A, test: X,
        title: "one release one successor",
        statement: "One release hands the lock over to exactly one waiter.",
        intent: "Two waiters woken by one release both believe that it was meant for them.",
        check_first: "Does the woken waiter hold the lock, or does it look again, and is that look one step?",
        evidence: ["hand_overs" >= 18],
        budget: 60 s,
        bug: "release_grants_two" stochastic
        => one_release_one_successor
    },
    rule! {
        "4.12" MUST phase 2 [Lock, Try, Lease]
        layer: Both, access: A, test: T,
        title: "a leaked guard lapses",
        statement: "A leaked guard that does not renew itself lapses by its ttl, whatever else its client \
            renews; one that does renew itself ends with its client at the latest.",
        intent: "A guard in a leaked task or a reference cycle is never dropped; nothing but the lease can \
            end its hold.",
        check_first: "What decides whether a lease is renewed: its own options, or that the client renews \
            at all?",
        evidence: ["lapsed" >= 1],
        budget: 60 s,
        bug: "forget_is_immortal" deterministic
        => a_leaked_guard_lapses
    },
    rule! {
        "4.13" MUST phase 2 [Lock, Try, MinimumHold]
        layer: Both, access: A, test: T,
        title: "a minimum hold is kept",
        statement: "A lock that is released before its minimum hold is over stays taken until then and is \
            free promptly after it; one that was held for longer is free at once.",
        intent: "A job that takes a second on one machine runs again on another whose clock is two seconds \
            late.",
        check_first: "Does the release put the end of the lease off, or does the client wait before it \
            releases?",
        evidence: ["kept" >= 2, "free_at_once" >= 2],
        budget: 60 s,
        bug: "min_hold_forgotten" deterministic
        => a_minimum_hold_is_kept
    },
];

async fn a_minimum_hold_is_kept(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let least = cx.ttl(Duration::from_millis(150));
    for round in 0..cx.rounds(2, 10) {
        let (name, ask) = (cx.name(round), cx.ask().min_hold(least));
        let asked = cx.now();
        let held = cx.expect_free(&*a, &name, &ask, "at first").await?;
        // A renewal is about the lease, and leaves alone how long it is held at least.
        if round % 2 == 1 && cx.claims().has(Need::Renew) {
            held.renew().await.seen("A renews")?;
        }
        held.release()
            .await
            .seen("A releases sooner than its minimum hold")?;
        let released = cx.now();
        let (earliest, latest) = (asked + (least - cx.skew(least)), released + least + cx.slack());
        let next = loop {
            let tried = b.try_acquire(&name, &cx.ask()).await.seen("B tries")?;
            let now = cx.now();
            match tried {
                Some(next) => break next,
                None => ensure!(
                    now < latest,
                    "released, with a minimum hold of {least:?}, and still taken {:?} later",
                    released.until(now)
                ),
            }
            cx.evidence("kept");
            cx.sleep(Duration::from_millis(3)).await;
        };
        ensure!(
            cx.now() >= earliest,
            "a minimum hold of {least:?} was over {:?} after it was asked for",
            asked.until(cx.now())
        );
        next.release().await.seen("B releases")?;
        let short = Duration::from_millis(5);
        let held = cx
            .expect_free(&*a, &name, &cx.ask().min_hold(short), "after B")
            .await?;
        cx.sleep(short * 3).await;
        held.release()
            .await
            .seen("A releases later than its minimum hold")?;
        let after = "after a release later than the minimum hold";
        let next = cx.expect_free(&*b, &name, &cx.ask(), after).await?;
        cx.evidence("free_at_once");
        next.release().await.seen("B releases")?;
    }
    match cx.claims().has(Need::Wait) {
        true => a_minimum_hold_is_waited_for(&cx, &a, b, least).await,
        false => Ok(()),
    }
}

/// Nobody changes anything when it is over: whoever waits has to know when.
async fn a_minimum_hold_is_waited_for(
    cx: &Cx,
    a: &Arc<dyn Subject>,
    b: Arc<dyn Subject>,
    least: Duration,
) -> Verdict {
    let (name, ask) = (cx.name("waited-for"), cx.ask());
    let asked = cx.now();
    let held = cx
        .expect_free(&**a, &name, &ask.clone().min_hold(least), "at first")
        .await?;
    let waiting = cx.spawn(async move { b.acquire(&name, &ask).await.map(|held| (held, b)) });
    cx.sleep(least / 3).await;
    held.release().await.seen("A releases while B waits")?;
    let released = cx.now();
    let bound = least + cx.claims().wake_p99 + cx.slack();
    let what = format!("B's wait, after a release with a minimum hold of {least:?}");
    let (next, _b) = cx.within(bound, &what, waiting).await?.seen("B waits")?;
    ensure!(
        asked.until(cx.now()) >= least - cx.skew(least),
        "B, who waited, was granted {:?} after A was, and {:?} after its release, with a minimum hold of \
            {least:?}",
        asked.until(cx.now()),
        released.until(cx.now())
    );
    next.release().await.seen("B releases")
}

async fn released_is_free_at_once(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("released");
    let ask = cx.ask();
    for round in 0..cx.rounds(20, 200) {
        let held = a
            .acquire(&name, &ask)
            .await
            .seen(format_args!("round {round}: A acquires"))?;
        cx.expect_held(&*b, &name, &ask, format!("round {round}: while A holds"))
            .await?;
        held.release()
            .await
            .seen(format_args!("round {round}: A releases"))?;
        let next = cx
            .expect_free(&*b, &name, &ask, format!("round {round}: after A's release"))
            .await?;
        next.release()
            .await
            .seen(format_args!("round {round}: B releases"))?;
        cx.evidence("hand_overs");
    }
    Ok(())
}

async fn release_names_the_grant(cx: Cx) -> Verdict {
    stale_guard(&cx, Successor::Sibling).await
}

async fn no_second_release(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    for round in 0..cx.rounds(6, 60) {
        let name = cx.name(round);
        let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
        held.release().await.seen("A releases")?;
        // The successor is a stranger, or the same client again.
        let successor = if round % 2 == 0 { &b } else { &a };
        let live = successor
            .acquire(&name, &ask)
            .await
            .seen("the successor acquires the released name")?;
        match held.release().await {
            Ok(()) => fail!("round {round}: a second release of the same guard was answered as a success"),
            Err(e) if e.kind() == ErrorKind::Lost => cx.evidence("second_releases"),
            Err(e) => return Err(e).seen("a second release of the same guard: Lost expected"),
        }
        drop(held);
        cx.sleep(Duration::from_millis(5)).await;
        cx.expect_held(
            &*c,
            &name,
            &ask,
            "after a second release of the last guard, while its successor holds",
        )
        .await?;
        live.release().await.seen("the successor releases")?;
    }
    Ok(())
}

async fn lock_and_unlock_on_one_session(cx: Cx) -> Verdict {
    const TASKS: usize = 20;
    let client = cx.connect().await?;
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let (inner, client, mut rng) = (cx.clone(), Arc::clone(&client), cx.rng());
        tasks.push(cx.spawn(async move {
            let cx = inner;
            let (name, ask) = (cx.name(task), cx.ask());
            for cycle in 0..cx.rounds(10, 100) {
                let held = cx
                    .expect_free(
                        &*client,
                        &name,
                        &ask,
                        format!("cycle {cycle}: a name that this task alone uses"),
                    )
                    .await?;
                cx.sleep(rng.duration(Duration::from_micros(500), Duration::from_millis(4)))
                    .await;
                held.release()
                    .await
                    .seen(format_args!("cycle {cycle}: release"))?;
                cx.evidence("cycles");
            }
            Ok::<(), Failure>(())
        }));
    }
    let mut ended = Ok(());
    for task in tasks {
        ended = ended.and(task.await);
    }
    ended?;
    let stranger = cx.connect().await?;
    for task in 0..TASKS {
        cx.expect_free(
            &*stranger,
            &cx.name(task),
            &cx.ask(),
            "after all cycles, for another client",
        )
        .await?;
    }
    Ok(())
}

async fn drop_works_anywhere(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask().ttl(cx.ttl(Duration::from_millis(200)));
    for unwinding in [false, true] {
        let name = cx.name(if unwinding { "unwinding" } else { "thread" });
        let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
        dropped_on_a_thread(held, unwinding)?;
        cx.evidence("drops");
        let by = cx.now() + ask.ttl + cx.skew(ask.ttl) + cx.slack();
        cx.free_by(
            &*b,
            &name,
            &ask,
            by,
            "after A's guard was dropped outside of any runtime",
        )
        .await?;
    }
    Ok(())
}

/// Drops the guard on a thread without a runtime; if `unwinding`, as part of a panic.
fn dropped_on_a_thread(held: Box<dyn Held>, unwinding: bool) -> Verdict {
    /// In real time even in a simulation: a drop that blocks blocks everything.
    const PROMPT: Duration = Duration::from_secs(5);
    struct Planned;
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let dropping = std::panic::AssertUnwindSafe(move || {
            let _held = held;
            if unwinding {
                // Without the hook: nothing is printed for a panic that is meant.
                std::panic::resume_unwind(Box::new(Planned));
            }
        });
        let ended = std::panic::catch_unwind(dropping);
        let as_planned = match &ended {
            Ok(()) => true,
            Err(payload) => payload.is::<Planned>(),
        };
        let _ = tell.send(as_planned);
    });
    match told.recv_timeout(PROMPT) {
        Ok(true) => Ok(()),
        Ok(false) => fail!("dropping a guard on a thread without a runtime panicked"),
        Err(_) => fail!("dropping a guard on a thread without a runtime was not done after {PROMPT:?}"),
    }
}

async fn renewal_ends_with_the_guard(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask().ttl(cx.ttl(Duration::from_millis(300))).auto_renew();
    let name = cx.name("renewed");
    let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
    cx.sleep(held.ttl() + held.ttl() / 2).await;
    // Without a renewal before there would be nothing to end.
    ensure!(
        held.is_valid(),
        "a guard that renews itself is over after one and a half ttl of {:?}",
        held.ttl()
    );
    cx.expect_held(&*b, &name, &ask, "while A's guard renews itself")
        .await?;
    cx.evidence("renewed");
    let ttl = held.ttl();
    drop(held);
    let by = cx.now() + ttl + cx.skew(ttl) + cx.slack();
    let next = cx
        .free_by(&*b, &name, &ask, by, "after A's guard was dropped")
        .await?;
    next.release().await.seen("B releases")?;
    cx.evidence("freed");
    Ok(())
}

async fn one_release_one_successor(cx: Cx) -> Verdict {
    const WAITERS: usize = 6;
    for round in 0..cx.rounds(3, 30) {
        let (name, ask) = (cx.name(round), cx.ask());
        let holder = cx.connect().await?;
        let first = cx.lane(&holder);
        let held = first.acquire(&name, &ask).await.seen("A acquires a free name")?;
        let inside = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for _ in 0..WAITERS {
            let client = cx.connect().await?;
            let (lane, task, name, ask, inside) = (
                cx.lane(&client),
                cx.clone(),
                name.clone(),
                ask.clone(),
                Arc::clone(&inside),
            );
            tasks.push(cx.spawn(async move {
                let cx = task;
                let held = lane.acquire(&name, &ask).await.seen("a waiter")?;
                let others = inside.fetch_add(1, Ordering::SeqCst);
                ensure!(others == 0, "one release let {} waiters in", others + 1);
                cx.sleep(Duration::from_millis(8)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                lane.release(&held)
                    .await
                    .seen("a waiter that was let in releases")?;
                cx.evidence("hand_overs");
                Ok::<(), Failure>(())
            }));
        }
        cx.sleep(Duration::from_millis(20)).await;
        first.release(&held).await.seen("A releases")?;
        let mut ended = Ok(());
        for task in tasks {
            ended = ended.and(task.await);
        }
        ended?;
    }
    cx.check_history()
}
