//! The bodies of the rules of §6 that need a network that fails, and of 5.10 and 5.11.

use super::faulty::{Faulty, faulty, patience, struck};
use super::prelude::*;

rules! {
    release_says_how_it_went, a_failed_release_lapses, renewal_ends_with_the_hold,
    a_short_fault_loses_nothing, loss_is_told_by_the_deadline, loss_is_sticky, all_observers_are_told,
    loss_needs_no_poll,
}

/// A guard with auto-renewal whose client is cut off, and the fault.
async fn cut_off(cx: &Cx) -> Verdict<(Faulty, Arc<dyn Held>, FaultGuard)> {
    let f = faulty(cx).await?;
    let ask = cx.ask().ttl(cx.short_ttl()).auto_renew();
    let held = f.a_holds(&cx.name("cut off"), &ask).await?;
    let hole = f.net.begin(Fault::BlackHole(Direction::Both));
    Ok((f, held, hole))
}

rule! { "6.01" Must phase 1 [Lock, Lease, AutoRenew, LossSignal] Engine P T loss_is_told_by_the_deadline,
    evidence ["losses" >= 1], bug "lost_fires_late", budget 120 s
    "If renewals fail, the loss signal fires no later than the local deadline."
    why "After the deadline another client may hold the lock. A later signal comes too late."
    check "What triggers the signal: the deadline itself, or an answer of the store?"
}
async fn loss_is_told_by_the_deadline(cx: Cx) -> Verdict {
    let (_f, held, hole) = cut_off(&cx).await?;
    let lost = held.lost();
    struck(&cx, &hole, "a renewal of A is lost on the way").await?;
    // Nothing moves it from here on.
    let deadline = held.deadline();
    let what = "the loss signal of a guard whose renewals fail";
    cx.within(cx.now().until(deadline) + cx.slack(), what, lost)
        .await?;
    let (lead, late) = (cx.now().until(deadline), deadline.until(cx.now()));
    cx.note(format_args!(
        "the loss was signalled {lead:?} before the deadline, or {late:?} after it"
    ));
    cx.evidence("losses");
    Ok(())
}

rule! { "6.04" Must phase 1 [Lock, Lease, AutoRenew, LossSignal] Engine P D loss_is_sticky,
    evidence ["late_observers" >= 2], bug "lost_edge_only", budget 120 s
    "The loss signal is sticky: an observer that subscribes late sees it at once."
    why "Code that subscribes after the loss would otherwise wait for ever."
    check "Is the signal an event, or a state that is read first?"
}
async fn loss_is_sticky(cx: Cx) -> Verdict {
    let (_f, held, hole) = cut_off(&cx).await?;
    let limit = held.ttl() + cx.slack();
    cx.within(limit, "the first observer of a loss", held.lost())
        .await?;
    struck(&cx, &hole, "a renewal of A is lost on the way").await?;
    for observer in ["second", "third"] {
        let what = format!("the {observer} observer, which subscribed after the loss");
        let reason = cx.within(cx.slack(), what, held.lost()).await?;
        ensure!(
            held.loss() == Some(reason),
            "a late observer gets {reason:?}, and the guard says {:?}",
            held.loss()
        );
        cx.evidence("late_observers");
        cx.sleep(ms(20)).await;
    }
    Ok(())
}

rule! { "6.06" Must phase 1 [Lock, Lease, AutoRenew, LossSignal] Engine P D all_observers_are_told,
    evidence ["observers_told" >= 8], bug "lost_single_observer", budget 120 s
    "Every observer of a guard gets the loss signal, with the same reason."
    why "An observer that misses the signal goes on working."
    check "Does the notification wake one observer, or all of them?"
}
async fn all_observers_are_told(cx: Cx) -> Verdict {
    let (_f, held, hole) = cut_off(&cx).await?;
    let observers = join_all((0..8).map(|_| cx.spawn(held.lost())));
    let limit = held.ttl() + cx.slack();
    let what = "the eight observers of one loss";
    let reasons = cx.within(limit, what, observers).await?;
    struck(&cx, &hole, "a renewal of A is lost on the way").await?;
    ensure!(
        reasons.windows(2).all(|two| two[0] == two[1]),
        "the observers of one loss get different reasons: {reasons:?}"
    );
    cx.evidence_by("observers_told", reasons.len() as u64);
    Ok(())
}

rule! { "6.08" Must phase 1 [Lock, Lease, AutoRenew, LossSignal] Engine P D loss_needs_no_poll,
    evidence ["losses_in_the_background" >= 1], bug "lost_needs_poll", budget 120 s
    "The loss signal fires even if the application never calls the guard."
    why "Code that checks the guard needs no signal. The signal is for code that does not."
    check "Does a background task notice the end of a lease, or the next call?"
}
async fn loss_needs_no_poll(cx: Cx) -> Verdict {
    let (_f, held, hole) = cut_off(&cx).await?;
    let signal = cx.spawn(held.lost());
    // The guard is not called in the meantime.
    let limit = held.ttl() + cx.slack();
    let what = "the loss signal of a guard that the application never calls";
    cx.within(limit, what, signal).await?;
    struck(&cx, &hole, "a renewal of A is lost on the way").await?;
    cx.evidence("losses_in_the_background");
    Ok(())
}

rule! { "5.10" Must phase 1 [Lock, Lease, Try, AutoRenew, LossSignal] Engine P T renewal_ends_with_the_hold,
    evidence ["quiet_windows" >= 3], bug "zombie_renewer", budget 120 s
    "Auto-renewal stops on release, drop and loss: no renewal is sent afterwards, and the lock is not \
        created again."
    why "A renewer that outlives its guard costs three requests per ttl for ever. If the store upserts, it \
        takes the lock again."
    check "Which task renews, and how does it learn of a release, a drop and a loss?"
}
async fn renewal_ends_with_the_hold(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask().ttl(cx.ttl(ms(200))).auto_renew();
    // A session is kept alive with or without locks: its keep-alive is no renewal.
    let idle = match cx.has(Need::Session) {
        true => {
            let before = f.net.traffic().requests;
            cx.sleep(ask.ttl * 2).await;
            let idle = f.net.traffic().requests - before;
            // A protocol below keep-alives may answer automatically, in the same packet or in another one.
            // Not in step with them, one window may have two more than another. A renewal that goes on would
            // double the number of requests.
            idle * 2 + 4
        }
        false => 0,
    };
    for how in ["released", "dropped", "lost"] {
        let name = cx.name(how);
        let held = f.a_holds(&name, &ask).await?;
        let before = f.net.traffic().requests;
        cx.sleep(ask.ttl).await;
        ensure!(
            f.net.traffic().requests > before,
            "a guard with auto-renewal sends no renewals"
        );
        match how {
            "released" => {
                held.release().await.seen("A releases")?;
            }
            "dropped" => drop(held),
            _ => {
                let away = f.net.begin(Fault::Away);
                let limit = ask.ttl + cx.slack();
                let when = "the loss of a guard whose server is unreachable";
                cx.within(limit, when, held.lost()).await?;
                away.heal();
                drop(held);
            }
        }
        // The messages of the end itself, with retries.
        cx.sleep(cx.slack() + ask.ttl).await;
        let settled = f.net.traffic().requests;
        cx.sleep(ask.ttl * 2).await;
        let after = f.net.traffic().requests;
        ensure!(
            after - settled <= idle,
            "a client whose only guard was {how} sent {} requests in two ttls",
            after - settled
        );
        f.b.passes(&name, &ask, format!("after A's guard was {how}"))
            .await?;
        cx.evidence("quiet_windows");
    }
    Ok(())
}

rule! { "5.11" Must phase 1 [Lock, Lease, AutoRenew, LossSignal, OutlivesConnection] Engine P T
        a_short_fault_loses_nothing,
    evidence ["faults_survived" >= 2], bug "gives_up_on_first_error", budget 120 s
    "A fault that is shorter than the rest of the lease does not lose the lock."
    why "A client that gives up after one failed renewal loses its locks at every short outage."
    check "What happens after a failed renewal, and how soon is it retried?"
}
async fn a_short_fault_loses_nothing(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask().ttl(cx.ttl(ms(900))).auto_renew();
    let held = f.a_holds(&cx.name("held"), &ask).await?;
    // Longer than the time between two renewals, shorter than what is left of the lease after that.
    let short = ask.ttl * 2 / 5;
    for fault in [Fault::Away, Fault::BlackHole(Direction::Both)] {
        let lost = held.lost();
        let at_work = f.net.begin(fault);
        cx.sleep(short).await;
        let hits = at_work.hits();
        at_work.heal();
        if let Some(reason) = cx.timeout(ask.ttl, lost).await {
            fail!(
                "a fault of {short:?} ({fault:?}) lost a lock with a ttl of {:?}: {reason:?}",
                ask.ttl
            );
        }
        held.must_be_valid(format_args!(
            "a guard is not valid after a fault of {short:?} ({fault:?})"
        ))?;
        if hits > 0 {
            cx.evidence("faults_survived");
        }
    }
    held.release().await.seen("A releases the locks that it kept")
}

rule! { "4.05" Must phase 1 [Lock, Lease, PerGrantTtl] Both P D release_says_how_it_went,
    evidence ["released" >= 1, "lost" >= 1, "unknown" >= 1], bug "release_swallows_not_held", budget 120 s
    "Release distinguishes three outcomes: released, Lost, and Unknown where the transport failed."
    why "After `released` a caller reports that its work was done under the lock. After a loss that is not \
        true."
    check "Which answers of the store and which errors of the driver become Ok?"
}
async fn release_says_how_it_went(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let plain = f.a_holds(&cx.name("plain"), &cx.ask()).await?;
    plain.release().await.seen("A releases its lock")?;
    cx.evidence("released");

    let brief = cx.ask().ttl(cx.ttl(ms(100)));
    let over = f.a_holds(&cx.name("over"), &brief).await?;
    cx.sleep(brief.ttl + cx.skew(brief.ttl)).await;
    is_lost(over.release().await, "the release of a lock that had lapsed")?;
    cx.evidence("lost");

    let held = f.a_holds(&cx.name("unheard"), &cx.ask()).await?;
    let hole = f.net.begin(Fault::BlackHole(Direction::ToServer));
    let releasing = cx.releases(&held);
    struck(&cx, &hole, "A's release is lost on the way").await?;
    f.cut(Cut::Reset)?;
    let doing = "a release that is lost on the way";
    match cx.within(patience(&cx), doing, releasing).await? {
        Err(e) if e.kind() == dlock_core::ErrorKind::Unknown => cx.evidence("unknown"),
        other => fail!("a release that was sent and not answered answers {other:?}, not Unknown"),
    }
    Ok(())
}

rule! { "4.06" Must phase 1 [Lock, Lease, Try, AutoRenew] Engine P T a_failed_release_lapses,
    evidence ["failed_releases" >= 1], bug "renewer_survives_failed_release", budget 120 s
    "If a release fails in transport, the lock still lapses by its ttl, because renewal stopped before the \
        release was sent."
    why "A renewer that survives a failed release keeps alive a lock that nobody holds and nobody can \
        release."
    check "Does renewal stop before the release is sent, or after it has succeeded?"
}
async fn a_failed_release_lapses(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let (name, ask) = (cx.name("held"), cx.ask().ttl(cx.short_ttl()).auto_renew());
    let held = f.a_holds(&name, &ask).await?;
    let hole = f.net.begin(Fault::BlackHole(Direction::ToServer));
    let releasing = cx.releases(&held);
    struck(&cx, &hole, "A's release is lost on the way").await?;
    f.cut(Cut::Reset)?;
    let what = "a release that is lost on the way";
    let released = cx.within(patience(&cx), what, releasing).await?;
    if released.is_err() {
        cx.evidence("failed_releases");
    }
    // From now on a leftover renewer would reach the store.
    hole.heal();
    let by = cx.lapsed_by(ask.ttl);
    cx.passes_by(&*f.b, &name, &ask, by, "after A's release had failed")
        .await
}
