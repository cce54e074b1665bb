//! §6 The loss signal.

use dlock_core::LossReason;
use futures::FutureExt;
use futures::future::select_all;

use super::prelude::*;

rules! {
    no_loss_signal_after_release, no_spurious_loss, a_refusal_is_told_soon, loss_says_why,
}

rule! { "6.03" Must phase 1 [Lock, LossSignal] Engine A D no_loss_signal_after_release,
    evidence ["observed_releases" >= 3], bug "lost_on_release"
    "The loss signal does not fire after a normal release, nor when the guard is dropped."
    why "A job that aborts on loss would abort work that has already finished."
    check "Does a release end the lease through the same path as a loss?"
}
async fn no_loss_signal_after_release(cx: Cx) -> Verdict {
    let a = cx.connect().await?;
    let plain = cx.ask().ttl(cx.steady_ttl());
    let renewing = plain.clone().auto_renew();
    let mut signals = Vec::new();
    for (how, ask) in [
        ("released", &plain),
        ("released, with auto-renewal", &renewing),
        ("dropped", &plain),
    ] {
        let held = a.acquire(&cx.name(how), ask).await;
        let held = held.seen(format_args!("A acquires a lock that will be {how}"))?;
        signals.push(held.lost().map(move |reason| (how, reason)).boxed());
        if how == "dropped" {
            drop(held);
        } else {
            held.released(format!("A releases the lock that is {how}"))
                .await?;
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
    why "A false alarm stops a job that was safe. After a few of them, users turn the signal off."
    check "Does a late renewal, or a refused renewal of another lock, count as a loss?"
}
async fn no_spurious_loss(cx: Cx) -> Verdict {
    let a = cx.connect().await?;
    let ask = cx.ask().ttl(cx.kept_ttl(ms(120))).auto_renew();
    let mut held = Vec::new();
    for n in 0..4 {
        held.push(a.takes(&cx.name(n), &ask, "A acquires").await?);
    }
    let from = cx.now();
    let load = kept_busy(&cx, &a, from + ask.ttl * 20, ask.ttl / 24);
    for n in 1..=21 {
        let signals = held.iter().map(|h| h.lost());
        if let Some((reason, which, _)) = cx.timeout(ask.ttl, select_all(signals)).await {
            fail!(
                "guard {which}, with auto-renewal, was lost after {:?} although nothing disturbed it: \
                    {reason:?}",
                from.until(cx.now())
            );
        }
        ensure!(
            held.iter().all(|h| h.is_valid()),
            "a guard with auto-renewal is not valid after {n} ttls"
        );
        cx.evidence("ttls_held");
    }
    all(load).await?;
    for guard in held {
        guard.release().await.seen("A releases the locks that it kept")?;
    }
    Ok(())
}

/// Two tasks of that client take and release other locks until then.
pub(super) fn kept_busy(cx: &Cx, a: &Client, until: Timestamp, rest: Duration) -> Vec<Task<Verdict>> {
    cx.at_work([a.clone(), a.clone()], &(), move |worker, ()| async move {
        let (cx, lane, _, number) = worker;
        let (name, ask) = (cx.name(format_args!("load-{number}")), cx.ask());
        while cx.now() < until {
            lane.client().cycles(&name, &ask, "A takes another lock").await?;
            cx.evidence("other_operations");
            cx.sleep(rest).await;
        }
        Ok::<(), Failure>(())
    })
}

rule! { "6.02" Must phase 1 [Lock, Try, Lease, Renew, AutoRenew, LossSignal] Engine H T
        a_refusal_is_told_soon,
    evidence ["refusals" >= 2], bug "lost_ignores_refusal"
    "When the store reports that a hold is over, the loss signal fires within one renewal period, and at \
        once if the store refused a manual renewal."
    why "An operator ended the hold and the next holder has the lock. Without the signal, both work until \
        the deadline."
    check "Does the client distinguish the store's `not held` from a renewal that failed?"
}
async fn a_refusal_is_told_soon(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let every = ms(150);
    // The deadline is far away, so it does not cause the signal.
    let long = cx.ask().ttl(cx.ttl(every * 40)).renew_every(every);
    let name = cx.name("renews itself");
    let held = a.acquire(&name, &long).await.seen("A acquires")?;
    cx.sleep(every * 2).await;
    held.must_be_valid("a guard with auto-renewal is not valid after two renewal periods")?;
    let lost = held.lost();
    let taken = cx.evict(&*b, &name, &cx.ask()).await?;
    let what = "the loss signal of a guard whose hold was ended at the store";
    cx.within(every + cx.slack(), what, lost).await?;
    cx.evidence("refusals");
    is_lost(held.renew().await, "A's renewal of a name that B holds now")?;
    is_lost(held.release().await, "A's release of a name that B holds now")?;
    let when = "after the lost guard was released";
    a.is_refused(&name, &cx.ask(), when).await?;
    taken.release().await.seen("B releases")?;

    let name = cx.name("renewed by hand");
    let held = a.acquire(&name, &cx.ask()).await.seen("A acquires another")?;
    let lost = held.lost();
    let taken = cx.evict(&*b, &name, &cx.ask()).await?;
    is_lost(held.renew().await, "A's renewal of a name that B holds now")?;
    let what = "the loss signal of a guard whose renewal was refused";
    cx.within(cx.slack(), what, lost).await?;
    ensure!(!held.is_valid(), "a guard is valid after its renewal was refused");
    cx.evidence("refusals");
    taken.release().await.seen("B releases")
}

/// The loss has that reason, by the signal and by the guard.
async fn lost_for(cx: &Cx, held: &dyn Held, within: Duration, meant: LossReason, how: &str) -> Verdict {
    let what = format!("the loss signal of a guard that {how}");
    let told = cx.within(within, what, held.lost()).await?;
    ensure!(
        held.loss() == Some(told),
        "the signal of a guard that {how} says {told:?}, and the guard says {:?}",
        held.loss()
    );
    ensure!(
        told == meant,
        "the loss of a guard that {how} has the reason {told:?}, not {meant:?}"
    );
    cx.evidence("reasons");
    Ok(())
}

rule! { "6.09" Should phase 2 [Lock, Try, Lease, Renew, LossSignal, PerGrantTtl] Engine H D loss_says_why,
    evidence ["reasons" >= 3], bug "lost_reason_constant"
    "A loss carries its reason: expired, refused, closed, or maximum hold reached. If the server is \
        unreachable the reason is expired."
    why "`Expired` says that the machine or the network is too slow, `refused` that someone ended the hold. \
        The first is a problem to fix, the second a decision to respect."
    check "Does each place in the code that ends a lease give the reason?"
}
async fn loss_says_why(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let brief = cx.ask().ttl(cx.ttl(ms(120)));

    let how = "nobody renewed";
    let held = a.acquire(&cx.name("lapses"), &brief).await.seen("A acquires")?;
    let bound = held.ttl() + cx.slack();
    lost_for(&cx, &*held, bound, LossReason::Expired, how).await?;

    let how = "the store refused to renew";
    let name = cx.name("is ended");
    let held = a.acquire(&name, &cx.ask()).await.seen("A acquires")?;
    let taken = cx.evict(&*b, &name, &cx.ask()).await?;
    is_lost(held.renew().await, "the renewal of a name that B holds now")?;
    lost_for(&cx, &*held, cx.slack(), LossReason::Refused, how).await?;
    taken.release().await.seen("B releases")?;

    let how = "belonged to a client that was closed";
    let held = c.takes(&cx.name("is closed"), &cx.ask(), "C acquires").await?;
    c.close().await.seen("C is closed")?;
    lost_for(&cx, &*held, cx.slack(), LossReason::Closed, how).await?;

    if cx.has(Need::MaximumHold) {
        let how = "reached its maximum hold";
        let most = ms(120);
        let ask = cx.ask().max_hold(most);
        let held = a.takes(&cx.name("is too long"), &ask, "A acquires").await?;
        let bound = most + cx.slack();
        lost_for(&cx, &*held, bound, LossReason::MaxHold, how).await?;
    }
    if cx.has(Need::AutoRenew) {
        server_away(&cx).await?;
    }
    Ok(())
}

/// An unreachable server refuses nothing: the lease has expired, as far as its holder can know.
async fn server_away(cx: &Cx) -> Verdict {
    let Some(net) = cx.network_if_any("the loss while the server is unreachable was not tested")? else {
        return Ok(());
    };
    let how = "could not be renewed because the server was unreachable";
    let client = cx.connect_over(&net).await?;
    let ask = cx.ask().ttl(cx.ttl(ms(250))).auto_renew();
    let held = client.takes(&cx.name("away"), &ask, "a client acquires").await?;
    let away = net.begin(Fault::Away);
    let bound = held.ttl() + cx.slack();
    lost_for(cx, &*held, bound, LossReason::Expired, how).await?;
    away.heal();
    Ok(())
}
