//! §15 Lost replies, retries, stale messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::ErrorKind;

use super::faulty::{faulty, patience, struck};
use super::late_requests::{a_late_acquire_leaves_nothing, what_is_late_is_refused};
use super::s15_duplicates::duplicates_are_harmless;
use crate::cx::Cx;
use crate::network::{Cut, Direction, Fault};
use crate::rule::{Rule, rule};
use crate::verdict::{Failure, Seen, Verdict};
use crate::{ensure, fail};

pub(super) static RULES: &[Rule] = &[
    rule! {
        "15.01" MUST phase 1 [Lock, Wait, Lease, Try]
        layer: Both, access: P, test: D,
        title: "a lost reply lapses",
        statement: "An acquire whose reply is lost ends as a live guard or as Unknown; after Unknown the \
            name is free by the ttl.",
        intent: "The store has granted and nobody knows: if anything keeps that grant alive, the lock is \
            held by nobody for ever.",
        check_first: "After an acquire that failed, is its request withdrawn, and does anything renew it?",
        evidence: ["unknown" >= 1, "guards" >= 1],
        budget: 120 s,
        bug: "lost_reply_immortal" deterministic
        => a_lost_reply_lapses
    },
    rule! {
        "15.02" MUST phase 1 [Lock, Try]
        layer: Both, access: P, test: D,
        title: "a retry knows its own grant",
        statement: "An acquire that is sent again after a lost reply recognises its own earlier grant \
            instead of waiting for itself.",
        intent: "Without an identity that survives the retry, a client is refused by its own first request \
            for a whole ttl.",
        check_first: "Is the retry sent with the same request id, and does the store answer a known id with \
            its grant?",
        evidence: ["lost_replies" >= 1],
        budget: 120 s,
        bug: "retry_sees_stranger" deterministic
        => a_retry_knows_its_own_grant
    },
    rule! {
        "15.03" MUST phase 1 [Lock, Wait, Try]
        layer: Both, access: P, test: D,
        title: "one call, one entry",
        statement: "One call never makes two grants or two queue entries, however often its replies are \
            lost.",
        intent: "The second entry is granted to nobody when its turn comes, and the queue stands still for \
            a ttl.",
        check_first: "Does the retry of a queued request find its own entry, or join again at the end?",
        evidence: ["lost_replies" >= 2],
        budget: 120 s,
        bug: "retry_double_enqueue" deterministic
        => one_call_one_entry
    },
    rule! {
        "15.04" MUST phase 1 [Lock, Wait, OutlivesConnection]
        layer: Both, access: P, test: X,
        title: "retries make no second holder",
        statement: "Acquires, releases and retries over connections that break again and again never make \
            two holders.",
        intent: "A client that takes a broken connection for a yes is a second holder.",
        check_first: "What does the driver answer for a request that was sent and not answered?",
        evidence: ["grants" >= 20, "cuts" >= 10],
        budget: 300 s,
        bug: "retry_assumes_success" stochastic
        => retries_make_no_second_holder
    },
    rule! {
        "15.05" MUST phase 1 [Lock, Try, Wait, Renew]
        layer: Both, access: P, test: D,
        title: "no success without an answer",
        statement: "A transport error is never reported as success: not as a grant, a refusal, a renewal or \
            a release.",
        intent: "A release that was only attempted leaves a lock that its holder believes to be free.",
        check_first: "Which branch handles an I/O error of the driver, and what does it answer?",
        evidence: ["failed_calls" >= 4],
        budget: 120 s,
        bug: "io_error_is_ok" deterministic
        => no_success_without_an_answer
    },
    rule! {
        "15.06" MUST phase 2 [Lock, Wait, Try]
        layer: Both, access: S, test: X,
        title: "duplicates are harmless",
        statement: "A request that arrives twice, the second time after later ones, does no more than one \
            that arrives once.",
        intent: "Proxies and drivers send again what they believe to be lost; a second release that arrives \
            late frees the next holder.",
        check_first: "Does every request name the grant that it is about, and is what is over remembered or \
            refused?",
        evidence: ["grants" >= 30, "duplicates" >= 30],
        budget: 120 s,
        bug: "dup_release_frees_next" stochastic
        => duplicates_are_harmless
    },
    rule! {
        "15.07" MUST phase 2 [Lock, Try, Renew]
        layer: Both, access: P, test: D,
        title: "what is late is refused",
        statement: "A release or renewal of a former holder that arrives after the next grant is refused: \
            it neither frees nor extends that one, nor brings the former one back.",
        intent: "A packet that was held up for a minute is a release that nobody has asked for lately; it \
            must not find a lock to free.",
        check_first: "Does every release and renewal name the grant that it is about, and is that compared \
            in the store?",
        evidence: ["late_releases" >= 2, "late_renewals" >= 2],
        budget: 120 s,
        bug: "delayed_release_applies" deterministic
        => what_is_late_is_refused
    },
    rule! {
        "15.08" MUST phase 1 [Lock, Try, Wait]
        layer: Both, access: P, test: D,
        title: "unknown is said",
        statement: "When it is not known whether an acquire took effect, it answers Unknown, never that the \
            lock was not acquired.",
        intent: "Whoever is told `not acquired` reports a free lock, or tries elsewhere, while the store \
            keeps it for him.",
        check_first: "Is an error after the request was sent told from one before?",
        evidence: ["unheard_grants" >= 2],
        budget: 120 s,
        bug: "unknown_as_failed" deterministic
        => unknown_is_said
    },
    rule! {
        "15.09" MUST phase 2 [Lock, Try, Wait]
        layer: Both, access: P, test: D,
        title: "late acquire leaves nothing",
        statement: "An acquire or try that is delivered after it was given up leaves nothing: no hold, and \
            no place in line.",
        intent: "A request that was withdrawn and arrives afterwards is granted to nobody, and the lock is \
            gone for a ttl.",
        check_first: "Does withdrawing a request that the store has not seen yet leave something that \
            refuses it when it comes?",
        evidence: ["late_acquires" >= 4],
        budget: 120 s,
        bug: "no_tombstone" deterministic
        => a_late_acquire_leaves_nothing
    },
];

async fn a_lost_reply_lapses(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask().ttl(cx.short_ttl());
    for recovers in [true, false] {
        let name = cx.name(if recovers { "recovers" } else { "stays away" });
        // Where it gives up, the lease has most of its life before it: what keeps it from lapsing shows.
        let limit = if recovers { ask.ttl } else { ask.ttl / 4 };
        let (acquiring, hold) = f.a_is_granted_unheard(&cx, &name, &ask, Some(limit)).await?;
        let away = if recovers {
            f.cut(Cut::Reset)?;
            None
        } else {
            Some(f.net.begin(Fault::Away))
        };
        drop(hold);
        let what = "an acquire whose reply was lost";
        match cx.within(patience(&cx) + ask.ttl, what, acquiring).await? {
            Ok(held) => {
                ensure!(held.is_valid(), "{what} ended as a guard that is not valid");
                held.release()
                    .await
                    .seen("A releases what it was granted after all")?;
                cx.evidence("guards");
            }
            Err(e) if e.kind() == ErrorKind::Unknown => cx.evidence("unknown"),
            Err(e) => fail!("{what} answers {:?}, not Unknown: {e}", e.kind()),
        }
        drop(away);
        let by = cx.now() + ask.ttl + cx.skew(ask.ttl) + cx.slack();
        let taken = cx
            .free_by(&*f.b, &name, &ask, by, format!("after {what}"))
            .await?;
        taken.release().await.seen("B releases")?;
    }
    Ok(())
}

async fn a_retry_knows_its_own_grant(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let (name, ask) = (cx.name("tried"), cx.ask());
    let hold = f.net.begin(Fault::Hold(Direction::ToClient));
    let trying = {
        let (a, name, ask) = (Arc::clone(&f.a), name.clone(), ask.clone());
        cx.spawn(async move { a.try_acquire(&name, &ask).await })
    };
    struck(&cx, &hold, "the reply to A's try is kept").await?;
    f.cut(Cut::Reset)?;
    drop(hold);
    cx.evidence("lost_replies");
    match cx
        .within(patience(&cx), "a try whose reply was lost", trying)
        .await?
    {
        Ok(Some(held)) => held.release().await.seen("A releases what it was granted"),
        Ok(None) => fail!(
            "a try whose reply was lost was refused, although only its own first request holds the name"
        ),
        // It does not send again; then it has to say that it does not know.
        Err(e) if e.kind() == ErrorKind::Unknown => Ok(()),
        Err(e) => fail!("a try whose reply was lost answers {:?}: {e}", e.kind()),
    }
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
        let held = cx
            .within(patience(&cx), "A's wait, of which a reply was lost", acquiring)
            .await?;
        let held = match held {
            Ok(held) => held,
            Err(e) if e.kind() == ErrorKind::Unknown => continue,
            Err(e) => return Err(e).seen("A waits, and a reply is lost"),
        };
        held.release().await.seen("A releases")?;
        let by = cx.now() + cx.slack();
        let when = "after A, which had asked once, has released";
        let next = cx.free_by(&*c, &name, &ask, by, when).await?;
        next.release().await.seen("C releases")?;
    }
    Ok(())
}

async fn retries_make_no_second_holder(cx: Cx) -> Verdict {
    let name = cx.name("contended");
    let ask = cx.ask().ttl(cx.short_ttl());
    let rounds = cx.rounds(12, 200);
    // Where it takes long to connect few requests get through between two cuts: then there are more rounds.
    let granted = Arc::new(AtomicUsize::new(0));
    let (mut tasks, mut networks) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let granted = Arc::clone(&granted);
        let net = cx.network()?;
        let client = cx.connect_over(&net).await?;
        networks.push(net);
        let (cx, name, ask, mut rng) = (cx.clone(), name.clone(), ask.clone(), cx.rng());
        let task_cx = cx.clone();
        tasks.push(cx.spawn(async move {
            let cx = task_cx;
            let lane = cx.lane(&client);
            for round in 0..3 * rounds {
                if round >= rounds && granted.load(Ordering::Relaxed) >= 20 {
                    break;
                }
                // What becomes of it under these circumstances is other rules' matter.
                if let Ok(held) = lane.acquire_timeout(&name, &ask, ask.ttl * 5).await {
                    cx.evidence("grants");
                    granted.fetch_add(1, Ordering::Relaxed);
                    cx.sleep(rng.duration(Duration::ZERO, Duration::from_millis(6)))
                        .await;
                    drop(lane.release(&held).await);
                }
            }
            Ok::<(), Failure>(())
        }));
    }
    let nemesis = {
        let (task_cx, mut rng) = (cx.clone(), cx.rng());
        cx.spawn(async move {
            loop {
                task_cx
                    .sleep(rng.duration(Duration::from_millis(2), Duration::from_millis(8)))
                    .await;
                let victim = usize::try_from(rng.below(4)).unwrap_or(0);
                if networks[victim].cut(Cut::Reset) > 0 {
                    task_cx.evidence("cuts");
                }
            }
        })
    };
    for task in tasks {
        task.await?;
    }
    let _: Option<()> = nemesis.cancel().await;
    cx.check_history()
}

async fn no_success_without_an_answer(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask();
    let held = f.a.acquire(&cx.name("held"), &ask).await.seen("A acquires")?;
    let released =
        f.a.acquire(&cx.name("released"), &ask)
            .await
            .seen("A acquires another")?;
    let other = cx.name("other");
    let away = f.net.begin(Fault::Away);
    let short = Duration::from_millis(50);
    let calls = async {
        futures::join!(
            held.renew(),
            released.release(),
            f.a.try_acquire(&other, &ask),
            f.a.acquire_timeout(&other, &ask, short),
        )
    };
    let (renewed, release, tried, acquired) = cx
        .within(patience(&cx), "calls while the server is away", calls)
        .await?;
    let outcomes = [
        ("a renewal", renewed.err()),
        ("a release", release.err()),
        ("a try", tried.err()),
        ("an acquire", acquired.err()),
    ];
    for (what, error) in outcomes {
        match error {
            None => fail!("{what} while the server was away was reported as done"),
            Some(_) => cx.evidence("failed_calls"),
        }
    }
    away.heal();
    Ok(())
}

async fn unknown_is_said(cx: Cx) -> Verdict {
    let ask = cx.ask().ttl(cx.long_ttl());
    for tries in [false, true] {
        // Anew: what a connection says as it is made is no reply to a request.
        let f = faulty(&cx).await?;
        let name = cx.name(if tries { "tried" } else { "waited for" });
        let hold = f.net.begin(Fault::Hold(Direction::ToClient));
        let asking = {
            let (a, name, ask) = (Arc::clone(&f.a), name.clone(), ask.clone());
            cx.spawn(async move {
                if tries {
                    return a.try_acquire(&name, &ask).await;
                }
                let limit = Duration::from_millis(300);
                a.acquire_timeout(&name, &ask, limit).await.map(Some)
            })
        };
        struck(&cx, &hold, "the reply to A is kept").await?;
        let away = f.net.begin(Fault::Away);
        drop(hold);
        cx.evidence("unheard_grants");
        let what = if tries { "a try" } else { "an acquire" };
        match cx.within(patience(&cx), what, asking).await? {
            Ok(Some(_)) => fail!("{what} of which A did not hear the outcome was reported as a grant"),
            Ok(None) => fail!("{what} of which A did not hear the outcome was reported as a refusal"),
            Err(e) => ensure!(
                e.kind() == ErrorKind::Unknown,
                "{what} was granted, A did not hear of it, and is told {:?}: {e}",
                e.kind()
            ),
        }
        away.heal();
    }
    Ok(())
}
