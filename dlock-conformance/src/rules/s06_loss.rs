//! §6 The loss signal.

use std::time::Duration;

use futures::FutureExt;
use futures::future::select_all;

use super::late_replies::lost_is_for_ever;
use super::s06_faults::{
    all_observers_are_told, loss_is_sticky, loss_is_told_by_the_deadline, loss_needs_no_poll,
};
use super::s06_refusals::{a_refusal_is_told_soon, loss_says_why};
use crate::cx::Cx;
use crate::rule::{Rule, rule};
use crate::verdict::{Failure, Seen, Verdict};
use crate::{ensure, fail};

pub(super) static RULES: &[Rule] = &[
    rule! {
        "6.01" MUST phase 1 [Lock, Lease, AutoRenew, LossSignal]
        layer: Engine, access: P, test: T,
        title: "loss is told by the deadline",
        statement: "If renewals fail, the loss signal fires no later than the local deadline.",
        intent: "After the deadline somebody else may hold the lock; a signal that comes later comes too \
            late.",
        check_first: "What arms the signal: the deadline itself, or an answer of the store?",
        evidence: ["losses" >= 1],
        budget: 120 s,
        bug: "lost_fires_late" deterministic
        => loss_is_told_by_the_deadline
    },
    rule! {
        "6.02" MUST phase 1 [Lock, Try, Lease, Renew, AutoRenew, LossSignal]
        layer: Engine, access: H, test: T,
        title: "a refusal is told soon",
        statement: "When the store says that a hold is over, the loss signal fires within one renewal \
            period, and at once if a renewal by hand is what was refused.",
        intent: "An operator ended the hold and the next one has begun; until the deadline there would be \
            two.",
        check_first: "Is the store's `not held` told from a renewal that merely failed?",
        evidence: ["refusals" >= 2],
        budget: 60 s,
        bug: "lost_ignores_refusal" deterministic
        => a_refusal_is_told_soon
    },
    rule! {
        "6.03" MUST phase 1 [Lock, LossSignal]
        layer: Engine, access: A, test: D,
        title: "no loss signal after release",
        statement: "The loss signal does not fire after a normal release, nor when the guard is dropped.",
        intent: "Whoever aborts its work when the lock is lost would abort work that was finished.",
        check_first: "Does the release end the lease in the way in which a loss does?",
        evidence: ["observed_releases" >= 3],
        budget: 60 s,
        bug: "lost_on_release" deterministic
        => no_loss_signal_after_release
    },
    rule! {
        "6.04" MUST phase 1 [Lock, Lease, AutoRenew, LossSignal]
        layer: Engine, access: P, test: D,
        title: "loss is sticky",
        statement: "The loss signal is sticky: an observer that comes late sees it at once.",
        intent: "Code that begins to listen after the loss would wait for ever for what has happened \
            already.",
        check_first: "Is the signal an event, or a state that is looked at first?",
        evidence: ["late_observers" >= 2],
        budget: 120 s,
        bug: "lost_edge_only" deterministic
        => loss_is_sticky
    },
    rule! {
        "6.05" MUST phase 1 [Lease, AutoRenew, LossSignal]
        layer: Engine, access: A, test: T,
        title: "no spurious loss",
        statement: "The loss signal does not fire during a healthy hold of twenty ttls, while the client is \
            busy with other locks.",
        intent: "A false alarm stops a job that was safe; after a few of them people switch the signal off.",
        check_first: "Does a renewal that is merely late, or one refused for another lock, count as a loss?",
        evidence: ["ttls_held" >= 20, "other_operations" >= 20],
        budget: 120 s,
        bug: "lost_spurious" deterministic
        => no_spurious_loss
    },
    rule! {
        "6.06" MUST phase 1 [Lock, Lease, AutoRenew, LossSignal]
        layer: Engine, access: P, test: D,
        title: "all observers are told",
        statement: "All observers of a guard get the loss signal, with the same reason.",
        intent: "The one that was not told goes on working.",
        check_first: "Does the notification wake one waiter, or all of them?",
        evidence: ["observers_told" >= 8],
        budget: 120 s,
        bug: "lost_single_observer" deterministic
        => all_observers_are_told
    },
    rule! {
        "6.07" MUST phase 1 [Lock, Lease, Renew, LossSignal, PerGrantTtl]
        layer: Engine, access: P, test: D,
        title: "lost is for ever",
        statement: "A lost guard never becomes valid again, even if the answer to a renewal arrives late \
            and says that it was renewed.",
        intent: "Whoever was told of the loss has stopped; another part of the program that asks again \
            later would go on.",
        check_first: "Does the answer to a renewal check whether the deadline has passed, in one step with \
            moving it?",
        evidence: ["late_confirmations" >= 1],
        budget: 120 s,
        bug: "lost_recovers" deterministic
        => lost_is_for_ever
    },
    rule! {
        "6.08" MUST phase 1 [Lock, Lease, AutoRenew, LossSignal]
        layer: Engine, access: P, test: D,
        title: "loss needs no poll",
        statement: "The loss signal works when the application never asks the guard anything.",
        intent: "A signal that needs somebody to look is none: whoever looks needs no signal.",
        check_first: "Is the end of a lease noticed by a background task, or by the next call?",
        evidence: ["losses_in_the_background" >= 1],
        budget: 120 s,
        bug: "lost_needs_poll" deterministic
        => loss_needs_no_poll
    },
    rule! {
        "6.09" SHOULD phase 2 [Lock, Try, Lease, Renew, LossSignal, PerGrantTtl]
        layer: Engine, access: H, test: D,
        title: "loss says why",
        statement: "The loss carries its reason: expired, refused, closed, held for as long as it may be; a \
            server that is away is an expiry.",
        intent: "`Expired` says that the machine or the network is too slow, `refused` that somebody ended \
            the hold: one is mended, the other obeyed.",
        check_first: "Where a lease is ended: does what ends it say why?",
        evidence: ["reasons" >= 3],
        budget: 60 s,
        bug: "lost_reason_constant" deterministic
        => loss_says_why
    },
];

async fn no_loss_signal_after_release(cx: Cx) -> Verdict {
    let a = cx.connect().await?;
    let plain = cx.ask().ttl(cx.short_ttl());
    let renewing = plain.clone().auto_renew();
    let mut signals = Vec::new();
    for (how, ask) in [
        ("released", &plain),
        ("released, renewing itself", &renewing),
        ("dropped", &plain),
    ] {
        let held = a
            .acquire(&cx.name(how), ask)
            .await
            .seen(format_args!("A acquires what will be {how}"))?;
        signals.push(held.lost().map(move |reason| (how, reason)).boxed());
        if how == "dropped" {
            drop(held);
        } else {
            held.release()
                .await
                .seen(format_args!("A releases what is {how}"))?;
            // One that comes late.
            signals.push(held.lost().map(move |reason| (how, reason)).boxed());
        }
        cx.evidence("observed_releases");
    }
    // Beyond the end that the leases would have had.
    let long_enough = plain.ttl + plain.ttl / 4;
    match cx.timeout(long_enough, select_all(signals)).await {
        None => Ok(()),
        Some(((how, reason), ..)) => fail!("the loss signal of a guard that was {how} fired: {reason:?}"),
    }
}

async fn no_spurious_loss(cx: Cx) -> Verdict {
    let a = cx.connect().await?;
    let ask = cx.ask().ttl(healthy_ttl(&cx)).auto_renew();
    let mut held = Vec::new();
    for n in 0..4 {
        let guard = a.acquire(&cx.name(n), &ask).await.seen("A acquires")?;
        held.push(guard);
    }
    let from = cx.now();
    let mut load = Vec::new();
    for n in 0..2 {
        let (task, a, ask) = (cx.clone(), a.clone(), cx.ask());
        let name = cx.name(format_args!("load-{n}"));
        load.push(cx.spawn(async move {
            while task.now() < from + ask_time(&task) {
                let other = a.acquire(&name, &ask).await.seen("A takes another lock")?;
                other.release().await.seen("A lets go of it")?;
                task.evidence("other_operations");
                task.sleep(Duration::from_millis(5)).await;
            }
            Ok::<(), Failure>(())
        }));
    }
    for n in 1..=21 {
        let signals = held.iter().map(|h| h.lost());
        if let Some((reason, which, _)) = cx.timeout(ask.ttl, select_all(signals)).await {
            fail!(
                "guard {which}, which renews itself, was told that it is lost after {:?} of a hold that \
                    nothing disturbed: {reason:?}",
                from.until(cx.now())
            );
        }
        ensure!(
            held.iter().all(|h| h.is_valid()),
            "a guard that renews itself is not valid after {n} ttls"
        );
        cx.evidence("ttls_held");
    }
    for task in load {
        task.await?;
    }
    for guard in held {
        guard.release().await.seen("A releases what it kept")?;
    }
    Ok(())
}

/// Long enough for the stalls that do not make the rule inconclusive, up to half of the slack: a renewal is
/// due at a third of it.
fn healthy_ttl(cx: &Cx) -> Duration {
    cx.ttl(Duration::from_millis(120).max(cx.slack()))
}

/// For how long the client is kept busy.
fn ask_time(cx: &Cx) -> Duration {
    healthy_ttl(cx) * 20
}
