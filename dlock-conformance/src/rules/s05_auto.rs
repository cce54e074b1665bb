//! §5, the rules about how long, and for how many, renewal goes on.

use dlock_core::LossReason;
use futures::try_join;

use super::prelude::*;
use super::s06_loss::kept_busy;

rules! {
    auto_renewal_lasts, a_maximum_hold_ends_the_hold, a_thousand_guards_stay_renewed,
}

/// A hold with auto-renewal, and what is special about it.
struct Kept {
    kind: &'static str,
    name: LockName,
    held: Box<dyn Held>,
}

rule! { "5.09" Must phase 1 [Lease, Try, AutoRenew] Engine A T auto_renewal_lasts,
    evidence ["refusals" >= 20], bug "autorenew_stops_after_5", budget 120 s
    "A guard with auto-renewal keeps the lock for ten ttls and more when nothing fails. This holds for a \
        writer, a reader, a downgraded hold, and a name that the same client had lost before."
    why "If renewal stops after a while, long jobs lose their lock (Redisson 5698)."
    check "Does each renewal schedule the next one, and what ends that chain? Is an entry of an earlier hold \
        in its way?"
}
/// All kinds at once: it takes no longer than one of them.
async fn auto_renewal_lasts(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask().ttl(cx.kept_ttl(ms(800))).auto_renew();
    let mut kept = Vec::new();
    for kind in [
        "lock",
        "shared lock",
        "downgraded lock",
        "lock of a name lost before",
    ] {
        let name = cx.name(kind);
        let claims = cx.claims();
        let held = match kind {
            "shared lock" if !claims.has(Need::Shared) => continue,
            "shared lock" => a.acquire(&name, &ask.clone().reader()).await.seen("A reads")?,
            "downgraded lock" if !claims.has(Need::Downgrade) => continue,
            "downgraded lock" => {
                let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
                let Some(convert) = held.convert() else { continue };
                convert.downgrade().await.seen("A downgrades")?;
                held
            }
            "lock of a name lost before" => {
                if !claims.has(Need::ForceRelease) || !claims.has(Need::LossSignal) {
                    continue;
                }
                loses(&cx, &*a, &*b, &name, &ask).await?;
                let again = a.acquire(&name, &ask).await;
                again.seen("A acquires again a name that it had lost")?
            }
            _ => a.acquire(&name, &ask).await.seen("A acquires a free name")?,
        };
        kept.push(Kept { kind, name, held });
    }
    let from = cx.now();
    let until = from + ask.ttl * 21 / 2;
    while cx.now() < until {
        for Kept { kind, name, held } in &kept {
            let after = from.until(cx.now());
            ensure!(
                held.is_valid() && held.loss().is_none(),
                "A's {kind} with a ttl of {:?} and auto-renewal is lost after {after:?}: {:?}",
                ask.ttl,
                held.loss()
            );
            let when = format!("A has held and renewed a {kind} for {after:?}");
            b.is_refused(name, &cx.ask(), when).await?;
            cx.evidence("refusals");
        }
        cx.sleep(ask.ttl / 5).await;
    }
    for Kept { kind, held, .. } in kept {
        let released = held.release().await;
        released.seen(format_args!("A releases the {kind} that it kept"))?;
    }
    Ok(())
}

/// A holds the name until an operator ends the hold and A learns of it.
async fn loses(cx: &Cx, a: &dyn Subject, b: &dyn Subject, name: &LockName, ask: &Ask) -> Verdict {
    let held = a.acquire(name, ask).await.seen("A acquires a free name")?;
    cx.force(b, name).await?;
    let lost = held.lost();
    let what = "the loss of a lock that an operator ended";
    cx.within(ask.ttl + cx.slack(), what, lost).await?;
    Ok(())
}

rule! { "5.13" May phase 3 [Lock, Try, Lease, AutoRenew, LossSignal, MaximumHold] Engine A T
        a_maximum_hold_ends_the_hold,
    evidence ["ended" >= 2], bug "max_hold_ignored"
    "A maximum hold ends the hold on time, neither sooner nor later, renewed or not, and is the reason of \
        the loss."
    why "Auto-renewal keeps the lock of a hung job for ever. A maximum hold ends it, and its reason \
        distinguishes that from an outage."
    check "Is the end of the maximum hold part of the deadline, also after a renewal?"
}
async fn a_maximum_hold_ends_the_hold(cx: Cx) -> Verdict {
    let short = cx.kept_ttl(ms(200));
    let renewing = cx.ask().ttl(short).auto_renew();
    let idle = cx.ask();
    // Beyond several renewals, and well before the end of a lease that needs none.
    try_join!(
        ends_at(&cx, "renewing", &renewing, short * 5 / 2),
        ends_at(&cx, "idle", &idle, cx.long_ttl().min(ms(300))),
    )?;
    Ok(())
}

async fn ends_at(cx: &Cx, kind: &str, ask: &Ask, limit: Duration) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name(kind);
    let ask = ask.clone().max_hold(limit);
    let asked = cx.now();
    let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
    let latest = cx.now() + limit;
    ensure!(
        held.deadline() <= latest,
        "the deadline of a {kind} guard is {:?} after its maximum hold of {limit:?}",
        latest.until(held.deadline())
    );
    let lost = held.lost();
    let what = format!("the loss of a {kind} guard with a maximum hold of {limit:?}");
    let reason = cx.within(limit + cx.slack(), what, lost).await?;
    let after = asked.until(cx.now());
    ensure!(
        reason == LossReason::MaxHold && held.loss() == Some(LossReason::MaxHold),
        "a {kind} guard with a maximum hold of {limit:?} is lost after {after:?} for {reason:?}"
    );
    ensure!(
        after + cx.skew(limit) >= limit,
        "a {kind} guard with a maximum hold of {limit:?} is lost after {after:?}"
    );
    ensure!(
        !held.is_valid() && held.remaining().is_zero(),
        "a {kind} guard is valid after its maximum hold of {limit:?}"
    );
    // It is released, or lapses.
    let by = latest + cx.ttl(ms(200)) + cx.slack() * 2;
    cx.passes_by(&*b, &name, &cx.ask(), by, "A's maximum hold is over")
        .await?;
    cx.evidence("ended");
    Ok(())
}

rule! { "5.14" Must phase 2 [Lock, Lease, AutoRenew] Engine A T a_thousand_guards_stay_renewed,
    evidence ["guards" >= 100, "other_operations" >= 20], bug "serial_renewer_starves", budget 120 s
    "A thousand guards of one client all stay renewed while the client is busy. A quick run has three \
        hundred, and a declared limit caps the number."
    why "Renewals that run one after the other take longer than a ttl once there are enough of them. Then \
        all locks are lost within a minute."
    check "Are renewals batched or concurrent, and does the first one start early enough for the last?"
}
async fn a_thousand_guards_stay_renewed(cx: Cx) -> Verdict {
    let a = cx.connect().await?;
    let wish = cx.rounds(300, 1_000) as u64;
    // Two more are needed by the load.
    let limit = cx.claims().capabilities.max_held;
    let limit = limit.map_or(wish, |n| n.saturating_sub(2));
    let ask = cx.ask().ttl(cx.ttl(ms(1200))).auto_renew();
    let mut held = Vec::new();
    let names: Vec<_> = (0..wish.min(limit)).map(|n| cx.name(n)).collect();
    // Many at once, so that they fall due together: one after the other they would be renewed so, too.
    for some in names.chunks(100) {
        let guards = try_join_all(some.iter().map(|name| a.acquire(name, &ask)));
        held.extend(guards.await.seen("A acquires a hundred locks")?);
    }
    let until = cx.now() + ask.ttl * 2;
    let load = kept_busy(&cx, &a, until, ask.ttl / 300);
    while cx.now() < until {
        cx.sleep(ask.ttl / 12).await;
        let valid = held.iter().filter(|guard| guard.is_valid()).count();
        ensure!(
            valid == held.len(),
            "{} of {} guards of one client with auto-renewal are lost, {:?} before the end of 2 ttls; the \
                first: {:?}",
            held.len() - valid,
            held.len(),
            cx.now().until(until),
            held.iter().find_map(|guard| guard.loss())
        );
    }
    all(load).await?;
    cx.evidence_by("guards", held.len() as u64);
    // In the store too: if it had granted the lock to another client, the release would fail.
    for guard in held {
        guard.release().await.seen("A releases the locks that it kept")?;
    }
    Ok(())
}
