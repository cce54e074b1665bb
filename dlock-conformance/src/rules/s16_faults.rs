//! §16 Connection, session, process, server, clock.

use dlock_core::{Error, LockOptions};
use futures::FutureExt as _;
use futures::future::{BoxFuture, join3};

use super::faulty::{faulty, patience, struck};
use super::prelude::*;

rules! {
    a_reset_is_survived, a_black_hole_ends_every_call, a_cut_wait_goes_on, a_server_comes_back,
    latency_shortens_validity, lapsed_place_is_not_granted, partition_costs_one_client,
}

rule! { "16.01" Must phase 1 [Lease, AutoRenew, LossSignal, OutlivesConnection] Both P T a_reset_is_survived,
    evidence ["kept" >= 2, "lost" >= 1], bug "no_reconnect", budget 120 s
    "If a connection is reset while a guard renews, the client reconnects and the lock is kept. If that \
        takes too long, the loss is signalled by the deadline."
    why "Connections break every day. A client that does not reconnect loses all its locks."
    check "What reconnects, and does the next renewal use the new connection?"
}
async fn a_reset_is_survived(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask().ttl(cx.kept_ttl(ms(600))).auto_renew();
    let held = f.a_holds(&cx.name("held"), &ask).await?;
    for how in [Cut::Reset, Cut::Fin] {
        let lost = held.lost();
        f.cut(how)?;
        if let Some(reason) = cx.timeout(ask.ttl + ask.ttl / 4, lost).await {
            fail!("a guard with auto-renewal was lost to a broken connection ({how:?}): {reason:?}");
        }
        held.must_be_valid("a guard with auto-renewal is not valid after its connection broke")?;
        cx.evidence("kept");
    }
    let lost = held.lost();
    let away = f.net.begin(Fault::Away);
    let limit = ask.ttl + cx.slack();
    let what = "the loss signal of a guard whose server is unreachable";
    cx.within(limit, what, lost).await?;
    cx.evidence("lost");
    away.heal();
    Ok(())
}

rule! { "16.02" Must phase 1 [Lock, Lease, Try] Both P T a_black_hole_ends_every_call,
    evidence ["ended_calls" >= 2], bug "no_op_timeout", budget 120 s
    "On a connection that no longer delivers anything, operations end within the claimed bound, a wait with \
        a limit ends at that limit plus slack, and a loss, where losses are signalled, is signalled by the \
        deadline."
    why "TCP alone waits for a quarter of an hour, and a program without its own timeout hangs for as long."
    check "Does every request have its own timeout?"
}
async fn a_black_hole_ends_every_call(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask();
    let renewed = f.a_holds(&cx.name("renewed"), &ask).await?;
    let released = f.a_holds(&cx.name("released"), &ask).await?;
    let renewing = cx.ask().ttl(cx.short_ttl()).auto_renew();
    let kept = match cx.has(Need::AutoRenew) && cx.has(Need::LossSignal) {
        true => Some(f.a_holds(&cx.name("kept"), &renewing).await?),
        false => None,
    };
    let (tried, waited) = (cx.name("tried"), cx.name("waited for"));
    let mut calls: Vec<(&str, BoxFuture<'_, Option<Error>>)> = vec![
        ("a release", async { released.release().await.err() }.boxed()),
        (
            "a try",
            async { f.a.try_acquire(&tried, &ask).await.err() }.boxed(),
        ),
    ];
    if cx.has(Need::Renew) {
        calls.push(("a renewal", async { renewed.renew().await.err() }.boxed()));
    }
    let token = renewed.token().filter(|_| cx.has(Need::Resource));
    if let Some((gate, token)) = f.a.gate().zip(token) {
        let resource = &tried;
        let write = async move { gate.write(resource, token, b"late").await.err() };
        calls.push(("a write to a fenced resource", write.boxed()));
    }
    if let Some(observed) = f.a.observe().filter(|_| cx.has(Need::Inspect)) {
        let inspect = async { observed.inspect(&tried).await.err() };
        calls.push(("an inspection", inspect.boxed()));
    }
    let hole = f.net.begin(Fault::BlackHole(Direction::Both));
    let (from, limit) = (cx.now(), ms(50));
    let calls = join_all(calls.into_iter().map(async |(what, call)| {
        let what = format!("{what} over a black hole");
        match cx.within(patience(&cx), &what, call).await? {
            Some(_) => cx.evidence("ended_calls"),
            None => fail!("{what} was answered"),
        }
        Ok(())
    }));
    let waits = async {
        let wait = f.a.acquire_timeout(&waited, &ask, limit);
        let answer = cx.within(patience(&cx), "a wait over a black hole", wait).await?;
        let took = from.until(cx.now());
        ensure!(answer.is_err(), "a wait over a black hole was answered");
        ensure!(
            took <= limit + LockOptions::WITHDRAWAL + cx.slack(),
            "a wait with a limit of {limit:?} took {took:?} over a black hole"
        );
        Ok(())
    };
    let losses = async {
        let Some(kept) = &kept else { return Ok(()) };
        cx.within(patience(&cx), "the loss signal over a black hole", kept.lost())
            .await?;
        let took = from.until(cx.now());
        ensure!(
            took <= renewing.ttl + cx.slack(),
            "the loss was signalled {took:?} after the last message that arrived; the ttl is {:?}",
            renewing.ttl
        );
        Ok(())
    };
    let (losses, waits, calls) = futures::join!(losses, waits, calls);
    losses.and(waits)?;
    calls.into_iter().collect::<Verdict>()?;
    ensure!(hole.hits() > 0, "the black hole took nothing");
    hole.heal();
    Ok(())
}

rule! { "16.03" Must phase 1 [Lock, Wait] Both P T a_cut_wait_goes_on, evidence ["resumed_or_erred" >= 3],
    bug "waiter_hangs_on_cut", budget 120 s
    "A wait whose connection breaks resumes or fails. It never hangs."
    why "The notification went to a connection that is gone. A waiter that does not try again waits for ever."
    check "What happens to a registered waiter when its stream of notifications ends?"
}
async fn a_cut_wait_goes_on(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask();
    for (how, lost_push) in [(Cut::Reset, false), (Cut::Fin, false), (Cut::Reset, true)] {
        let name = cx.name(format_args!("{how:?}-{lost_push}"));
        let before = f.b.acquire(&name, &ask).await.seen("B acquires a free name")?;
        let waiting = cx.waits(&f.a, &name, &ask);
        // Long enough that it waits.
        cx.sleep(ms(50)).await;
        ensure!(!waiting.is_done(), "A does not wait while B holds");
        if lost_push {
            // The notification of the release, if there is one, is in flight when the connection breaks.
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
        let what = format!("A's wait, whose connection broke ({how:?})");
        if let Ok(held) = cx.within(patience(&cx), what, waiting).await? {
            held.release().await.seen("A releases")?;
        }
        cx.evidence("resumed_or_erred");
    }
    Ok(())
}

rule! { "16.09" Must phase 1 [Lock, Try] Both P T a_server_comes_back,
    evidence ["unavailable" >= 1, "recovered" >= 2], bug "no_recovery", budget 120 s
    "While the server is unreachable a call answers Unavailable within the claimed bound. When the server is \
        back, the same client works again."
    why "If a client has to be recreated after each restart of the server, every restart is an outage."
    check "Is a failed connection discarded, so that the next call makes a new one?"
}
async fn a_server_comes_back(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask();
    for round in 0..2 {
        let name = cx.name(round);
        let away = f.net.begin(Fault::Away);
        if round == 0 {
            let what = "a try while the server is unreachable";
            let by = cx.now() + patience(&cx);
            // One may go into the connection that broke, one into a new one: these do not know.
            loop {
                match cx
                    .within(patience(&cx), what, f.a.try_acquire(&name, &ask))
                    .await?
                {
                    Ok(_) => fail!("{what} was answered"),
                    Err(e) if e.kind() == ErrorKind::Unavailable => break,
                    Err(e) if e.kind() == ErrorKind::Unknown && cx.now() < by => {}
                    Err(e) => fail!("{what} answers {:?}, not Unavailable: {e:?}", e.kind()),
                }
                cx.sleep(ms(10)).await;
            }
            cx.evidence("unavailable");
        }
        away.heal();
        let doing = "an acquire after the server came back";
        let again = cx.within(patience(&cx), doing, f.a.acquire(&name, &ask));
        let held = again.await?.seen("A acquires after the server came back")?;
        held.released("A releases after the server came back").await?;
        cx.evidence("recovered");
    }
    Ok(())
}

rule! { "16.10" Must phase 1 [Lock, Lease, Try, Renew, PerGrantTtl] Both P T latency_shortens_validity,
    evidence ["slow_round_trips" >= 2, "hand_overs" >= 1], bug "ignores_latency", budget 120 s
    "With a round trip of nearly half a ttl exclusion still holds: the holder's local validity is shorter by \
        the round trip, after an acquire and after a renewal."
    why "A holder that counts the lease from the reply believes in it longer than the store does, by the \
        whole latency."
    check "From which moment is the deadline counted: before the send, or after the reply?"
}
async fn latency_shortens_validity(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    // A quorum sends two requests for a grant, and waits for at most a quarter of the ttl.
    let (ttl, share) = match cx.claims().members {
        Some(_) => (Duration::from_millis(1_600), 32),
        None => (ms(800), 5),
    };
    let (name, ask) = (cx.name("far away"), cx.ask().ttl(cx.ttl(ttl)));
    let slow = f.net.begin(Fault::Delay(Direction::Both, ask.ttl / share));
    let round_trip = ask.ttl * 2 / share;
    // What is left when the reply is here, and a little for what else takes time.
    let most = ask.ttl - round_trip + round_trip / 4;
    let held = f.a_holds(&name, &ask).await?;
    for after in ["an acquire", "a renewal"] {
        if after == "a renewal" {
            held.renew().await.seen("A renews over a slow network")?;
        }
        ensure!(
            held.remaining() <= most,
            "with a round trip of {round_trip:?} a lease of {:?} is valid for {:?} after {after}",
            ask.ttl,
            held.remaining()
        );
        cx.evidence("slow_round_trips");
    }
    struck(&cx, &slow, "A's requests and replies are slow").await?;
    let deadline = held.deadline();
    let by = cx.lapsed_by(ask.ttl);
    let then = "after A let its lease lapse";
    let taken = cx.free_by(&*f.b, &name, &ask, by, then).await?;
    let now = cx.now();
    ensure!(
        deadline <= now + cx.skew(ask.ttl),
        "B was granted {:?} before A's deadline",
        now.until(deadline)
    );
    cx.evidence("hand_overs");
    slow.heal();
    taken.release().await.seen("B releases")
}

/// How long to wait until it is queued, after the first answer: the rest of its requests are in flight.
const IN_LINE: Duration = ms(50);

rule! { "3.09" Must phase 2 [Lock, Wait, Try, Lease, PerGrantTtl] Both P T lapsed_place_is_not_granted,
    evidence ["lapsed_places" >= 1, "held_back" >= 1], bug "stale_waiter_granted", budget 120 s
    "A waiter that is cut off until its queue entry lapses is not granted through that entry. The store \
        passes on to the waiters that are connected, and the waiter does not believe that it holds the lock \
        when it is back."
    why "A waiter whose own session ended can mistake the end of its wait for a grant. It is then a second \
        holder (etcd 11456)."
    check "When the wait ends, does the waiter check that its own entry still exists, or only that the \
        entries before it are gone?"
}
async fn lapsed_place_is_not_granted(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let c = cx.connect().await?;
    let (long, short) = (cx.ask(), cx.ask().ttl(cx.short_ttl()));
    let faults = [Fault::Hold(Direction::Both), Fault::BlackHole(Direction::Both)];
    for fault in &faults[..cx.rounds(1, 2)] {
        let name = cx.name(format_args!("{fault:?}"));
        let before = f.b.acquire(&name, &long).await.seen("B acquires a free name")?;
        let answered = f.net.traffic().replies;
        let mut waiting = cx.waits(&f.a, &name, &short);
        let by = cx.now() + cx.claims().op_bound;
        if !cx.comes(by, || f.net.traffic().replies > answered).await {
            inconclusive!("A, which waits, was not answered");
        }
        // Queueing may take more than one request.
        cx.sleep(IN_LINE).await;
        let away = f.net.begin(*fault);
        struck(&cx, &away, "A, which waits, can no longer reach the store").await?;
        // Nothing has kept its queue entry alive since.
        cx.sleep(short.ttl + cx.skew(short.ttl)).await;
        ensure!(!waiting.is_done(), "A does not wait while B holds");
        cx.evidence("lapsed_places");
        match before.release().await {
            Ok(()) => {}
            // A was cut off within a request, and keeps the store busy. B retries automatically.
            Err(e) if e.kind() == ErrorKind::Unknown => cx.sleep(patience(&cx)).await,
            Err(e) => return Err(e).seen("B releases"),
        }
        let by = cx.now() + cx.slack();
        let when = "after B's release, with a waiter whose queue entry had lapsed";
        let taken = cx.free_by(&*c, &name, &long, by, when).await?;
        let what = "A, whose queue entry lapsed while it was cut off,";
        // Now it is back, and the name is C's.
        away.heal();
        let early = cx.timeout(short.ttl, &mut waiting).await;
        match &early {
            Some(Ok(_)) => fail!("{what} was granted while C holds"),
            Some(Err(_)) => cx.evidence("waits_ended"),
            None => cx.evidence("waits_gone_on"),
        }
        cx.evidence("held_back");
        taken.release().await.seen("C releases what it was granted")?;
        if early.is_none() {
            match cx.within(patience(&cx) + short.ttl, what, waiting).await? {
                Ok(held) => {
                    ensure!(held.is_valid(), "{what} got a guard that is not valid");
                    held.released("A releases what it was granted in the end").await?;
                }
                Err(e) => cx.note(format_args!("{what} got {:?}", e.kind())),
            }
        }
    }
    Ok(())
}

rule! { "16.13" Must phase 2 [Lock, Wait, Lease, AutoRenew, LossSignal] Both P T partition_costs_one_client,
    evidence ["lost" >= 3, "handed_over" >= 3, "undisturbed" >= 10, "back_again" >= 1],
    bug "partition_blocks_all", budget 120 s
    "A client that is cut off loses its locks, each by the deadline. Their waiters get them within the ttl \
        plus slack, and all other clients are not affected."
    why "One machine behind a broken switch must not stop everyone else."
    check "Does anything in the store wait for a client: for its answer to an expiry, for room in its \
        connection, for a lock held during the wait?"
}
async fn partition_costs_one_client(cx: Cx) -> Verdict {
    const LOCKS: usize = 3;
    let f = faulty(&cx).await?;
    let c = cx.connect().await?;
    let (plain, renewing) = (cx.ask(), cx.ask().ttl(cx.short_ttl()).auto_renew());
    let ways = [Direction::Both, Direction::ToServer];
    for way in &ways[..cx.rounds(1, 2)] {
        let names: Vec<_> = (0..LOCKS).map(|n| cx.name(format_args!("{way:?}-{n}"))).collect();
        let mut held = Vec::new();
        for name in &names {
            held.push(f.a_holds(name, &renewing).await?);
        }
        let waiting: Vec<_> = names.iter().map(|name| cx.waits(&f.b, name, &plain)).collect();
        // Long enough that B waits, and that A has renewed.
        cx.sleep(renewing.ttl / 2).await;
        ensure!(
            !waiting.iter().any(|waiting| waiting.is_done()),
            "B does not wait while A holds"
        );
        let hole = f.net.begin(Fault::BlackHole(*way));
        let from = cx.now();
        let ttl = held[0].ttl();
        let by = from + ttl + cx.skew(ttl) + cx.slack();
        let lost = join_all(held.iter().map(|held| cx.timeout(from.until(by), held.lost())));
        let handed_over = join_all(waiting.into_iter().map(|task| {
            let cx = &cx;
            async move {
                let what = "B's wait for a lock of the client that is cut off";
                cx.evidence("handed_over");
                cx.served(from.until(by), what, task).await
            }
        }));
        let undisturbed = async {
            let mut n = 0;
            while cx.now() < by {
                let name = cx.name(format_args!("{way:?}-others-{n}"));
                let what = "C, which is not cut off, acquires a free name";
                let held = cx.within(cx.claims().op_bound, what, c.acquire(&name, &plain));
                held.await?.seen(what)?.release().await.seen("C releases")?;
                cx.evidence("undisturbed");
                cx.sleep(ms(5)).await;
                n += 1;
            }
            Ok::<(), Failure>(())
        };
        let (lost, handed_over, undisturbed) = join3(lost, handed_over, undisturbed).await;
        undisturbed?;
        handed_over.into_iter().collect::<Verdict<()>>()?;
        if hole.hits() == 0 {
            inconclusive!("nothing of the client that was cut off was lost");
        }
        for reason in lost {
            ensure!(
                reason.is_some(),
                "a guard of the client that is cut off was not lost by {:?} after that",
                from.until(by)
            );
            cx.evidence("lost");
        }
        hole.heal();
        let what = "the client that was cut off, once it is not";
        let again = f.a.acquire(&names[0], &plain);
        cx.served(patience(&cx) + ttl, what, again).await?;
        cx.evidence("back_again");
    }
    Ok(())
}
