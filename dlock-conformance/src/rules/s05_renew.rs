//! §5 Renew and auto-renew.

use futures::future::join;
use futures::try_join;

use super::prelude::*;

rules! {
    renewal_postpones_the_end, renewal_is_a_reset, renewal_after_the_end_is_lost,
    stale_renewal_spares_the_successor, renewal_after_release_is_lost, renewal_racing_release_ends_released,
    renewal_keeps_id_and_token,
}

rule! { "5.01" Must phase 1 [Lease, Try, Renew, PerGrantTtl] Both A T renewal_postpones_the_end,
    evidence ["refusals" >= 5], bug "renew_noop"
    "A confirmed renewal of a live grant moves its expiry to the time of the renewal plus the ttl."
    why "A holder that renewed in time goes on working. If the store still counts from the first grant, \
        there are two holders."
    check "Does the renewal write the new expiry, or does it only answer Ok? Is that the time of the renewal \
        plus the whole ttl?"
}
async fn renewal_postpones_the_end(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("renewed");
    let ask = cx.ask().ttl(cx.short_ttl());
    let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
    cx.sleep(ask.ttl * 3 / 5).await;
    let sent = cx.now();
    held.renew().await.seen("A renews a live grant")?;
    let answered = cx.now();
    renewed_lease_ends(&cx, &*b, (&name, &ask), &*held, (sent, answered)).await?;
    held.must_be_over("A still believes that it holds the lock after B was granted")
}

/// B is granted when the lease that was renewed then is over, neither sooner nor later.
async fn renewed_lease_ends(
    cx: &Cx,
    b: &dyn Subject,
    of: (&LockName, &Ask),
    held: &dyn Held,
    (sent, answered): (Timestamp, Timestamp),
) -> Verdict {
    let (ttl, left) = (of.1.ttl, answered.until(held.deadline()));
    let window = end_of(cx, sent, answered, ttl);
    let what = format!("A's lease of {ttl:?}, of which A had {left:?} left after its last renewal");
    granted_within(cx, b, of, window, "refusals", what)
        .await
        .map(drop)
}

rule! { "5.02" Must phase 1 [Lease, Try, Renew, PerGrantTtl] Both A T renewal_is_a_reset,
    evidence ["renewals" >= 4, "refusals" >= 5], bug "renew_additive"
    "A renewal never shortens a lease, and starts the ttl anew instead of adding it to the remaining time."
    why "If each renewal adds a ttl, a holder that dies after an hour of renewing keeps the lock for hours."
    check "Is the new expiry counted from now, or from the old expiry? Can it be earlier than the old one?"
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
            "after renewal {n} of a lease of {:?} A has {:?} left",
            ask.ttl,
            answered.until(after)
        );
        cx.evidence("renewals");
    }
    renewed_lease_ends(&cx, &*b, (&name, &ask), &*held, (sent, answered)).await
}

rule! { "5.03" Must phase 1 [Lease, Try, Renew, PerGrantTtl] Both A T renewal_after_the_end_is_lost,
    evidence ["renewals_after_the_end" >= 2], bug "renew_resurrects"
    "A renewal after the lease has ended answers Lost, even if the name is free, and takes nothing."
    why "Another client may have held the lock in between. What the old holder knows of the resource is \
        stale."
    check "Is the renewal an upsert that creates the record again if it is gone?"
}
async fn renewal_after_the_end_is_lost(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask().ttl(cx.short_ttl());
    let (quiet, busy, forced) = (cx.name("quiet"), cx.name("busy"), cx.name("forced"));
    let held = a.acquire(&quiet, &ask).await.seen("A acquires")?;
    let mut ended = vec![(held, quiet, "it lapsed and stayed free")];
    let held = a.acquire(&busy, &ask).await.seen("A acquires")?;
    ended.push((
        held,
        busy.clone(),
        "it lapsed and another client held it in between",
    ));
    let over = cx.now() + ask.ttl + cx.slack();
    // Ended in the store only: a well-behaved client sends the renewal if it does not know.
    if cx.has(Need::ForceRelease) {
        let held = a.acquire(&forced, &cx.ask()).await.seen("A acquires")?;
        cx.force(&*b, &forced).await?;
        ended.push((held, forced, "an operator ended it"));
    }
    cx.sleep_until(over).await;
    b.passes(&busy, &ask, "after A's lease has lapsed").await?;
    for (held, name, how) in &ended {
        is_lost(held.renew().await, format_args!("A renews after {how}"))?;
        ensure!(!held.is_valid(), "A's guard is valid after {how}");
        b.passes(name, &ask, format!("{how}, and A renewed")).await?;
        cx.evidence("renewals_after_the_end");
    }
    Ok(())
}

rule! { "5.04" Must phase 1 [Lease, Try, Renew, PerGrantTtl] Both A T stale_renewal_spares_the_successor,
    evidence ["stale_renewals" >= 3], bug "renew_by_name"
    "A renewal by a guard whose lease has ended never extends the lease of its successor."
    why "If the store renews by name, a stale holder keeps the lock of a dead successor alive and believes \
        that it holds it."
    check "Does the renewal compare the grant id, in the same step as the write?"
}
async fn stale_renewal_spares_the_successor(cx: Cx) -> Verdict {
    let ask = cx.ask().ttl(cx.short_ttl());
    let forced = async {
        if cx.has(Need::ForceRelease) {
            stale_renewal(&cx, "forced", &cx.ask(), &ask).await?;
        }
        Ok(())
    };
    try_join!(stale_renewal(&cx, "lapsed", &ask, &ask), forced)?;
    Ok(())
}

/// A's lease ends (`why`), B is granted, A renews, and B's lease ends when it would have.
async fn stale_renewal(cx: &Cx, why: &str, first: &Ask, second: &Ask) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let name = cx.name(why);
    let stale = a.acquire(&name, first).await.seen("A acquires a free name")?;
    match why {
        "forced" => drop(cx.force(&*b, &name).await?),
        _ => cx.sleep(first.ttl + cx.slack()).await,
    }
    let asked = cx.now();
    let when = format!("after A's lease has ended ({why})");
    let successor = b.is_granted(&name, second, when).await?;
    let granted = cx.now();
    for n in 1..=3 {
        is_lost(
            stale.renew().await,
            format_args!("{why}: A's stale renewal {n}, while B holds"),
        )?;
        cx.evidence("stale_renewals");
        cx.sleep(second.ttl / 8).await;
    }
    let window = end_of(cx, asked, granted, second.ttl);
    let (of, what) = ((&name, second), format!("{why}: B's lease"));
    granted_within(cx, &*c, of, window, "refusals", what).await?;
    successor.must_be_over(format_args!("{why}: B's guard is valid after C was granted"))
}

rule! { "5.05" Must phase 1 [Lock, Try, Renew] Both A D renewal_after_release_is_lost,
    evidence ["renewals_after_release" >= 5], bug "renew_recreates"
    "A renewal after the release answers Lost, and the name stays free."
    why "A renewal that arrives last would take the lock back for a holder that has finished (ShedLock tests \
        for it)."
    check "Does the guard remember that it was released, and does the store refuse a lease that it does not \
        have?"
}
async fn renewal_after_release_is_lost(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("released");
    let ask = cx.ask();
    for round in 0..cx.rounds(5, 50) {
        let held = a.takes(&name, &ask, format!("round {round}: A acquires")).await?;
        held.released(format!("round {round}: A releases")).await?;
        let answer = held.renew().await;
        is_lost(answer, format_args!("round {round}: A renews a released lease"))?;
        let when = format!("round {round}: A released, then renewed");
        b.passes(&name, &ask, when).await?;
        cx.evidence("renewals_after_release");
    }
    Ok(())
}

rule! { "5.06" Must phase 1 [Lock, Try, Renew] Both A X renewal_racing_release_ends_released,
    evidence ["races" >= 20], bug "renew_release_race" stochastic
    "When a renewal and the release of one grant race, the name is free afterwards, in whichever order they \
        arrive."
    why "A background renewal is often in flight when the guard is released. It must not bring the lock back."
    check "Does a renewal that arrives after the release create the record again?"
}
async fn renewal_racing_release_ends_released(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    let mut rng = cx.rng();
    let mut names = Vec::new();
    for (round, name) in cx.names(24, 500).enumerate() {
        let held = a.takes(&name, &ask, format!("round {round}: A acquires")).await?;
        // Both are in flight at once. Every other time one of them starts a little later.
        let pause = rng.duration(Duration::ZERO, ms(1));
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
            is_lost(renewed, format_args!("round {round}: the renewal"))?;
        }
        released.seen(format_args!("round {round}: A releases while it renews"))?;
        cx.evidence("races");
        let when = format!("round {round}: after a release that raced with a renewal");
        b.passes(&name, &ask, when).await?;
        names.push(name);
    }
    // Nor later.
    cx.sleep(ms(20)).await;
    for name in &names {
        b.is_granted(name, &ask, "some time after that release").await?;
    }
    Ok(())
}

rule! { "5.08" Must phase 1 [Lock, Renew, Fence] Both A D renewal_keeps_id_and_token,
    evidence ["renewals" >= 5], bug "renew_bumps_token"
    "A renewal keeps the grant id and the fencing token, at the holder and in the store."
    why "If a renewal mints a token, a resource that has seen the new one refuses the holder, which still \
        carries the old one."
    check "Is the token minted by a statement that renewals use as well?"
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
        held.must_keep(token, format_args!("renewal {n}"))?;
        if cx.has(Need::Inspect)
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
    held.release().await.seen("A releases")
}
