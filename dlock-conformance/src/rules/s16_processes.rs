//! §16, the part about processes that are killed and stopped.

use super::prelude::*;
use super::s07_resource::{admitted, stale_is_refused};

rules! {
    a_killed_holder_is_replaced, a_resumed_holder_knows, a_short_stop_loses_nothing,
}

rule! { "16.05" Must phase 1 [Lock, Wait, Try, Lease] Both C T a_killed_holder_is_replaced,
    evidence ["kills" >= 2], bug "kill_leaks", budget 120 s
    "The lock of a killed process is free no later than its ttl plus slack after its death, both for tries \
        and for waiters."
    why "Deployments and the kernel kill processes every day. A lock that outlives its holder stops everyone."
    check "Does anything but the lease decide when a dead holder's lock is free?"
}
async fn a_killed_holder_is_replaced(cx: Cx) -> Verdict {
    let b = cx.connect().await?;
    let ask = cx.renewing(cx.ask().ttl(cx.short_ttl()));
    for round in 0..cx.rounds(1, 20) {
        for how in ["tries", "waits"] {
            let name = cx.name(format_args!("{how}-{round}"));
            let child = cx.child().await?;
            let held = child.wait_for(&name, &ask, Some(cx.claims().op_bound)).await;
            let held = held.seen("the child acquires")?.value;
            b.is_refused(&name, &cx.ask(), "while the child holds").await?;
            let waiting = (how == "waits").then(|| cx.waits(&b, &name, &cx.ask()));
            if waiting.is_some() {
                // It is to be waiting when the holder dies.
                cx.sleep(ms(20)).await;
            }
            let killed = child.kill()?;
            let bound = ask.ttl + cx.slack();
            let next = match waiting {
                None => {
                    let by = killed.answered + bound;
                    cx.free_by(&*b, &name, &cx.ask(), by, "the holder was killed")
                        .await?
                }
                Some(waiting) => {
                    let what = "the holder was killed; the one that waits";
                    cx.done(bound, what, waiting).await?
                }
            };
            let took = killed.asked.until(cx.now());
            cx.note(format!("B {how}: granted {took:?} after the kill"));
            next.release().await.seen("B releases")?;
            drop(held);
            cx.evidence("kills");
        }
    }
    Ok(())
}

rule! { "16.06" Must phase 1 [Lock, Wait, Try, Lease] Both C T a_resumed_holder_knows,
    evidence ["looks" >= 2], bug "resume_thinks_valid"
    "A process that was stopped for longer than its ttl sees the loss at its first look at the guard, before \
        any I/O. The loss signal fires, its late release changes nothing, and fenced writes, where \
        supported, are refused."
    why "A paused process continues in the middle of its work. The first answer that it gets must be true."
    check "Is validity computed from a clock that runs while the process is stopped, or from its own timers? \
        Does the store release by the id of the acquisition, and not by name?"
}
async fn a_resumed_holder_knows(cx: Cx) -> Verdict {
    let (b, child) = (cx.connect().await?, cx.child().await?);
    let fenced = cx.has(Need::Fence) && cx.has(Need::Resource);
    for round in 0..cx.rounds(2, 10) {
        let (name, resource) = (cx.name(round), cx.name(format_args!("resource-{round}")));
        let plain = cx.ask().ttl(cx.short_ttl());
        // One that renews itself, and one that does not.
        let renews = round % 2 == 0 && cx.has(Need::AutoRenew);
        let ask = if renews { plain.clone().auto_renew() } else { plain };
        let held = child.wait_for(&name, &ask, Some(cx.claims().op_bound)).await;
        let held = held.seen("the child acquires")?.value;
        let signal = cx.has(Need::LossSignal).then(|| held.signal());
        if renews {
            // Its next renewal is far now: it is stopped while nothing of it is in the store.
            held.renew().await.seen("the child renews")?;
        }
        let before = held.look().await.seen("the child looks at its guard")?.value;
        if !before.is_valid {
            inconclusive!("the guard was over before its process could be stopped");
        }
        let stopped = child.stop()?;
        // Past the deadline, by any clock.
        cx.sleep_until(stopped.answered + ask.ttl + cx.skew(ask.ttl))
            .await;
        let by = stopped.answered + ask.ttl + cx.slack();
        let then = "the holder is stopped";
        let next = cx.free_by(&*b, &name, &cx.ask(), by, then).await?;
        // In its pipe when it goes on. The thread that reads the look answers it, before any I/O.
        let look = held.look();
        let late = match (b.gate(), fenced) {
            (Some(gate), true) => {
                let (old, new) = (token_of(&held, "the child")?, token_of(&*next, "B")?);
                let written = gate.write(&resource, new, b"B's").await.seen("B writes")?;
                admitted(written, "the newest holder's write")?;
                Some((new, child.write(&resource, old, b"late")))
            }
            _ => None,
        };
        let resumed = child.resume()?;
        let doing = "the first look of a process that continues";
        let look = cx.within(cx.claims().op_bound, doing, look).await?;
        let look = look.seen("the child looks at its guard")?.value;
        ensure!(
            !look.is_valid,
            "the process was stopped for {:?}, its ttl is {:?}; when it continues its guard says that {:?} \
                are left",
            stopped.answered.until(resumed.asked),
            ask.ttl,
            look.remaining
        );
        cx.evidence("looks");
        if let Some(signal) = signal {
            let what = "the loss signal of a process that continues after its ttl";
            cx.done(cx.slack(), what, signal).await?;
        }
        if let Some((new, late)) = late {
            let late = late.await.seen("the child writes late")?.value;
            stale_is_refused(late, new, "the late write of a stopped process")?;
        }
        let answer = held.release().await;
        is_lost(answer, "the release of a hold that was lost in the meantime")?;
        let when = "after the late release of the process that had lost it";
        let third = cx.connect().await?;
        third.is_refused(&name, &cx.ask(), when).await?;
        next.release().await.seen("B releases")?;
    }
    Ok(())
}

rule! { "16.07" Must phase 2 [Lock, Wait, Lease, Renew, AutoRenew, LossSignal] Both C T
        a_short_stop_loses_nothing,
    evidence ["short_stops" >= 1], bug "hair_trigger_loss"
    "A process that is stopped for half of a freshly renewed ttl keeps its lock, and goes on renewing it."
    why "A lock that is lost at every garbage collection or load peak is of no use."
    check "Does anything but the deadline decide that a hold is over: a late renewal, or a gap in the timers?"
}
async fn a_short_stop_loses_nothing(cx: Cx) -> Verdict {
    let (b, child) = (cx.connect().await?, cx.child().await?);
    // Half of it is for the stop, half for the renewal afterwards, which may be late by the slack.
    let ttl = cx.ttl((cx.slack() * 3).max(ms(800)));
    let ask = cx.ask().ttl(ttl).auto_renew();
    for name in cx.names(1, 5) {
        let held = child.wait_for(&name, &ask, Some(cx.claims().op_bound)).await;
        let held = held.seen("the child acquires")?.value;
        let signal = held.signal();
        held.renew().await.seen("the child renews")?;
        // The renewed ttl. For a lock of a session it is the session's.
        let ttl = held.ttl().min(ttl);
        let stopped = child.stop()?;
        // From its request on, for what the lease lasts; and for a while at least that it really stood still.
        cx.sleep_until((stopped.asked + ttl / 2).max(stopped.answered + ttl / 4))
            .await;
        let look = held.look();
        let resumed = child.resume()?;
        if stopped.asked.until(resumed.answered) > ttl * 3 / 4 {
            inconclusive!(
                "the process was stopped for {:?} of a ttl of {ttl:?}: too long",
                stopped.asked.until(resumed.answered)
            );
        }
        cx.evidence("short_stops");
        let look = look.await.seen("the child looks at its guard")?.value;
        ensure!(
            look.is_valid,
            "the process was stopped for {:?}, with a ttl of {ttl:?} just renewed; its guard says that it is \
                lost ({:?})",
            stopped.asked.until(resumed.asked),
            look.loss
        );
        // And it goes on renewing: beyond the end that the lease had when it was stopped.
        if let Some(reason) = cx.timeout(ttl, signal).await {
            ensure!(false, "a stop of half of its ttl lost the lock: {reason:?}");
        }
        b.is_refused(&name, &cx.ask(), "after a stop of half of the ttl")
            .await?;
        let look = held.look().await.seen("the child looks at its guard")?.value;
        ensure!(
            look.is_valid,
            "one ttl after a short stop the guard says that it is lost: {:?}",
            look.loss
        );
        held.release().await.seen("the child releases")?;
    }
    Ok(())
}
