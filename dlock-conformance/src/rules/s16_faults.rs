//! §16 Connection, session, process, server, clock.

use std::time::Duration;

use dlock_core::{ErrorKind, LockOptions};

use super::faulty::{faulty, patience, struck};
use super::partition::a_partition_costs_one_client;
use super::s16_nemesis::all_at_once_and_then_healed;
use super::s16_server::{
    a_clock_step_ends_nothing, a_fail_over_is_survived, a_restart_is_survived, foreign_data_is_no_lock,
};
use crate::claims::Need;
use crate::cx::Cx;
use crate::network::{Cut, Direction, Fault};
use crate::rule::{Rule, rule};
use crate::verdict::{Seen, Verdict};
use crate::{ensure, fail};

pub(super) static RULES: &[Rule] = &[
    rule! {
        "16.01" MUST phase 1 [Lease, AutoRenew, LossSignal, OutlivesConnection]
        layer: Both, access: P, test: T,
        title: "a reset is survived",
        statement: "A connection that is reset while a guard renews itself is made anew, and the lock is \
            kept; if that takes too long, the loss is told by the deadline.",
        intent: "Connections break every day; a client that stays dead behind one loses every lock that it \
            holds.",
        check_first: "Who connects again, and does the renewal after that go over the new connection?",
        evidence: ["kept" >= 2, "lost" >= 1],
        budget: 120 s,
        bug: "no_reconnect" deterministic
        => a_reset_is_survived
    },
    rule! {
        "16.02" MUST phase 1 [Lock, Lease, Try, Renew, AutoRenew, LossSignal]
        layer: Both, access: P, test: T,
        title: "a black hole ends every call",
        statement: "Over a connection on which nothing arrives any more, operations end within the claimed \
            bound, a wait with a limit at that limit plus slack, and loss is told by the deadline.",
        intent: "TCP alone waits for a quarter of an hour; a program that waits with it is hung.",
        check_first: "Has every request a time limit of its own?",
        evidence: ["ended_calls" >= 4, "lost" >= 1],
        budget: 120 s,
        bug: "no_op_timeout" deterministic
        => a_black_hole_ends_every_call
    },
    rule! {
        "16.03" MUST phase 1 [Lock, Wait]
        layer: Both, access: P, test: T,
        title: "a cut wait goes on",
        statement: "A wait whose connection breaks resumes or errs; it never hangs.",
        intent: "The notification went to a connection that is gone; a waiter that does not look again \
            waits for ever.",
        check_first: "What happens to a registered waiter when its stream of notifications ends?",
        evidence: ["resumed_or_erred" >= 3],
        budget: 120 s,
        bug: "waiter_hangs_on_cut" deterministic
        => a_cut_wait_goes_on
    },
    rule! {
        "16.05" MUST phase 1 [Lock, Wait, Try, Lease]
        layer: Both, access: C, test: T,
        title: "a killed holder is replaced",
        statement: "The lock of a process that is killed is free at the latest its ttl plus slack after its \
            death, for those who try and for those who wait.",
        intent: "Processes are killed every day, by deployments and by the kernel; a lock that outlives its \
            holder stops everybody.",
        check_first: "Does anything but the lease decide when a dead holder's lock is free?",
        evidence: ["kills" >= 2],
        budget: 120 s,
        bug: "kill_leaks" deterministic
        => super::s16_processes::a_killed_holder_is_replaced
    },
    rule! {
        "16.06" MUST phase 1 [Lock, Wait, Try, Lease, LossSignal]
        layer: Both, access: C, test: T,
        title: "a resumed holder knows",
        statement: "A process that was stopped for longer than its ttl is told so by the first look at its \
            guard, before any I/O; the loss signal fires, and its fenced writes are refused.",
        intent: "A paused process goes on in the middle of its work, and the first thing that it asks must \
            be true.",
        check_first: "Is validity computed from a clock that goes on while the process is stopped, or from \
            what its timers counted?",
        evidence: ["looks" >= 2],
        budget: 60 s,
        bug: "resume_thinks_valid" deterministic
        => super::s16_processes::a_resumed_holder_knows
    },
    rule! {
        "16.07" MUST phase 2 [Lock, Wait, Lease, Renew, AutoRenew, LossSignal]
        layer: Both, access: C, test: T,
        title: "a short stop loses nothing",
        statement: "A process that is stopped for half of the ttl that it has just renewed keeps its lock, \
            and goes on renewing it.",
        intent: "A lock that is lost at every pause of a garbage collector or of a busy machine is of no \
            use.",
        check_first: "Does anything but the deadline decide that a hold is over: a renewal that is late, a \
            gap in the timers?",
        evidence: ["short_stops" >= 1],
        budget: 60 s,
        bug: "hair_trigger_loss" deterministic
        => super::s16_processes::a_short_stop_loses_nothing
    },
    rule! {
        "16.08" MUST phase 2 [Lock, Try, Lease, SurvivesRestart]
        layer: Backend, access: H, test: D,
        title: "a restart is survived",
        statement: "A server that is restarted while a lock is held knows the hold, with the same token, or \
            its holder has been told of the loss before anybody else is granted, for those restarts of \
            which that is claimed.",
        intent: "A lock server is updated on a working day; if that frees all locks, every job runs twice.",
        check_first: "Are holds stored before they are granted, and are they there before the first request \
            is answered?",
        evidence: ["restarts" >= 1],
        budget: 120 s,
        bug: "restart_forgets" deterministic
        => a_restart_is_survived
    },
    rule! {
        "16.09" MUST phase 1 [Lock, Try]
        layer: Both, access: P, test: T,
        title: "a server comes back",
        statement: "While the server is away a call answers Unavailable within the claimed bound; when it \
            is back the same client works again.",
        intent: "A client that has to be thrown away after each restart of the server makes every restart \
            an outage.",
        check_first: "Is a failed connection forgotten, so that the next call makes a new one?",
        evidence: ["unavailable" >= 1, "recovered" >= 2],
        budget: 120 s,
        bug: "no_recovery" deterministic
        => a_server_comes_back
    },
    rule! {
        "16.10" MUST phase 1 [Lock, Lease, Try, Renew, PerGrantTtl]
        layer: Both, access: P, test: T,
        title: "latency shortens validity",
        statement: "With a round trip of nearly half a ttl exclusion holds: what a holder may believe is \
            shorter by that, after an acquire and after a renewal.",
        intent: "Whoever counts the lease from the reply believes longer than the store by the whole \
            latency.",
        check_first: "From which moment does the deadline count: before the send, or after the reply?",
        evidence: ["slow_round_trips" >= 2, "hand_overs" >= 1],
        budget: 120 s,
        bug: "ignores_latency" deterministic
        => latency_shortens_validity
    },
    rule! {
        "16.11" MUST phase 2 [Lock, Try, Lease, PerGrantTtl]
        layer: Backend, access: H, test: T,
        title: "a clock step ends nothing",
        statement: "A step of the server's clock makes no lock immortal, and ends none early unless the \
            store is declared to be clock sensitive; tokens increase all the same.",
        intent: "NTP sets clocks; a store that counts leases by the date frees all of them at once, or none \
            for an hour.",
        check_first: "By which clock are leases counted: one that somebody can set, or one that only runs?",
        evidence: ["steps" >= 2],
        budget: 60 s,
        bug: "server_walltime" deterministic
        => a_clock_step_ends_nothing
    },
    rule! {
        "16.12" MUST phase 3 [Lock, Wait]
        layer: Backend, access: H, test: X,
        title: "a fail over is survived",
        statement: "When another server takes over, again and again, histories are legal if that is \
            claimed; otherwise the report says how many grants were double.",
        intent: "A replica that is behind has not heard of the latest grants, and gives them away a second \
            time.",
        check_first: "Does a grant wait until the replica has it?",
        evidence: ["fail_overs" >= 5, "grants" >= 20],
        budget: 120 s,
        bug: "async_replica_grant" stochastic
        => a_fail_over_is_survived
    },
    rule! {
        "16.13" MUST phase 2 [Lock, Wait, Lease, AutoRenew, LossSignal]
        layer: Both, access: P, test: T,
        title: "partition costs one client",
        statement: "A client that is cut off loses its locks, each by the deadline; those who wait for them \
            have them by the ttl plus slack, and all others go on as if nothing was.",
        intent: "One machine behind a broken switch must not be able to stop everybody else.",
        check_first: "Does anything in the store wait for a client: for its answer to an expiry, for room \
            in its connection, for a lock that is held meanwhile?",
        evidence: ["lost" >= 3, "handed_over" >= 3, "undisturbed" >= 10, "back_again" >= 1],
        budget: 120 s,
        bug: "partition_blocks_all" deterministic
        => a_partition_costs_one_client
    },
    rule! {
        "16.14" MUST phase 3 [Lock, Try, Wait]
        layer: Backend, access: H, test: D,
        title: "foreign data is no lock",
        statement: "Something at a lock's key that no lock library wrote is answered with BackendData: no \
            panic, no grant, and it is not overwritten. Other names are not concerned.",
        intent: "Two programs share a store and a name; whoever takes the other's data for a free lock \
            destroys it.",
        check_first: "What does the code do with a record that it cannot read: refuse it, or treat it as \
            absent?",
        evidence: ["spoiled_names" >= 2],
        budget: 60 s,
        bug: "corrupt_panics" deterministic
        => foreign_data_is_no_lock
    },
    rule! {
        "16.15" MUST phase 2 [Lock, Wait, Lease, PerGrantTtl]
        layer: Both, access: P, test: X,
        title: "all at once and then healed",
        statement: "Under a random schedule of every fault at once the history is legal and no stale token \
            is admitted; when nothing goes wrong any more, everybody who was there gets every name within \
            its bound.",
        intent: "Each fault alone is handled by code that was written for it; two of them together meet \
            code that nobody wrote.",
        check_first: "Which two faults were at work at the time that the drawing shows?",
        evidence: ["grants" >= 20, "struck" >= 10, "recovered" >= 2],
        budget: 300 s,
        bug: "no_recover_after_heal" deterministic
        => all_at_once_and_then_healed
    },
];

async fn a_reset_is_survived(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask().ttl(cx.ttl(Duration::from_millis(600))).auto_renew();
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

async fn a_black_hole_ends_every_call(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let renewing = cx.ask().ttl(cx.short_ttl()).auto_renew();
    let ask = cx.ask();
    let kept =
        f.a.acquire(&cx.name("kept"), &renewing)
            .await
            .seen("A acquires")?;
    let renewed =
        f.a.acquire(&cx.name("renewed"), &ask)
            .await
            .seen("A acquires another")?;
    let released =
        f.a.acquire(&cx.name("released"), &ask)
            .await
            .seen("A acquires a third")?;
    let (tried, waited) = (cx.name("tried"), cx.name("waited for"));
    let lost = kept.lost();
    let fenced = f.a.gate().filter(|_| cx.claims().has(Need::Resource));
    let written = fenced.zip(kept.token());
    let observed = f.a.observe().filter(|_| cx.claims().has(Need::Inspect));
    let hole = f.net.begin(Fault::BlackHole(Direction::Both));
    let (from, limit) = (cx.now(), Duration::from_millis(50));
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

async fn a_cut_wait_goes_on(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask();
    for (how, lost_push) in [(Cut::Reset, false), (Cut::Fin, false), (Cut::Reset, true)] {
        let name = cx.name(format_args!("{how:?}-{lost_push}"));
        let before = f.b.acquire(&name, &ask).await.seen("B acquires a free name")?;
        let waiting = f.a_acquires(&cx, &name, &ask, None);
        // Long enough that it waits.
        cx.sleep(Duration::from_millis(50)).await;
        ensure!(!waiting.is_done(), "A does not wait while B holds");
        if lost_push {
            // The news of the release, if the store sends any, is on its way when the connection breaks.
            let hold = f.net.begin(Fault::Hold(Direction::ToClient));
            before.release().await.seen("B releases")?;
            cx.sleep(Duration::from_millis(20)).await;
            f.cut(how)?;
            drop(hold);
        } else {
            f.cut(how)?;
            cx.sleep(Duration::from_millis(20)).await;
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
                cx.sleep(Duration::from_millis(10)).await;
            }
            cx.evidence("unavailable");
        }
        away.heal();
        let again = cx.within(
            patience(&cx),
            "an acquire after the server came back",
            f.a.acquire(&name, &ask),
        );
        let held = again.await?.seen("A acquires after the server came back")?;
        held.release()
            .await
            .seen("A releases after the server came back")?;
        cx.evidence("recovered");
    }
    Ok(())
}

async fn latency_shortens_validity(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    // A quorum asks twice for a grant, and waits for a quarter of the ttl at the most.
    let (ttl, share) = match cx.claims().members {
        Some(_) => (Duration::from_millis(1_600), 32),
        None => (Duration::from_millis(800), 5),
    };
    let (name, ask) = (cx.name("far away"), cx.ask().ttl(cx.ttl(ttl)));
    let slow = f.net.begin(Fault::Delay(Direction::Both, ask.ttl / share));
    let round_trip = ask.ttl * 2 / share;
    // What is left when the reply is here, and a little for what else takes time.
    let most = ask.ttl - round_trip + round_trip / 4;
    let held =
        f.a.acquire(&name, &ask)
            .await
            .seen("A acquires over a slow network")?;
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
    let taken = cx
        .free_by(&*f.b, &name, &ask, by, "after A let its lease lapse")
        .await?;
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
