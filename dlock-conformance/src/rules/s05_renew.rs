//! §5 Renew and auto-renew.

use std::time::Duration;

use futures::future::join;
use futures::try_join;

use super::late_replies::only_an_answer_moves_the_deadline;
use super::lease_window::{granted_within, refused_as_lost};
use super::s05_auto::{a_maximum_hold_ends_the_hold, a_thousand_guards_stay_renewed, auto_renewal_lasts};
use super::s06_faults::{a_short_fault_loses_nothing, renewal_ends_with_the_hold};
use super::traffic::renewals_leave_time_for_another;
use crate::claims::Need;
use crate::cx::Cx;
use crate::ensure;
use crate::rule::{Rule, rule};
use crate::verdict::{Seen, Verdict};

pub(super) static RULES: &[Rule] = &[
    rule! {
        "5.01" MUST phase 1 [Lease, Try, Renew, PerGrantTtl]
        layer: Both, access: A, test: T,
        title: "renewal postpones the end",
        statement: "A confirmed renewal of a live grant postpones its expiry to the time of the renewal \
            plus the ttl.",
        intent: "A holder that renews in time works on; if the store counts from the first grant, two work \
            at once.",
        check_first: "Does the renewal write the new expiry, or only answer Ok?",
        evidence: ["refusals" >= 5],
        budget: 60 s,
        bug: "renew_noop" deterministic
        => renewal_postpones_the_end
    },
    rule! {
        "5.02" MUST phase 1 [Lease, Try, Renew, PerGrantTtl]
        layer: Both, access: A, test: T,
        title: "renewal is a reset",
        statement: "A renewal never shortens what was promised, and starts the ttl anew instead of adding \
            to what is left.",
        intent: "If each renewal adds a ttl, a holder that dies after an hour of renewing keeps the lock \
            for hours.",
        check_first: "Is the new expiry counted from now, or from the old expiry?",
        evidence: ["renewals" >= 4, "refusals" >= 5],
        budget: 60 s,
        bug: "renew_additive" deterministic
        => renewal_is_a_reset
    },
    rule! {
        "5.03" MUST phase 1 [Lease, Try, Renew, PerGrantTtl]
        layer: Both, access: A, test: T,
        title: "renewal after the end is lost",
        statement: "A renewal after the lease has ended answers Lost, even if nobody holds the name now, \
            and takes nothing.",
        intent: "Another may have come and gone meanwhile: what the holder knows of the resource is stale.",
        check_first: "Is the renewal an upsert that writes the record anew if it is gone?",
        evidence: ["renewals_after_the_end" >= 2],
        budget: 60 s,
        bug: "renew_resurrects" deterministic
        => renewal_after_the_end_is_lost
    },
    rule! {
        "5.04" MUST phase 1 [Lease, Try, Renew, PerGrantTtl]
        layer: Both, access: A, test: T,
        title: "stale renewal spares the successor",
        statement: "A renewal by a guard whose lease has ended never extends the lease of its successor.",
        intent: "A store that renews by name lets a stale holder keep a dead successor's lock alive, and \
            tells it that it holds.",
        check_first: "Does the renewal compare the grant id, in one step with the write?",
        evidence: ["stale_renewals" >= 3],
        budget: 60 s,
        bug: "renew_by_name" deterministic
        => stale_renewal_spares_the_successor
    },
    rule! {
        "5.05" MUST phase 1 [Lock, Try, Renew]
        layer: Both, access: A, test: D,
        title: "renewal after release is lost",
        statement: "A renewal after the release answers Lost, and the name stays free.",
        intent: "A renewal that comes last would take the lock back for somebody who has gone (ShedLock \
            tests for it).",
        check_first: "Does the guard know that it was released, and does the store refuse a key that it \
            does not hold?",
        evidence: ["renewals_after_release" >= 5],
        budget: 60 s,
        bug: "renew_recreates" deterministic
        => renewal_after_release_is_lost
    },
    rule! {
        "5.06" MUST phase 1 [Lock, Try, Renew]
        layer: Both, access: A, test: X,
        title: "renewal racing release ends released",
        statement: "When a renewal and the release of one grant race, in whichever order they arrive, the \
            name is free afterwards.",
        intent: "The background renewal of a guard is often on its way when it is released; it must not \
            bring the lock back.",
        check_first: "Does a renewal that arrives after the release write the record again?",
        evidence: ["races" >= 20],
        budget: 60 s,
        bug: "renew_release_race" stochastic
        => renewal_racing_release_ends_released
    },
    rule! {
        "5.07" MUST phase 1 [Lock, Lease, Renew]
        layer: Engine, access: P, test: D,
        title: "only an answer moves the deadline",
        statement: "The local deadline moves only on a confirmed renewal.",
        intent: "A renewal that is on its way may never arrive; a holder that counts on it works past its \
            lease.",
        check_first: "When is the new deadline written: before the request, or with the answer?",
        evidence: ["unconfirmed" >= 1, "confirmed" >= 1],
        budget: 120 s,
        bug: "optimistic_renew" deterministic
        => only_an_answer_moves_the_deadline
    },
    rule! {
        "5.08" MUST phase 1 [Lock, Renew, Fence]
        layer: Both, access: A, test: D,
        title: "renewal keeps id and token",
        statement: "A renewal keeps the grant id and the fencing token, at the holder and in the store.",
        intent: "A resource that has seen the new token would refuse the holder that still carries the old \
            one.",
        check_first: "Is the token minted by the statement that the renewal uses too?",
        evidence: ["renewals" >= 5],
        budget: 60 s,
        bug: "renew_bumps_token" deterministic
        => renewal_keeps_id_and_token
    },
    rule! {
        "5.09" MUST phase 1 [Lease, Try, AutoRenew]
        layer: Engine, access: A, test: T,
        title: "auto renewal lasts",
        statement: "A guard that renews itself keeps the lock for ten ttls and more when nothing fails: a \
            writer's, a reader's, a downgraded one, and one of a name that the same client had lost before.",
        intent: "Renewal that stops after a while loses long jobs their lock (Redisson 5698).",
        check_first: "Is each renewal scheduled by the one before it, and what ends that chain? Does an \
            entry of an earlier hold stand in its way?",
        evidence: ["refusals" >= 20],
        budget: 120 s,
        bug: "autorenew_stops_after_5" deterministic
        => auto_renewal_lasts
    },
    rule! {
        "5.10" MUST phase 1 [Lock, Lease, Try, AutoRenew, LossSignal]
        layer: Engine, access: P, test: T,
        title: "renewal ends with the hold",
        statement: "Auto-renewal stops on release, drop and loss: no renewal is sent afterwards, and the \
            lock is not made anew.",
        intent: "A renewer that outlives its guard costs a request per third of a ttl for ever, and with an \
            upserting store it takes the lock again.",
        check_first: "Which task renews, and who tells it each of the three ends?",
        evidence: ["quiet_windows" >= 3],
        budget: 120 s,
        bug: "zombie_renewer" deterministic
        => renewal_ends_with_the_hold
    },
    rule! {
        "5.11" MUST phase 1 [Lock, Lease, AutoRenew, LossSignal, OutlivesConnection]
        layer: Engine, access: P, test: T,
        title: "a short fault loses nothing",
        statement: "A fault that is shorter than what is left of the lease does not lose the lock.",
        intent: "A single failed renewal is no loss; whoever gives up then loses its locks to every hiccup.",
        check_first: "What happens after a renewal that failed, and how soon is it tried again?",
        evidence: ["faults_survived" >= 2],
        budget: 120 s,
        bug: "gives_up_on_first_error" deterministic
        => a_short_fault_loses_nothing
    },
    rule! {
        "5.12" SHOULD phase 2 [Lock, Lease, AutoRenew]
        layer: Engine, access: P, test: T,
        title: "renewals leave time for another",
        statement: "A guard that renews itself does so twice in a ttl at least, and clients that begin \
            together do not renew in step for ever.",
        intent: "Whoever renews at the last moment loses the lock with one lost packet; a thousand clients \
            that came back in one moment hit the store in one moment, three times in each ttl.",
        check_first: "What is the period of a renewal, is it counted from the last send, and is any part of \
            it chosen at random?",
        evidence: ["renewals" >= 12],
        budget: 120 s,
        bug: "renew_at_95pct" deterministic
        => renewals_leave_time_for_another
    },
    rule! {
        "5.13" MAY phase 3 [Lock, Try, Lease, AutoRenew, LossSignal, MaximumHold]
        layer: Engine, access: A, test: T,
        title: "a maximum hold ends the hold",
        statement: "A maximum hold ends the hold when it is over, neither sooner nor later, renewed or not, \
            and is told as the reason of the loss.",
        intent: "Automatic renewal keeps a hung job's lock for ever; the maximum hold is the way out, and \
            the reason tells it from an outage.",
        check_first: "Is the end of the hold part of the deadline, also after a renewal?",
        evidence: ["ended" >= 2],
        budget: 60 s,
        bug: "max_hold_ignored" deterministic
        => a_maximum_hold_ends_the_hold
    },
    rule! {
        "5.14" MUST phase 2 [Lock, Lease, AutoRenew]
        layer: Engine, access: A, test: T,
        title: "a thousand guards stay renewed",
        statement: "A thousand guards of one client (as many as are declared, three hundred in a quick run) \
            all stay renewed while the client is busy.",
        intent: "Renewals that are made one after the other take longer than the ttl once there are enough \
            of them, and all are lost in one minute.",
        check_first: "Are renewals batched or made side by side, and is the first of them due early enough \
            for the last?",
        evidence: ["guards" >= 100, "other_operations" >= 20],
        budget: 120 s,
        bug: "serial_renewer_starves" deterministic
        => a_thousand_guards_stay_renewed
    },
];

async fn renewal_postpones_the_end(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("renewed");
    let ask = cx.ask().ttl(cx.short_ttl());
    let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
    cx.sleep(ask.ttl * 3 / 5).await;
    let sent = cx.now();
    held.renew().await.seen("A renews a live grant")?;
    let answered = cx.now();
    let window = (
        sent + ask.ttl.saturating_sub(cx.skew(ask.ttl)),
        answered + ask.ttl + cx.slack(),
    );
    granted_within(&cx, &*b, &name, &ask, window, "A's renewed lease").await?;
    ensure!(
        !held.is_valid(),
        "A still thinks that it holds the lock after B was granted"
    );
    Ok(())
}

async fn renewal_is_a_reset(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("reset");
    let ask = cx.ask().ttl(cx.short_ttl());
    let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
    let (mut sent, mut answered) = (cx.now(), cx.now());
    for n in 1..=4 {
        cx.sleep(ask.ttl / 20).await;
        let before = held.deadline();
        sent = cx.now();
        held.renew().await.seen(format_args!("A's renewal {n}"))?;
        answered = cx.now();
        let after = held.deadline();
        ensure!(
            after >= before,
            "renewal {n} made A's deadline {:?} earlier",
            after.until(before)
        );
        ensure!(
            after <= answered + held.ttl().max(ask.ttl),
            "renewal {n} of a lease of {:?} promises A another {:?}",
            ask.ttl,
            answered.until(after)
        );
        cx.evidence("renewals");
    }
    let window = (
        sent + ask.ttl.saturating_sub(cx.skew(ask.ttl)),
        answered + ask.ttl + cx.slack(),
    );
    granted_within(&cx, &*b, &name, &ask, window, "A's lease, renewed four times").await?;
    Ok(())
}

async fn renewal_after_the_end_is_lost(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask().ttl(cx.short_ttl());
    let (quiet, busy, forced) = (cx.name("quiet"), cx.name("busy"), cx.name("forced"));
    let mut ended = vec![
        (
            a.acquire(&quiet, &ask).await.seen("A acquires")?,
            quiet,
            "it lapsed and nobody came",
        ),
        (
            a.acquire(&busy, &ask).await.seen("A acquires")?,
            busy.clone(),
            "it lapsed and another came and went",
        ),
    ];
    let over = cx.now() + ask.ttl + cx.slack();
    // Ended in the store without the holder's knowledge: only then does a renewal of a well-behaved client
    // get that far.
    if cx.claims().has(Need::ForceRelease)
        && let Some(operator) = b.observe()
    {
        let held = a.acquire(&forced, &cx.ask()).await.seen("A acquires")?;
        operator
            .force_release(&forced)
            .await
            .seen("an operator ends A's lease")?;
        ended.push((held, forced, "an operator ended it"));
    }
    cx.sleep_until(over).await;
    cx.expect_free(&*b, &busy, &ask, "after A's lease has lapsed")
        .await?
        .release()
        .await
        .seen("B releases")?;
    for (held, name, how) in &ended {
        refused_as_lost(held.renew().await, format_args!("A renews after {how}"))?;
        ensure!(!held.is_valid(), "A's guard is valid after {how}");
        cx.expect_free(&*b, name, &ask, format!("{how}, and A renewed"))
            .await?
            .release()
            .await
            .seen("B releases")?;
        cx.evidence("renewals_after_the_end");
    }
    Ok(())
}

async fn stale_renewal_spares_the_successor(cx: Cx) -> Verdict {
    let ask = cx.ask().ttl(cx.short_ttl());
    let forced = async {
        if cx.claims().has(Need::ForceRelease) {
            stale_renewal(&cx, "forced", &cx.ask(), &ask).await?;
        }
        Ok(())
    };
    try_join!(stale_renewal(&cx, "lapsed", &ask, &ask), forced)?;
    Ok(())
}

/// A's lease ends (by an operator if that is why, else by time), B is granted, A renews, and B's lease ends
/// when it would have.
async fn stale_renewal(cx: &Cx, why: &str, first: &crate::Ask, second: &crate::Ask) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let name = cx.name(why);
    let stale = a.acquire(&name, first).await.seen("A acquires a free name")?;
    match b.observe() {
        Some(operator) if why == "forced" => {
            operator
                .force_release(&name)
                .await
                .seen("an operator ends A's lease")?;
        }
        _ => cx.sleep(first.ttl + cx.slack()).await,
    }
    let asked = cx.now();
    let successor = cx
        .expect_free(&*b, &name, second, format!("after A's lease has ended ({why})"))
        .await?;
    let granted = cx.now();
    for n in 1..=3 {
        refused_as_lost(
            stale.renew().await,
            format_args!("{why}: A's stale renewal {n}, while B holds"),
        )?;
        cx.evidence("stale_renewals");
        cx.sleep(second.ttl / 8).await;
    }
    let window = (
        asked + second.ttl.saturating_sub(cx.skew(second.ttl)),
        granted + second.ttl + cx.slack(),
    );
    granted_within(cx, &*c, &name, second, window, format!("{why}: B's lease")).await?;
    ensure!(
        !successor.is_valid(),
        "{why}: B's guard is valid after C was granted"
    );
    Ok(())
}

async fn renewal_after_release_is_lost(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("released");
    let ask = cx.ask();
    for round in 0..cx.rounds(5, 50) {
        let held = a
            .acquire(&name, &ask)
            .await
            .seen(format_args!("round {round}: A acquires"))?;
        held.release()
            .await
            .seen(format_args!("round {round}: A releases"))?;
        refused_as_lost(
            held.renew().await,
            format_args!("round {round}: A renews what it released"),
        )?;
        cx.expect_free(
            &*b,
            &name,
            &ask,
            format!("round {round}: A released, then renewed"),
        )
        .await?
        .release()
        .await
        .seen(format_args!("round {round}: B releases"))?;
        cx.evidence("renewals_after_release");
    }
    Ok(())
}

async fn renewal_racing_release_ends_released(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    let mut rng = cx.rng();
    let mut names = Vec::new();
    for round in 0..cx.rounds(24, 500) {
        let name = cx.name(round);
        let held = a
            .acquire(&name, &ask)
            .await
            .seen(format_args!("round {round}: A acquires"))?;
        // Both are on their way at once; every other time one of them starts a little later.
        let pause = rng.duration(Duration::ZERO, Duration::from_millis(1));
        let (renew_first, at_once) = (rng.one_in(2), rng.one_in(2));
        let wait = |late: bool| {
            let pause = if late && !at_once { pause } else { Duration::ZERO };
            let cx = &cx;
            async move {
                if !pause.is_zero() {
                    cx.sleep(pause).await;
                }
            }
        };
        let renewal = async {
            wait(!renew_first).await;
            held.renew().await
        };
        let release = async {
            wait(renew_first).await;
            held.release().await
        };
        let (renewed, released) = join(renewal, release).await;
        if renewed.is_err() {
            refused_as_lost(renewed, format_args!("round {round}: the renewal"))?;
        }
        released.seen(format_args!("round {round}: A releases while it renews"))?;
        cx.evidence("races");
        cx.expect_free(
            &*b,
            &name,
            &ask,
            format!("round {round}: after a release that raced with a renewal"),
        )
        .await?
        .release()
        .await
        .seen(format_args!("round {round}: B releases"))?;
        names.push(name);
    }
    // Nor later.
    cx.sleep(Duration::from_millis(20)).await;
    for name in &names {
        cx.expect_free(&*b, name, &ask, "some time after that release")
            .await?;
    }
    Ok(())
}

async fn renewal_keeps_id_and_token(cx: Cx) -> Verdict {
    let a = cx.connect().await?;
    let name = cx.name("same");
    let held = a.acquire(&name, &cx.ask()).await.seen("A acquires")?;
    let (id, token) = (held.id(), held.token());
    for n in 1..=5 {
        held.renew().await.seen(format_args!("A's renewal {n}"))?;
        ensure!(
            held.id() == id,
            "renewal {n} changed the grant id from {id} to {}",
            held.id()
        );
        ensure!(
            held.token() == token,
            "renewal {n} changed the token from {token:?} to {:?}",
            held.token()
        );
        if cx.claims().has(Need::Inspect)
            && let Some(observer) = a.observe()
        {
            let seen = observer.inspect(&name).await.seen("inspect")?;
            ensure!(
                seen.holders.len() == 1 && seen.holders[0].token == token,
                "after renewal {n} the guard's token is {token:?}; the store has {:?}",
                seen.holders
            );
        }
        cx.evidence("renewals");
    }
    held.release().await.seen("A releases")?;
    Ok(())
}
