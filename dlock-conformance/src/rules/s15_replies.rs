//! §15 Lost replies, retries, stale messages.

use super::faulty::{SLOW, faulty, kept, patience, struck};
use super::prelude::*;

rules! {
    a_lost_reply_lapses, a_retry_knows_its_own_grant, one_call_one_entry, retries_make_no_second_holder,
    no_success_without_an_answer, unknown_is_said, duplicates_are_harmless,
}

/// Whether the kit gave up, on a wait without a limit: the library has answered nothing.
fn was_dropped(cx: &Cx, error: &dlock_core::Error) -> bool {
    !cx.has(Need::WaitLimit) && error.kind() == ErrorKind::Timeout
}

rule! { "15.01" Must phase 1 [Lock, Wait, Lease, Try] Both P D a_lost_reply_lapses,
    evidence ["unknown" >= 1, "guards" >= 1], bug "lost_reply_immortal", budget 120 s
    "An acquire whose reply is lost ends as a live guard or as Unknown. After Unknown the name is free by \
        the ttl."
    why "The store has granted the lock and no client knows. If anything keeps that grant alive, the lock is \
        held for ever without an owner."
    check "After a failed acquire, is its request withdrawn, and does anything renew it?"
}
async fn a_lost_reply_lapses(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask().ttl(cx.short_ttl());
    for recovers in [true, false] {
        let name = cx.name(if recovers { "recovers" } else { "stays away" });
        // Time to connect anew. Where it gives up, the lease has most of its life before it: what keeps it
        // from lapsing shows.
        let limit = match recovers {
            true => cx.has(Need::WaitLimit).then_some(patience(&cx)),
            false => Some(ask.ttl / 4),
        };
        let (acquiring, hold) = f.a_is_granted_unheard(&cx, &name, &ask, limit).await?;
        let away = if recovers {
            f.cut(Cut::Reset)?;
            None
        } else {
            Some(f.net.begin(Fault::Away))
        };
        drop(hold);
        let what = "an acquire whose reply was lost";
        match cx.within(patience(&cx) * 2, what, acquiring).await? {
            Ok(held) => {
                ensure!(held.is_valid(), "{what} ended as a guard that is not valid");
                held.released("A releases what it was granted after all").await?;
                cx.evidence("guards");
            }
            Err(e) if e.kind() == ErrorKind::Unknown => cx.evidence("unknown"),
            Err(e) if was_dropped(&cx, &e) => cx.evidence("unknown"),
            Err(e) => fail!("{what} answers {:?}, not Unknown: {e:?}", e.kind()),
        }
        drop(away);
        let by = cx.lapsed_by(ask.ttl);
        cx.passes_by(&*f.b, &name, &ask, by, format!("after {what}"))
            .await?;
    }
    Ok(())
}

rule! { "15.02" Must phase 1 [Lock, Try] Both P D a_retry_knows_its_own_grant, evidence ["lost_replies" >= 1],
    bug "retry_sees_stranger", budget 120 s
    "An acquire that is retried after a lost reply recognises its own earlier grant instead of waiting for \
        itself."
    why "Without an id that survives the retry, a client's own first request blocks it for a whole ttl."
    check "Does the retry carry the same request id, and does the store answer a known id with its grant?"
}
async fn a_retry_knows_its_own_grant(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let (name, ask) = (cx.name("tried"), cx.ask());
    let hold = f.net.begin(Fault::Hold(Direction::ToClient));
    let trying = cx.asks(&f.a, &name, &ask, None);
    struck(&cx, &hold, "the reply to A's try is kept").await?;
    f.cut(Cut::Reset)?;
    drop(hold);
    cx.evidence("lost_replies");
    let doing = "a try whose reply was lost";
    match if_known(cx.within(patience(&cx), doing, trying).await?, doing)? {
        Some(Some(held)) => held.released("A releases what it was granted").await,
        Some(None) => fail!("{doing} was refused, although only its own first request holds the name"),
        // It does not retry. Then it has to answer that the outcome is not known.
        None => Ok(()),
    }
}

rule! { "15.03" Must phase 1 [Lock, Wait, Try] Both P D one_call_one_entry, evidence ["lost_replies" >= 2],
    bug "retry_double_enqueue", budget 120 s
    "One call never makes two grants or two queue entries, however often its replies are lost."
    why "When the second entry's turn comes, it is granted without an owner, and the queue stops for a ttl."
    check "Does the retry of a queued request find its own entry, or join again at the end?"
}
async fn one_call_one_entry(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let c = cx.connect().await?;
    let ask = cx.ask();
    for how in [Cut::Reset, Cut::Fin] {
        let name = cx.name(format_args!("{how:?}"));
        let before = f.b.acquire(&name, &ask).await.seen("B acquires a free name")?;
        let (acquiring, hold) = f.a_is_granted_unheard(&cx, &name, &ask, None).await?;
        f.cut(how)?;
        drop(hold);
        cx.evidence("lost_replies");
        // Time for the retry.
        cx.sleep(cx.slack()).await;
        before.release().await.seen("B releases")?;
        let what = "A's wait, with a lost reply";
        let Some(held) = if_known(cx.within(patience(&cx), what, acquiring).await?, what)? else {
            continue;
        };
        held.release().await.seen("A releases")?;
        let by = cx.now() + cx.slack();
        let when = "after A, which had acquired once, has released";
        cx.passes_by(&*c, &name, &ask, by, when).await?;
    }
    Ok(())
}

rule! { "15.04" Must phase 1 [Lock, Wait, OutlivesConnection] Both P X retries_make_no_second_holder,
    evidence ["grants" >= 20, "cuts" >= 10], bug "retry_assumes_success" stochastic, budget 300 s
    "Acquires, releases and retries over connections that break repeatedly never make two holders."
    why "A client that takes a broken connection for a grant is a second holder."
    check "What does the driver return for a request that was sent and not answered?"
}
async fn retries_make_no_second_holder(cx: Cx) -> Verdict {
    let (rounds, name) = (cx.rounds(12, 200), cx.name("contended"));
    let (mut clients, mut networks) = (Vec::new(), Vec::new());
    let begun = cx.now();
    for _ in 0..4 {
        let net = cx.network()?;
        clients.push(cx.connect_over(&net).await?);
        networks.push(net);
    }
    // No request gets through where it takes longer to connect than to the next cut.
    let pace = (begun.until(cx.now()) / 4).clamp(ms(4), ms(30));
    let tasks = cx.at_work(clients, &name, move |worker, name| async move {
        let (cx, lane, mut rng, ..) = worker;
        let ask = cx.ask().ttl(cx.short_ttl());
        for round in 0..3 * rounds {
            if round >= rounds && cx.counted("grants") >= 20 && cx.counted("cuts") >= 40 {
                break;
            }
            // Other rules check its outcome under these circumstances.
            if let Ok(held) = lane.acquire_timeout(&name, &ask, ask.ttl * 5).await {
                cx.evidence("grants");
                cx.sleep(rng.duration(Duration::ZERO, ms(6))).await;
                drop(lane.release(&held).await);
            }
        }
        Ok::<(), Failure>(())
    });
    let nemesis = {
        let (task_cx, mut rng) = (cx.clone(), cx.rng());
        cx.spawn(async move {
            loop {
                task_cx.sleep(rng.duration(pace / 2, pace * 2)).await;
                if networks[rng.index(4)].cut(Cut::Reset) > 0 {
                    task_cx.evidence("cuts");
                }
            }
        })
    };
    all(tasks).await?;
    let _: Option<()> = nemesis.cancel().await;
    cx.check_history()
}

rule! { "15.05" Must phase 1 [Lock, Try, Wait, Renew] Both P D no_success_without_an_answer,
    evidence ["failed_calls" >= 4], bug "io_error_is_ok", budget 120 s
    "A transport error is reported as an error, never as a grant, a refusal, a renewal or a release."
    why "A release that was only attempted leaves the lock held, although its holder believes that it is \
        free."
    check "Which branch handles an I/O error of the driver, and what does it answer?"
}
async fn no_success_without_an_answer(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask();
    let held = f.a_holds(&cx.name("held"), &ask).await?;
    let released = f.a_holds(&cx.name("released"), &ask).await?;
    let other = cx.name("other");
    let away = f.net.begin(Fault::Away);
    let short = ms(50);
    let calls = async {
        futures::join!(
            held.renew(),
            released.release(),
            f.a.try_acquire(&other, &ask),
            f.a.acquire_timeout(&other, &ask, short),
        )
    };
    let (renewed, release, tried, acquired) = cx
        .within(patience(&cx), "calls while the server is unreachable", calls)
        .await?;
    let outcomes = [
        ("a renewal", renewed.err()),
        ("a release", release.err()),
        ("a try", tried.err()),
        ("an acquire", acquired.err()),
    ];
    for (what, error) in outcomes {
        match error {
            None => fail!("{what} while the server was unreachable was reported as done"),
            Some(_) => cx.evidence("failed_calls"),
        }
    }
    away.heal();
    Ok(())
}

rule! { "15.08" Must phase 1 [Lock, Try, Wait] Both P D unknown_is_said, evidence ["unheard_grants" >= 2],
    bug "unknown_as_failed", budget 120 s
    "When it is not known whether an acquire took effect, it answers Unknown, never that the lock was not \
        acquired."
    why "After `not acquired` a caller reports a free lock, or tries elsewhere, while the store keeps the \
        lock for it."
    check "Is an error after the request was sent distinguished from one before?"
}
async fn unknown_is_said(cx: Cx) -> Verdict {
    let ask = cx.ask().ttl(cx.long_ttl());
    for tries in [false, true] {
        // A new network, since messages of a connection's set-up are no replies to a request.
        let f = faulty(&cx).await?;
        let name = cx.name(if tries { "tried" } else { "waited for" });
        let slow = f.net.begin(Fault::Delay(Direction::ToClient, SLOW));
        let asking = cx.asks(&f.a, &name, &ask, (!tries).then_some(SLOW * 8));
        let what = if tries { "a try" } else { "an acquire" };
        let (hold, _) = kept(&cx, &f, &slow, (&name, &ask), false).await?;
        if asking.is_done() {
            inconclusive!("{what} was answered before its reply could be kept");
        }
        let away = f.net.begin(Fault::Away);
        drop((hold, slow));
        cx.evidence("unheard_grants");
        match cx.within(patience(&cx), what, asking).await? {
            Ok(Some(_)) => fail!("{what} whose outcome A cannot know was reported as a grant"),
            Ok(None) => fail!("{what} whose outcome A cannot know was reported as a refusal"),
            Err(e) => ensure!(
                e.kind() == ErrorKind::Unknown || was_dropped(&cx, &e),
                "{what} was granted, its reply was lost, and A gets {:?}: {e}",
                e.kind()
            ),
        }
        away.heal();
    }
    Ok(())
}

/// By how much the second copy of a request is later, at most: a few hand-overs.
const LATER: Duration = ms(25);

rule! { "15.06" Must phase 2 [Lock, Wait, Try] Both S X duplicates_are_harmless,
    evidence ["grants" >= 30, "duplicates" >= 30], bug "dup_release_frees_next" stochastic, budget 120 s
    "A request that arrives twice, the second time after later ones, has no more effect than one that \
        arrives once."
    why "Proxies and drivers resend what they believe to be lost. A second release that arrives late frees \
        the next holder."
    check "Does every request name its grant, and are ended grants remembered or refused?"
}
async fn duplicates_are_harmless(cx: Cx) -> Verdict {
    let net = cx.network()?;
    let twice = Fault::Duplicate(LATER);
    if !net.offers(twice) {
        not_run!(
            "it needs a network that sends requests twice, and the kit's proxy knows no requests, only bytes"
        );
    }
    let name = cx.name("contended");
    let ask = cx.ask();
    let rounds = cx.rounds(15, 200);
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(cx.connect_over(&net).await?);
    }
    let twice = net.begin(twice);
    let shared = (name.clone(), ask.clone());
    let tasks = cx.at_work(clients, &shared, move |worker, (name, ask)| async move {
        let (cx, lane, mut rng, ..) = worker;
        for _ in 0..rounds {
            let held = lane.acquire_timeout(&name, &ask, cx.long_ttl()).await;
            let held = held.seen("acquires")?;
            cx.evidence("grants");
            cx.sleep(rng.duration(ms(1), ms(12))).await;
            match rng.below(4) {
                0 => lane.renew(&held).await.seen("renews its lock")?,
                1 if cx.has(Need::DropFrees) => {
                    lane.drop_guard(held);
                    continue;
                }
                _ => {}
            }
            lane.release(&held).await.seen("releases its lock")?;
        }
        Ok::<(), Failure>(())
    });
    all(tasks).await?;
    cx.evidence_by("duplicates", twice.hits());
    twice.heal();
    // Until the last copy has arrived.
    cx.sleep(LATER * 2).await;
    let by = cx.now() + cx.claims().drop_prompt + cx.slack();
    let beside = cx.connect().await?;
    cx.passes_by(&*beside, &name, &ask, by, "after every client released it")
        .await?;
    cx.check_history()
}
