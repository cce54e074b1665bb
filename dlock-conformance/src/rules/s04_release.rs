//! §4 Release and guard drop.

use std::sync::mpsc;

use super::prelude::*;
use super::stale::{Successor, stale_guard};
use crate::claims::Engine;

rules! {
    released_is_free_at_once, release_names_the_grant, no_second_release, lock_and_unlock_on_one_session,
    drop_works_anywhere, renewal_ends_with_the_guard, one_release_one_successor, a_minimum_hold_is_kept,
    a_drop_frees_promptly, a_leaked_guard_lapses,
}

rule! { "4.13" Must phase 2 [Lock, Try, MinimumHold] Both A T a_minimum_hold_is_kept,
    evidence ["kept" >= 2, "free_at_once" >= 2], bug "min_hold_forgotten"
    "A lock that is released before its minimum hold is over stays held until then and is free promptly \
        afterwards. One that was held for longer is free at once."
    why "Without a minimum hold, a job that takes one second runs again on a machine whose clock is two \
        seconds behind."
    check "Does the release set the end of the lease to the end of the minimum hold, or does the client wait \
        before it releases?"
}
async fn a_minimum_hold_is_kept(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let least = cx.ttl(ms(150));
    for round in 0..cx.rounds(2, 10) {
        let (name, ask) = (cx.name(round), cx.ask().min_hold(least));
        let asked = cx.now();
        let held = a.is_granted(&name, &ask, "at first").await?;
        // A renewal extends the lease, and does not change the minimum hold.
        if round % 2 == 1 && cx.has(Need::Renew) {
            held.renew().await.seen("A renews")?;
        }
        held.released("A releases before its minimum hold is over")
            .await?;
        let released = cx.now();
        let window = (asked + (least - cx.skew(least)), released + least + cx.slack());
        let (plain, what) = (cx.ask(), format!("released, with a minimum hold of {least:?}"));
        let next = granted_within(&cx, &*b, (&name, &plain), window, "kept", what).await?;
        next.release().await.seen("B releases")?;
        let short = ms(5);
        let held = a.is_granted(&name, &cx.ask().min_hold(short), "after B").await?;
        cx.sleep(short * 3).await;
        held.released("A releases after its minimum hold is over").await?;
        let after = "after a release later than the minimum hold";
        let next = b.is_granted(&name, &cx.ask(), after).await?;
        cx.evidence("free_at_once");
        next.release().await.seen("B releases")?;
    }
    match cx.has(Need::Wait) {
        true => a_minimum_hold_is_waited_for(&cx, &a, b, least).await,
        false => Ok(()),
    }
}

/// No event marks its end: a waiter has to know when it is.
async fn a_minimum_hold_is_waited_for(cx: &Cx, a: &Client, b: Client, least: Duration) -> Verdict {
    let (name, ask) = (cx.name("waited-for"), cx.ask());
    let asked = cx.now();
    let when = "at first";
    let held = a.is_granted(&name, &ask.clone().min_hold(least), when).await?;
    let waiting = cx.spawn(async move { b.acquire(&name, &ask).await.map(|held| (held, b)) });
    cx.sleep(least / 3).await;
    held.release().await.seen("A releases while B waits")?;
    let released = cx.now();
    let bound = least + cx.claims().wake_p99 + cx.slack();
    let what = format!("B's wait, after a release with a minimum hold of {least:?}");
    let (next, _b) = cx.done(bound, &what, waiting).await?;
    ensure!(
        asked.until(cx.now()) >= least - cx.skew(least),
        "B, which waited, was granted {:?} after A was, and {:?} after its release, with a minimum hold of \
            {least:?}",
        asked.until(cx.now()),
        released.until(cx.now())
    );
    next.release().await.seen("B releases")
}

rule! { "4.01" Must phase 1 [Lock, Try] Both A D released_is_free_at_once, evidence ["hand_overs" >= 20],
    bug "lazy_release"
    "When release answers Ok, with no waiter queued and no minimum hold, another client's try_acquire \
        succeeds at once."
    why "A release that takes effect later slows every hand-off down and makes cron jobs skip their turns."
    check "Does release answer before the store has confirmed it?"
}
async fn released_is_free_at_once(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("released");
    let ask = cx.ask();
    for round in 0..cx.rounds(20, 200) {
        let held = a.takes(&name, &ask, format!("round {round}: A acquires")).await?;
        b.is_refused(&name, &ask, format!("round {round}: while A holds"))
            .await?;
        held.released(format!("round {round}: A releases")).await?;
        b.passes(&name, &ask, format!("round {round}: after A's release"))
            .await?;
        cx.evidence("hand_overs");
    }
    Ok(())
}

rule! { "4.02" Must phase 1 [Lock, Lease, Try] Both A D release_names_the_grant, evidence ["stale_ends" >= 1],
    bug "release_by_session"
    "A release is checked against the grant, not the name, the client or the session: a stale guard cannot \
        free a later grant of the same client."
    why "If the check is by session, a stale guard of one task frees the lock that another task of the same \
        process holds now."
    check "What does the store compare: the session, or an id that is new for each acquisition?"
}
async fn release_names_the_grant(cx: Cx) -> Verdict {
    stale_guard(&cx, Successor::Sibling).await
}

rule! { "4.03" Must phase 1 [Lock, Try] Both A D no_second_release, evidence ["second_releases" >= 5],
    bug "double_release_frees_next"
    "A second release is ruled out by the types, or answers Lost and has no effect."
    why "A release in the body followed by one in the clean-up must not end the next holder's turn."
    check "Does the guard remember that it was released, and does the store check whose lock it deletes?"
}
async fn no_second_release(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    for (round, name) in cx.names(6, 60).enumerate() {
        let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
        held.release().await.seen("A releases")?;
        // The successor is another client, or the same one.
        let successor = if round % 2 == 0 { &b } else { &a };
        let live = successor.acquire(&name, &ask).await;
        let live = live.seen("the successor acquires the released name")?;
        match held.release().await {
            Ok(()) => fail!("round {round}: a second release of the same guard was answered as a success"),
            Err(e) if e.kind() == ErrorKind::Lost => cx.evidence("second_releases"),
            Err(e) => return Err(e).seen("a second release of the same guard: Lost expected"),
        }
        drop(held);
        cx.sleep(ms(5)).await;
        let when = "after A released its guard a second time, and got Lost, while the successor holds";
        c.is_refused(&name, &ask, when).await?;
        live.release().await.seen("the successor releases")?;
    }
    Ok(())
}

rule! { "4.07" Must phase 1 [Lock, Try] Backend A D lock_and_unlock_on_one_session,
    evidence ["cycles" >= 200], bug "unlock_on_other_conn"
    "Lock and unlock run on the same backend session, however busy the client is: after many interleaved \
        cycles every name is free."
    why "A connection pool that runs the unlock on another connection leaks a lock in each cycle."
    check "On which connection does the unlock run?"
}
async fn lock_and_unlock_on_one_session(cx: Cx) -> Verdict {
    const TASKS: usize = 20;
    let client = cx.connect().await?;
    let clients = vec![client; TASKS];
    let tasks = cx.at_work(clients, &(), |worker, ()| async move {
        let (cx, lane, mut rng, number) = worker;
        let client = lane.client();
        let (name, ask) = (cx.name(number), cx.ask());
        for cycle in 0..cx.rounds(10, 100) {
            let when = format!("cycle {cycle}: a name that this task alone uses");
            let held = client.is_granted(&name, &ask, when).await?;
            cx.sleep(rng.duration(Duration::from_micros(500), ms(4))).await;
            held.released(format!("cycle {cycle}: release")).await?;
            cx.evidence("cycles");
        }
        Ok::<(), Failure>(())
    });
    every(tasks).await?;
    let stranger = cx.connect().await?;
    for task in 0..TASKS {
        let what = "after all cycles, for another client";
        stranger.is_granted(&cx.name(task), &cx.ask(), what).await?;
    }
    Ok(())
}

rule! { "4.08" Must phase 1 [Lock, Try, AnyExecutor] Engine A D drop_works_anywhere, evidence ["drops" >= 2],
    bug "drop_needs_runtime"
    "Dropping a guard outside of any runtime, on any thread, or while a panic unwinds neither panics nor \
        blocks."
    why "A destructor that needs a runtime panics where a panic aborts the process."
    check "Does the destructor spawn, block, or look up the current runtime?"
}
async fn drop_works_anywhere(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask().ttl(cx.ttl(ms(200)));
    for unwinding in [false, true] {
        let name = cx.name(if unwinding { "unwinding" } else { "thread" });
        let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
        dropped_on_a_thread(held, unwinding)?;
        cx.evidence("drops");
        let by = cx.lapsed_by(ask.ttl);
        let when = "after A's guard was dropped outside of any runtime";
        cx.free_by(&*b, &name, &ask, by, when).await?;
    }
    Ok(())
}

/// Drops the guard on a thread without a runtime; if `unwinding`, as part of a panic.
fn dropped_on_a_thread(held: Box<dyn Held>, unwinding: bool) -> Verdict {
    /// In real time even in a simulation, since a blocking drop blocks everything.
    const PROMPT: Duration = Duration::from_secs(5);
    struct Planned;
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let dropping = std::panic::AssertUnwindSafe(move || {
            let _held = held;
            if unwinding {
                // Without the hook, so that an intended panic prints nothing.
                std::panic::resume_unwind(Box::new(Planned));
            }
        });
        let ended = std::panic::catch_unwind(dropping);
        let as_planned = ended.map_or_else(|payload| payload.is::<Planned>(), |()| true);
        let _ = tell.send(as_planned);
    });
    match told.recv_timeout(PROMPT) {
        Ok(true) => Ok(()),
        Ok(false) => fail!("dropping a guard on a thread without a runtime panicked"),
        Err(_) => fail!("dropping a guard on a thread without a runtime was not done after {PROMPT:?}"),
    }
}

rule! { "4.09" Must phase 1 [Lock, Lease, AutoRenew, Try] Engine A T renewal_ends_with_the_guard,
    evidence ["renewed" >= 1, "freed" >= 1], bug "drop_keeps_renewing"
    "The lock of a dropped guard is free within its ttl plus slack: renewal ends with the guard."
    why "A background task that outlives its guard renews, for ever, a lock that nobody holds."
    check "What stops the renewal of a guard that is dropped without a release?"
}
async fn renewal_ends_with_the_guard(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask().ttl(cx.kept_ttl(ms(300))).auto_renew();
    let name = cx.name("renewed");
    let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
    cx.sleep(held.ttl() + held.ttl() / 2).await;
    // Without a renewal before there would be nothing to end.
    held.must_be_valid(format_args!(
        "a guard with auto-renewal is not valid after one and a half ttls of {:?}",
        held.ttl()
    ))?;
    b.is_refused(&name, &ask, "while A's guard is renewed automatically")
        .await?;
    cx.evidence("renewed");
    let ttl = held.ttl();
    drop(held);
    let by = cx.lapsed_by(ttl);
    cx.passes_by(&*b, &name, &ask, by, "after A's guard was dropped")
        .await?;
    cx.evidence("freed");
    Ok(())
}

rule! { "4.11" Must phase 1 [Lock, Wait] Both A X one_release_one_successor, evidence ["hand_overs" >= 18],
    bug "release_grants_two" stochastic
    "One release hands the lock to exactly one waiter."
    why "Two waiters that are woken by one release each believe that the lock is theirs."
    check "Does the woken waiter already hold the lock, or does it try again, and is that try one step?"
}
async fn one_release_one_successor(cx: Cx) -> Verdict {
    const WAITERS: usize = 6;
    for round in 0..cx.rounds(3, 30) {
        let (name, ask) = (cx.name(round), cx.ask());
        let holder = cx.connect().await?;
        let first = cx.lane(&holder);
        let held = first.acquire(&name, &ask).await.seen("A acquires a free name")?;
        let clients = cx.clients(WAITERS).await?;
        let shared = (name, ask, Arc::new(AtomicU64::new(0)));
        let tasks = cx.at_work(clients, &shared, |worker, (name, ask, inside)| async move {
            let (cx, lane, ..) = worker;
            let held = lane.acquire(&name, &ask).await.seen("a waiter")?;
            let others = inside.fetch_add(1, Ordering::SeqCst);
            ensure!(others == 0, "one release admitted {} waiters", others + 1);
            cx.sleep(ms(8)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            lane.release(&held).await.seen("an admitted waiter releases")?;
            cx.evidence("hand_overs");
            Ok::<(), Failure>(())
        });
        cx.sleep(ms(20)).await;
        first.release(&held).await.seen("A releases")?;
        every(tasks).await?;
    }
    cx.check_history()
}

rule! { "4.10" Should phase 2 [Lock, Try, DropFrees] Engine A T a_drop_frees_promptly,
    evidence ["drops" >= 3], bug "drop_waits_ttl", budget 120 s
    "While its client and runtime live, the lock of a dropped guard is free within the claimed bound, not \
        only at the end of its ttl."
    why "An early return with `?` drops the guard. If the others then wait for the whole ttl, every error is \
        a standstill."
    check "Which task sends the release of a dropped guard, and does the drop wake it?"
}
async fn a_drop_frees_promptly(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let plain = cx.ask();
    let mut asks = vec![("idle", plain.clone())];
    if cx.has(Need::AutoRenew) {
        asks.push(("renewing", plain.clone().auto_renew()));
    }
    let bound = cx.claims().drop_prompt + cx.slack();
    let mut longest = Duration::ZERO;
    for round in 0..cx.rounds(3, 30) {
        for (kind, ask) in &asks {
            let name = cx.name(format_args!("{kind}-{round}"));
            let held = a.acquire(&name, ask).await.seen("A acquires a free name")?;
            cx.sleep(ms(3)).await;
            let dropped = cx.now();
            drop(held);
            let when = format!("A dropped its {kind} guard");
            cx.passes_by(&*b, &name, &plain, dropped + bound, when).await?;
            longest = longest.max(dropped.until(cx.now()));
            cx.evidence("drops");
        }
    }
    cx.note(format_args!("from drop to free: at most {longest:?}"));
    Ok(())
}

rule! { "4.12" Must phase 2 [Lock, Try, Lease] Both A T a_leaked_guard_lapses, evidence ["lapsed" >= 1],
    bug "forget_is_immortal"
    "The lease of a leaked guard without auto-renewal lapses by its ttl, whatever else its client renews. \
        With auto-renewal it ends when its client ends, at the latest."
    why "A guard in a leaked task or a reference cycle is never dropped. Only the lease can end its hold."
    check "Is a lease renewed because of its own options, or because the client renews at all?"
}
async fn a_leaked_guard_lapses(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask().ttl(cx.short_ttl());
    let (idle, renewing) = (cx.name("idle"), cx.name("renewing"));
    let renews = cx.has(Need::AutoRenew);
    // Beside the idle guard: what keeps one guard alive must not keep the other.
    if renews {
        let held = a.acquire(&renewing, &ask.clone().auto_renew()).await;
        let held = held.seen("A acquires with auto-renewal")?;
        std::mem::forget(held);
    }
    let held = a.acquire(&idle, &ask).await.seen("A acquires a free name")?;
    let by = cx.lapsed_by(held.ttl());
    std::mem::forget(held);
    let then = "A leaked its guard, which has no auto-renewal";
    cx.passes_by(&*b, &idle, &ask, by, then).await?;
    cx.evidence("lapsed");
    if !renews {
        return Ok(());
    }
    // At least one renewal after the other one has lapsed.
    cx.sleep(ask.ttl).await;
    let kept = b.try_acquire(&renewing, &ask).await;
    let kept = kept.seen("B tries what A leaked and renews")?.is_none();
    cx.note(if kept {
        "a leaked guard with auto-renewal stays held while its client lives"
    } else {
        "a leaked guard with auto-renewal lapses"
    });
    ensure!(
        kept || cx.claims().engine == Engine::Own,
        "a leaked guard with auto-renewal is no longer held, although its client lives"
    );
    cx.done(cx.claims().op_bound, "A's close", a.close()).await?;
    let when = "A leaked a guard with auto-renewal, and is closed";
    cx.free_by(&*b, &renewing, &ask, cx.lapsed_by(ask.ttl), when)
        .await?;
    cx.evidence("lapsed");
    Ok(())
}
