//! §3 Lease and expiry.

use dlock_core::Nature;

use super::prelude::*;
use super::stale::{Successor, stale_guard};
use crate::agent::Child;

rules! {
    an_unrenewed_lease_lapses, no_early_grant, validity_is_computed, an_expired_guard_harms_no_successor,
    each_grant_its_own_ttl, expiry_wakes_a_waiter, the_least_ttl_works, validity_ignores_the_wall_clock,
}

/// A ttl short enough to wait for several times.
fn brief(cx: &Cx) -> Duration {
    cx.ttl(ms(150))
}

rule! { "3.01" Must phase 1 [Lock, Lease, Try] Both A T an_unrenewed_lease_lapses, evidence ["lapsed" >= 2],
    bug "no_expiry"
    "A grant that is not renewed can be acquired by others no later than its ttl plus slack after its last \
        confirmed acquire or renewal."
    why "A holder that dies must not keep the lock for ever. That is what the lease is for."
    check "Does the store end the lease, or does it wait for a message from the holder?"
}
async fn an_unrenewed_lease_lapses(cx: Cx) -> Verdict {
    let next = cx.connect().await?;
    for vanishes in [true, false] {
        let name = cx.name(if vanishes { "vanished" } else { "idle" });
        let ask = cx.ask().ttl(brief(&cx));
        let holder = cx.connect().await?;
        let held = holder.acquire(&name, &ask).await.seen("A acquires a free name")?;
        let by = cx.lapsed_by(held.ttl());
        let when = match vanishes {
            true => "after its holder vanished",
            false => "held by an idle guard",
        };
        if vanishes {
            holder.vanish();
        }
        cx.free_by(&*next, &name, &ask, by, when).await?;
        cx.evidence("lapsed");
    }
    Ok(())
}

rule! { "3.02" Must phase 1 [Lease, Try, PerGrantTtl] Both A T no_early_grant,
    evidence ["refusals_before_expiry" >= 5], bug "early_expiry"
    "A lease is not granted to another client before the send time of its last successful acquire or renewal \
        plus its ttl, less the skew."
    why "The holder works until its deadline. If the store grants the lock to another client earlier, there \
        are two holders."
    check "Does the store round a ttl down, or expire it by a different clock than the one that it was \
        counted with?"
}
async fn no_early_grant(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("lease");
    let ask = cx.ask().ttl(cx.short_ttl());
    let asked = cx.now();
    let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
    let (earliest, _) = end_of(&cx, asked, asked, ask.ttl);
    let window = (earliest, asked + ask.ttl * 3 + cx.slack());
    let what = format!("a lease of {:?}", ask.ttl);
    let next = granted_within(&cx, &*b, (&name, &ask), window, "refusals_before_expiry", what).await?;
    held.must_be_over("A still believes that it holds the lock after B was granted")?;
    drop(next);
    Ok(())
}

rule! { "3.04" Must phase 1 [Lock, Lease] Engine A D validity_is_computed, evidence ["stalls" >= 2],
    bug "cached_valid_flag"
    "Past the deadline is_valid is false and remaining is zero, with no I/O and with the executor blocked \
        for longer than the ttl."
    why "A flag that a background task clears is still set right after the pause during which the lock was \
        lost."
    check "Is validity computed from the clock at each call, or kept by a timer?"
}
async fn validity_is_computed(cx: Cx) -> Verdict {
    let client = cx.connect().await?;
    for round in 0..2_u32 {
        let ask = cx.ask().ttl(brief(&cx));
        let held = client.acquire(&cx.name(round), &ask).await;
        let held = held.seen("A acquires a free name")?;
        let (ttl, remaining) = (held.ttl(), held.remaining());
        ensure!(
            held.is_valid() && !remaining.is_zero(),
            "a fresh guard is not valid"
        );
        ensure!(
            remaining <= ttl,
            "a guard with a ttl of {ttl:?} has {remaining:?} left"
        );
        if round == 0 {
            // Nothing of the subject runs before the question, as after a long garbage collection.
            cx.stall(ttl + ms(20));
        } else {
            // Another thread may have news of its session: then the lease lasts for the session's ttl.
            let over = match cx.claims().capabilities.nature {
                Nature::Session => ttl,
                _ => remaining,
            };
            cx.stall(over + ms(1));
        }
        let (valid, remaining) = (held.is_valid(), held.remaining());
        ensure!(
            !valid,
            "a guard says that it is valid after a pause longer than its ttl of {ttl:?}"
        );
        ensure!(
            remaining.is_zero(),
            "a guard says that {remaining:?} are left after a pause longer than its ttl"
        );
        cx.evidence("stalls");
    }
    Ok(())
}

rule! { "3.06" Must phase 1 [Lock, Lease, Try] Both A T an_expired_guard_harms_no_successor,
    evidence ["stale_ends" >= 1], bug "release_by_name"
    "Release or renewal through a guard whose lease is over answers Lost and leaves the successor untouched."
    why "The late `finally` of a paused holder deletes the lock of the next holder. This is the classic bug \
        of DEL after SET NX."
    check "Is the release conditional on the acquisition, in the same step as the deletion?"
}
async fn an_expired_guard_harms_no_successor(cx: Cx) -> Verdict {
    stale_guard(&cx, Successor::Stranger).await
}

rule! { "3.07" Must phase 1 [Lock, Lease, Try, PerGrantTtl] Both A T each_grant_its_own_ttl,
    evidence ["short_leases" >= 2, "long_leases" >= 1], bug "ttl_sticky_first"
    "Each acquire has its own ttl: when two ttls alternate on one name, each is kept."
    why "A record that outlives its holder passes its old ttl on to the next one."
    check "Does the ttl belong to the record of the name, or to the grant?"
}
async fn each_grant_its_own_ttl(cx: Cx) -> Verdict {
    let next = cx.connect().await?;
    let name = cx.name("alternating");
    let short = brief(&cx);
    let long = cx.ttl(short * 3);
    for ttl in [short, long, short] {
        // Each has its own holder, which can vanish, so that only the store's clock ends the lease.
        let holder = cx.connect().await?;
        let ask = cx.ask().ttl(ttl);
        let asked = cx.now();
        let held = holder.acquire(&name, &ask).await;
        let held = held.seen("the next holder acquires a free name")?;
        let shown = held.ttl();
        ensure!(
            shown + cx.skew(ttl) >= ttl
                && shown <= ttl + cx.skew(ttl) + cx.claims().capabilities.ttl_granularity,
            "a grant that was requested with a ttl of {ttl:?} has one of {shown:?}"
        );
        let by = cx.lapsed_by(ttl);
        holder.vanish();
        // With a third ttl, so that a record that takes over the prober's ttl shows too.
        let probe = cx.ask();
        let window = (asked + ttl.saturating_sub(cx.skew(ttl)), by);
        let what = format!("a lease of {ttl:?}");
        let (of, early) = ((&name, &probe), "refusals_before_expiry");
        let taken = granted_within(&cx, &*next, of, window, early, what).await?;
        taken.release().await.seen("the prober releases")?;
        cx.evidence(if ttl == long {
            "long_leases"
        } else {
            "short_leases"
        });
    }
    Ok(())
}

rule! { "3.08" Must phase 1 [Lock, Wait, Lease] Both A T expiry_wakes_a_waiter, evidence ["taken_over" >= 2],
    bug "expiry_no_wakeup", budget 120 s
    "When the holder vanishes, a waiter gets the lock within the lease's ttl plus slack."
    why "A waiter that is woken by releases only never wakes up if the holder dies."
    check "What notices that the lease has expired when no message is sent?"
}
async fn expiry_wakes_a_waiter(cx: Cx) -> Verdict {
    let waiter = cx.connect().await?;
    for name in cx.names(2, 10) {
        let holder = cx.connect().await?;
        let held = holder.acquire(&name, &cx.ask().ttl(brief(&cx))).await;
        let held = held.seen("A acquires a free name")?;
        let by = cx.lapsed_by(held.ttl()) + cx.claims().wake_p99;
        let waiting = cx.waits(&waiter, &name, &cx.ask());
        cx.sleep(ms(10)).await;
        ensure!(!waiting.is_done(), "B does not wait while A holds");
        holder.vanish();
        let left = cx.now().until(by);
        let what = format!("B's wait, after A with a lease of {:?} vanished", held.ttl());
        cx.served(left, what, waiting).await?;
        cx.evidence("taken_over");
    }
    Ok(())
}

rule! { "3.11" Must phase 1 [Lock, Lease, Try] Both A T the_least_ttl_works,
    evidence ["lapsed" >= 2, "refusals" >= 1], bug "tiny_ttl_immortal"
    "The smallest declared ttl works and lapses. A smaller one is refused, and never makes a lock that does \
        not expire."
    why "To more than one store, a ttl that is divided down to zero means `no expiry`."
    check "In which unit does the ttl reach the store, and what does zero mean there?"
}
async fn the_least_ttl_works(cx: Cx) -> Verdict {
    let next = cx.connect().await?;
    let least = cx.claims().capabilities.min_ttl;
    for round in 0..2 {
        let holder = cx.connect().await?;
        let (name, ask) = (cx.name(round), cx.ask().ttl(least));
        let held = holder.acquire(&name, &ask).await;
        let held = held.seen(format_args!("A acquires with the minimum ttl, {least:?}"))?;
        let by = cx.lapsed_by(least);
        if cx.has(Need::PerGrantTtl) {
            let longest = least + cx.skew(least) + cx.claims().capabilities.ttl_granularity;
            ensure!(
                held.ttl() <= longest,
                "a lease of {least:?}, the minimum ttl, became one of {:?}",
                held.ttl()
            );
        }
        holder.vanish();
        let when = format!("a lease of {least:?}, the minimum ttl, whose holder vanished");
        cx.free_by(&*next, &name, &cx.ask(), by, when).await?;
        cx.evidence("lapsed");
    }
    let mut smaller = vec![Duration::ZERO, least / 2];
    smaller.dedup();
    for ttl in smaller {
        let name = cx.name(format!("below-{}", ttl.as_nanos()));
        let what = format!("a ttl of {ttl:?}, below the minimum of {least:?}");
        let tried = next.try_acquire(&name, &cx.ask().ttl(ttl)).await;
        refused(tried, ErrorKind::InvalidInput, what)?;
        cx.evidence("refusals");
        next.is_granted(&name, &cx.ask(), "after a refused ttl").await?;
    }
    Ok(())
}

const STEP: i64 = 3600;

/// Sets the child's wall clock that far off, and says by how much it moved beyond the time that passed.
async fn set(cx: &Cx, child: &Child, seconds: i64) -> Verdict<f64> {
    let before = child.wall_clock().await.seen("the child reads its wall clock")?;
    child.set_wall_clock(seconds)?;
    let after = child
        .wall_clock()
        .await
        .seen("the child reads its wall clock again")?;
    let passed = before.asked.until(cx.now());
    Ok(after.value.as_secs_f64() - before.value.as_secs_f64() - passed.as_secs_f64())
}

rule! { "3.05" Must phase 2 [Lock, Wait, Lease, Try] Engine C T validity_ignores_the_wall_clock,
    evidence ["steps" >= 2], bug "client_walltime_deadline"
    "A step of the holder's wall clock by an hour, in either direction, changes nothing about the validity \
        of its guard."
    why "A change of the wall clock ends a lock that is still held, or makes its holder believe in it for an \
        hour too long."
    check "Is any deadline computed from the time of day?"
}
async fn validity_ignores_the_wall_clock(cx: Cx) -> Verdict {
    let (b, child) = (cx.connect().await?, cx.child_with_wall_clock().await?);
    let ask = cx.ask().ttl(cx.short_ttl() * 2);
    for (step, how) in [(STEP, "an hour forward"), (-STEP, "an hour back")] {
        let name = cx.name(how);
        let held = child.wait_for(&name, &ask, Some(cx.claims().op_bound)).await;
        let taken = held.seen("the child acquires")?;
        let held = taken.value;
        if (set(&cx, &child, step).await? - step as f64).abs() > 60.0 {
            inconclusive!("the child's wall clock was not set {how}");
        }
        cx.evidence("steps");
        let look = held.look().await.seen("the child looks at its guard")?;
        // If the machine stalled until the lease was nearly over, this proves nothing.
        if look.answered > taken.asked + ask.ttl * 3 / 4 {
            inconclusive!("the clock was set too late: the lease was nearly over");
        }
        ensure!(
            look.value.is_valid,
            "the wall clock went {how}, and a guard with {:?} of its {:?} left says that it is not valid",
            look.answered.until(taken.asked + ask.ttl),
            ask.ttl
        );
        ensure!(
            look.value.remaining <= ask.ttl,
            "the wall clock went {how}, and the guard says that {:?} of a ttl of {:?} are left",
            look.value.remaining,
            ask.ttl
        );
        let signal = held.signal();
        cx.sleep_until(taken.answered + ask.ttl + ms(20)).await;
        let look = held.look().await.seen("the child looks at its guard")?.value;
        ensure!(
            !look.is_valid,
            "the wall clock went {how}, and after its ttl the guard says that {:?} are left",
            look.remaining
        );
        let what = format!("{how}: the loss signal after the ttl");
        let fired = cx.within(cx.slack(), what, signal).await?;
        fired.seen("the child waits for the loss signal")?;
        let by = taken.answered + ask.ttl + cx.slack();
        cx.passes_by(&*b, &name, &ask, by, format!("the wall clock went {how}"))
            .await?;
        child.set_wall_clock(0)?;
    }
    Ok(())
}
