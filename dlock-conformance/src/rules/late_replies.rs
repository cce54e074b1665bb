//! The bodies of rules about replies that come late: 1.05, 3.03, 3.13, 5.07, 6.07.

use super::faulty::{faulty, patience, struck};
use super::prelude::*;

rules! {
    a_grant_is_live, the_deadline_counts_from_the_send, a_retried_grant_keeps_its_end,
    only_an_answer_moves_the_deadline, lost_is_for_ever,
}

rule! { "1.05" Must phase 1 [Lock, Wait, Lease] Engine P T a_grant_is_live, evidence ["late_grants" >= 2],
    bug "no_check_after_wait", budget 120 s
    "A grant that is already over is never handed out: the call fails, or goes on waiting within its \
        deadline."
    why "The reply came after the lease had expired. A caller that gets this guard works beside the next \
        holder from the first moment."
    check "Is the deadline of a grant checked when it arrives, before the guard is made? Is the time that it \
        counts from read before the request is sent?"
}
async fn a_grant_is_live(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask().ttl(cx.ttl(ms(200)));
    for round in 0..2 {
        let name = cx.name(round);
        let (acquiring, hold) = f
            .a_is_granted_unheard(&cx, &name, &ask, Some(ask.ttl * 4))
            .await?;
        cx.sleep(ask.ttl + ask.ttl / 8).await;
        // The grant that arrives now is over.
        hold.heal();
        cx.evidence("late_grants");
        let what = "an acquire whose grant came after its end";
        match cx.within(patience(&cx) + ask.ttl * 4, what, acquiring).await? {
            Ok(held) => {
                ensure!(
                    held.is_valid() && !held.remaining().is_zero(),
                    "{what} handed out a guard that is not valid"
                );
                held.released("A releases what it was granted in the end").await?;
            }
            // `Unavailable`: the session ended in the meantime, and there is no new one yet.
            Err(e) => ensure!(
                matches!(
                    e.kind(),
                    ErrorKind::Timeout | ErrorKind::Unknown | ErrorKind::Lost | ErrorKind::Unavailable
                ),
                "{what} answers {:?}: {e:?}",
                e.kind()
            ),
        }
    }
    Ok(())
}

rule! { "3.03" Must phase 1 [Lock, Lease, PerGrantTtl] Both P T the_deadline_counts_from_the_send,
    evidence ["slow_replies" >= 1], bug "deadline_from_reply", budget 120 s
    "The guard's own deadline is computed from the time at which the request was sent, less the drift \
        margin, never from the reply."
    why "The store counts from the arrival of the request. If the reply takes a second, the holder believes \
        in its lease a second too long."
    check "At which moment is the clock read to which the ttl is added?"
}
async fn the_deadline_counts_from_the_send(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    // A quorum sends two requests for a grant, and waits for at most a quarter of the ttl.
    let (ttl, share) = match cx.claims().members {
        Some(_) => (Duration::from_millis(1_600), 16),
        None => (ms(600), 3),
    };
    let ask = cx.ask().ttl(cx.ttl(ttl));
    let delay = ask.ttl / share;
    let slow = f.net.begin(Fault::Delay(Direction::ToClient, delay));
    let held = f.a_holds(&cx.name("slow"), &ask).await?;
    // The request was sent at least `delay` ago.
    let most = cx.now() + (ask.ttl - delay);
    ensure!(
        held.deadline() <= most,
        "the deadline is {:?} later than the send time of the request plus the ttl; the reply took {delay:?}",
        most.until(held.deadline())
    );
    ensure!(slow.hits() > 0, "the reply was not slow");
    slow.heal();
    cx.evidence("slow_replies");
    held.release().await.seen("A releases")
}

rule! { "3.13" Must phase 2 [Lock, Wait, Lease, PerGrantTtl] Backend P T a_retried_grant_keeps_its_end,
    evidence ["lost_replies" >= 1], bug "retry_full_ttl", budget 120 s
    "An acquire that is retried after a lost reply answers the remaining life of its grant: the local \
        deadline is not later than the store's."
    why "A store that answers a retry with the full ttl promises more than it keeps."
    check "What does the store answer to a request id that it has already granted?"
}
async fn a_retried_grant_keeps_its_end(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let (name, ask) = (cx.name("retried"), cx.ask().ttl(cx.ttl(ms(800))));
    let (acquiring, hold) = f.a_is_granted_unheard(&cx, &name, &ask, None).await?;
    // By now the store counts.
    let granted_by = cx.now();
    cx.sleep(ask.ttl / 2).await;
    f.cut(Cut::Reset)?;
    drop(hold);
    let what = "an acquire whose reply was lost";
    let Some(held) = if_known(cx.within(patience(&cx), what, acquiring).await?, what)? else {
        cx.evidence("lost_replies");
        return Ok(());
    };
    // Unless this is a new grant after that one: then its deadline is later than that one's end.
    let end = granted_by + ask.ttl + cx.skew(ask.ttl);
    if cx.now() < end {
        if held.deadline() > end {
            // Right if the first grant was withdrawn: then the store keeps this new one for that long.
            let by = cx.lapsed_by(ask.ttl);
            let next = cx.free_by(&*f.b, &name, &ask, by, "after A's grant").await?;
            let granted = cx.now();
            ensure!(
                held.deadline() <= granted + cx.skew(ask.ttl),
                "the holder believes in its grant for {:?} after {granted:?}, by when the store had ended it",
                granted.until(held.deadline())
            );
            next.release().await.seen("B releases")?;
        }
        // An answer after the end of that grant is a new grant, which says nothing about the first.
        cx.evidence("lost_replies");
    }
    Ok(())
}

rule! { "5.07" Must phase 1 [Lock, Lease, Renew] Engine P D only_an_answer_moves_the_deadline,
    evidence ["unconfirmed" >= 1, "confirmed" >= 1], bug "optimistic_renew", budget 120 s
    "The local deadline moves only on a confirmed renewal."
    why "A renewal in flight may never arrive. A holder that counts on it works past its lease."
    check "When is the new deadline set: when the request is sent, or when the answer arrives?"
}
async fn only_an_answer_moves_the_deadline(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let held = f.a_holds(&cx.name("renewed"), &cx.ask()).await?;
    let before = held.deadline();
    cx.sleep(ms(20)).await;
    let hole = f.net.begin(Fault::BlackHole(Direction::ToServer));
    let renewing = cx.renews(&held);
    struck(&cx, &hole, "A's renewal is lost on the way").await?;
    ensure!(
        held.deadline() == before,
        "the deadline moved by {:?} with a renewal that was sent and not answered",
        before.until(held.deadline())
    );
    f.cut(Cut::Reset)?;
    let what = "a renewal that does not arrive";
    let renewed = cx.within(patience(&cx), what, renewing).await?;
    ensure!(renewed.is_err(), "{what} was reported as done");
    // A hold that is lost with its connection has no deadline any more, which counts as earlier.
    ensure!(
        held.deadline() == before || (!cx.has(Need::OutlivesConnection) && held.deadline() < before),
        "the deadline moved by {:?} with a renewal that failed",
        before.until(held.deadline())
    );
    cx.evidence("unconfirmed");
    hole.heal();
    let (held, before) = match cx.has(Need::OutlivesConnection) {
        true => (held, before),
        // It was lost with its connection. A new one is renewed over a healthy network.
        false => {
            let name = cx.name("renewed over another connection");
            let held = f.a_holds(&name, &cx.ask()).await?;
            let before = held.deadline();
            cx.sleep(ms(20)).await;
            (held, before)
        }
    };
    let by = cx.now() + patience(&cx);
    // The next renewal may use a connection that was being opened while nothing arrived.
    while let Err(e) = held.renew().await {
        let again = matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Unknown);
        if !again || cx.now() >= by {
            return Err(e).seen("A renews once the network works again");
        }
        ensure!(
            held.deadline() == before,
            "the deadline moved by {:?} with a renewal that failed",
            before.until(held.deadline())
        );
        cx.sleep(ms(10)).await;
    }
    ensure!(
        held.deadline() > before,
        "a confirmed renewal did not move the deadline"
    );
    cx.evidence("confirmed");
    held.release().await.seen("A releases")
}

rule! { "6.07" Must phase 1 [Lock, Lease, Renew, LossSignal, PerGrantTtl] Engine P D lost_is_for_ever,
    evidence ["late_confirmations" >= 1], bug "lost_recovers", budget 120 s
    "A lost guard never becomes valid again, even if a late answer to a renewal says that it was renewed."
    why "The code that got the loss signal has stopped. If the guard became valid again, another part of the \
        program would go on."
    check "Does the code that applies a renewal's answer check in the same step that the deadline has not \
        passed?"
}
async fn lost_is_for_ever(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask().ttl(cx.ttl(ms(300)));
    let held = f.a_holds(&cx.name("renewed late"), &ask).await?;
    let hold = f.net.begin(Fault::Hold(Direction::ToClient));
    let renewing = cx.renews(&held);
    struck(&cx, &hold, "the reply to A's renewal is kept").await?;
    cx.sleep_until(held.deadline() + ms(5)).await;
    held.must_be_over("a guard is valid past its deadline, before its renewal was answered")?;
    let limit = cx.slack() + ms(1);
    let what = "the loss signal of a guard that is past its deadline";
    cx.within(limit, what, held.lost()).await?;
    // It says that the lease is renewed, and it is too late.
    hold.heal();
    cx.evidence("late_confirmations");
    let doing = "a renewal whose answer came late";
    let renewed = cx.within(patience(&cx), doing, renewing).await?;
    ensure!(
        renewed.is_err(),
        "a renewal that was answered after the loss was reported as done"
    );
    for _ in 0..10 {
        ensure!(
            !held.is_valid() && held.remaining().is_zero() && held.loss().is_some(),
            "a guard that was lost is valid again after the late answer to a renewal"
        );
        cx.sleep(ask.ttl / 20).await;
    }
    Ok(())
}
