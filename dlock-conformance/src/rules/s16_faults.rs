//! §16 Connection, session, process, server, clock.

use dlock_core::LockOptions;

use super::faulty::{faulty, patience, struck};
use super::prelude::*;
use crate::network::{Cut, Direction, Fault};

rules! {
    a_reset_is_survived, a_black_hole_ends_every_call, a_cut_wait_goes_on, a_server_comes_back,
    latency_shortens_validity,
}

rule! { "16.01" Must phase 1 [Lease, AutoRenew, LossSignal, OutlivesConnection] Both P T a_reset_is_survived,
    evidence ["kept" >= 2, "lost" >= 1], bug "no_reconnect", budget 120 s
    "A connection that is reset while a guard renews itself is made anew, and the lock is kept; if that \
        takes too long, the loss is told by the deadline."
    why "Connections break every day; a client that stays dead behind one loses every lock that it holds."
    check "Who connects again, and does the renewal after that go over the new connection?"
}
async fn a_reset_is_survived(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask().ttl(cx.ttl(ms(600))).auto_renew();
    let held = f.a.acquire(&cx.name("held"), &ask).await.seen("A acquires")?;
    for how in [Cut::Reset, Cut::Fin] {
        let lost = held.lost();
        f.cut(how)?;
        if let Some(reason) = cx.timeout(ask.ttl + ask.ttl / 4, lost).await {
            fail!("a guard that renews itself was lost to a connection that broke ({how:?}): {reason:?}");
        }
        ensure!(
            held.is_valid(),
            "a guard that renews itself is not valid after its connection broke"
        );
        cx.evidence("kept");
    }
    let lost = held.lost();
    let away = f.net.begin(Fault::Away);
    let limit = ask.ttl + cx.slack();
    let what = "the loss signal of a guard whose server is away";
    cx.within(limit, what, lost).await?;
    cx.evidence("lost");
    away.heal();
    Ok(())
}

rule! { "16.02" Must phase 1 [Lock, Lease, Try, Renew, AutoRenew, LossSignal] Both P T
        a_black_hole_ends_every_call,
    evidence ["ended_calls" >= 4, "lost" >= 1], bug "no_op_timeout", budget 120 s
    "Over a connection on which nothing arrives any more, operations end within the claimed bound, a wait \
        with a limit at that limit plus slack, and loss is told by the deadline."
    why "TCP alone waits for a quarter of an hour; a program that waits with it is hung."
    check "Has every request a time limit of its own?"
}
async fn a_black_hole_ends_every_call(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let renewing = cx.ask().ttl(cx.short_ttl()).auto_renew();
    let ask = cx.ask();
    let kept = f.a.acquire(&cx.name("kept"), &renewing).await;
    let kept = kept.seen("A acquires")?;
    let renewed = f.a.acquire(&cx.name("renewed"), &ask).await;
    let renewed = renewed.seen("A acquires another")?;
    let released = f.a.acquire(&cx.name("released"), &ask).await;
    let released = released.seen("A acquires a third")?;
    let (tried, waited) = (cx.name("tried"), cx.name("waited for"));
    let lost = kept.lost();
    let fenced = f.a.gate().filter(|_| cx.has(Need::Resource));
    let written = fenced.zip(kept.token());
    let observed = f.a.observe().filter(|_| cx.has(Need::Inspect));
    let hole = f.net.begin(Fault::BlackHole(Direction::Both));
    let (from, limit) = (cx.now(), ms(50));
    let calls = async {
        futures::join!(
            renewed.renew(),
            released.release(),
            f.a.try_acquire(&tried, &ask),
            async {
                let answer = f.a.acquire_timeout(&waited, &ask, limit).await;
                (answer, from.until(cx.now()))
            },
            async {
                let (gate, token) = written?;
                Some(gate.write(&tried, token, b"late").await.err())
            },
            async { Some(observed?.inspect(&tried).await.err()) },
            async {
                lost.await;
                cx.now()
            },
        )
    };
    let (renewal, release, tried, (waited, took), write, inspection, lost_at) =
        cx.within(patience(&cx), "calls over a black hole", calls).await?;
    ensure!(
        from.until(lost_at) <= renewing.ttl + cx.slack(),
        "loss was told {:?} after the last thing that arrived; the ttl is {:?}",
        from.until(lost_at),
        renewing.ttl
    );
    cx.evidence("lost");
    ensure!(
        took <= limit + LockOptions::WITHDRAWAL + cx.slack(),
        "a wait with a limit of {limit:?} took {took:?} over a black hole"
    );
    let calls = [
        ("a renewal", Some(renewal.err())),
        ("a release", Some(release.err())),
        ("a try", Some(tried.err())),
        ("an acquire", Some(waited.err())),
        ("a write to a fenced resource", write),
        ("an inspection", inspection),
    ];
    for (what, error) in calls {
        ensure!(
            !matches!(error, Some(None)),
            "{what} over a black hole was answered"
        );
        cx.evidence_by("ended_calls", error.is_some().into());
    }
    ensure!(hole.hits() > 0, "the black hole took nothing");
    hole.heal();
    Ok(())
}

rule! { "16.03" Must phase 1 [Lock, Wait] Both P T a_cut_wait_goes_on, evidence ["resumed_or_erred" >= 3],
    bug "waiter_hangs_on_cut", budget 120 s
    "A wait whose connection breaks resumes or errs; it never hangs."
    why "The notification went to a connection that is gone; a waiter that does not look again waits for \
        ever."
    check "What happens to a registered waiter when its stream of notifications ends?"
}
async fn a_cut_wait_goes_on(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask();
    for (how, lost_push) in [(Cut::Reset, false), (Cut::Fin, false), (Cut::Reset, true)] {
        let name = cx.name(format_args!("{how:?}-{lost_push}"));
        let before = f.b.acquire(&name, &ask).await.seen("B acquires a free name")?;
        let waiting = f.a_acquires(&cx, &name, &ask, None);
        // Long enough that it waits.
        cx.sleep(ms(50)).await;
        ensure!(!waiting.is_done(), "A does not wait while B holds");
        if lost_push {
            // The news of the release, if the store sends any, is on its way when the connection breaks.
            let hold = f.net.begin(Fault::Hold(Direction::ToClient));
            before.release().await.seen("B releases")?;
            cx.sleep(ms(20)).await;
            f.cut(how)?;
            drop(hold);
        } else {
            f.cut(how)?;
            cx.sleep(ms(20)).await;
            before.release().await.seen("B releases")?;
        }
        let what = format!("A's wait, the connection of which broke ({how:?})");
        if let Ok(held) = cx.within(patience(&cx), what, waiting).await? {
            held.release().await.seen("A releases")?;
        }
        cx.evidence("resumed_or_erred");
    }
    Ok(())
}

rule! { "16.09" Must phase 1 [Lock, Try] Both P T a_server_comes_back,
    evidence ["unavailable" >= 1, "recovered" >= 2], bug "no_recovery", budget 120 s
    "While the server is away a call answers Unavailable within the claimed bound; when it is back the same \
        client works again."
    why "A client that has to be thrown away after each restart of the server makes every restart an outage."
    check "Is a failed connection forgotten, so that the next call makes a new one?"
}
async fn a_server_comes_back(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask();
    for round in 0..2 {
        let name = cx.name(round);
        let away = f.net.begin(Fault::Away);
        if round == 0 {
            let what = "a try while the server is away";
            let by = cx.now() + patience(&cx);
            // One may go into the connection that has just broken, and another into one that was being made:
            // these do not know. Then there is no server.
            loop {
                match cx
                    .within(patience(&cx), what, f.a.try_acquire(&name, &ask))
                    .await?
                {
                    Ok(_) => fail!("{what} was answered"),
                    Err(e) if e.kind() == ErrorKind::Unavailable => break,
                    Err(e) if e.kind() == ErrorKind::Unknown && cx.now() < by => {}
                    Err(e) => fail!("{what} answers {:?}, not Unavailable: {e}", e.kind()),
                }
                cx.sleep(ms(10)).await;
            }
            cx.evidence("unavailable");
        }
        away.heal();
        let doing = "an acquire after the server came back";
        let again = cx.within(patience(&cx), doing, f.a.acquire(&name, &ask));
        let held = again.await?.seen("A acquires after the server came back")?;
        let released = held.release().await;
        released.seen("A releases after the server came back")?;
        cx.evidence("recovered");
    }
    Ok(())
}

rule! { "16.10" Must phase 1 [Lock, Lease, Try, Renew, PerGrantTtl] Both P T latency_shortens_validity,
    evidence ["slow_round_trips" >= 2, "hand_overs" >= 1], bug "ignores_latency", budget 120 s
    "With a round trip of nearly half a ttl exclusion holds: what a holder may believe is shorter by that, \
        after an acquire and after a renewal."
    why "Whoever counts the lease from the reply believes longer than the store by the whole latency."
    check "From which moment does the deadline count: before the send, or after the reply?"
}
async fn latency_shortens_validity(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    // A quorum asks twice for a grant, and waits for a quarter of the ttl at the most.
    let (ttl, share) = match cx.claims().members {
        Some(_) => (Duration::from_millis(1_600), 32),
        None => (ms(800), 5),
    };
    let (name, ask) = (cx.name("far away"), cx.ask().ttl(cx.ttl(ttl)));
    let slow = f.net.begin(Fault::Delay(Direction::Both, ask.ttl / share));
    let round_trip = ask.ttl * 2 / share;
    // What is left when the reply is here, and a little for what else takes time.
    let most = ask.ttl - round_trip + round_trip / 4;
    let held = f.a.acquire(&name, &ask).await;
    let held = held.seen("A acquires over a slow network")?;
    ensure!(
        held.remaining() <= most,
        "with a round trip of {round_trip:?} a lease of {:?} is valid for {:?} after an acquire",
        ask.ttl,
        held.remaining()
    );
    cx.evidence("slow_round_trips");
    held.renew().await.seen("A renews over a slow network")?;
    ensure!(
        held.remaining() <= most,
        "with a round trip of {round_trip:?} a lease of {:?} is valid for {:?} after a renewal",
        ask.ttl,
        held.remaining()
    );
    cx.evidence("slow_round_trips");
    struck(&cx, &slow, "A's requests and replies are slow").await?;
    let deadline = held.deadline();
    let by = cx.now() + ask.ttl + cx.skew(ask.ttl) + cx.slack();
    let then = "after A let its lease lapse";
    let taken = cx.free_by(&*f.b, &name, &ask, by, then).await?;
    let now = cx.now();
    ensure!(
        deadline <= now + cx.skew(ask.ttl),
        "B was granted {:?} before A stopped to believe",
        now.until(deadline)
    );
    cx.evidence("hand_overs");
    slow.heal();
    taken.release().await.seen("B releases")?;
    Ok(())
}
