//! §6 The loss signal.

use futures::FutureExt;
use futures::future::select_all;

use super::prelude::*;

rules! {
    no_loss_signal_after_release, no_spurious_loss,
}

rule! { "6.03" Must phase 1 [Lock, LossSignal] Engine A D no_loss_signal_after_release,
    evidence ["observed_releases" >= 3], bug "lost_on_release"
    "The loss signal does not fire after a normal release, nor when the guard is dropped."
    why "Whoever aborts its work when the lock is lost would abort work that was finished."
    check "Does the release end the lease in the way in which a loss does?"
}
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
        let held = a.acquire(&cx.name(how), ask).await;
        let held = held.seen(format_args!("A acquires what will be {how}"))?;
        signals.push(held.lost().map(move |reason| (how, reason)).boxed());
        if how == "dropped" {
            drop(held);
        } else {
            let released = held.release().await;
            released.seen(format_args!("A releases what is {how}"))?;
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

rule! { "6.05" Must phase 1 [Lease, AutoRenew, LossSignal] Engine A T no_spurious_loss,
    evidence ["ttls_held" >= 20, "other_operations" >= 20], bug "lost_spurious", budget 120 s
    "The loss signal does not fire during a healthy hold of twenty ttls, while the client is busy with other \
        locks."
    why "A false alarm stops a job that was safe; after a few of them people switch the signal off."
    check "Does a renewal that is merely late, or one refused for another lock, count as a loss?"
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
                task.sleep(ms(5)).await;
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
    all(load).await?;
    for guard in held {
        guard.release().await.seen("A releases what it kept")?;
    }
    Ok(())
}

/// Long enough for the stalls that do not make the rule inconclusive, up to half of the slack: a renewal is
/// due at a third of it.
fn healthy_ttl(cx: &Cx) -> Duration {
    cx.ttl(ms(120).max(cx.slack()))
}

/// For how long the client is kept busy.
fn ask_time(cx: &Cx) -> Duration {
    healthy_ttl(cx) * 20
}
