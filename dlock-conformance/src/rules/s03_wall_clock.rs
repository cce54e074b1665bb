//! §3 Lease and expiry, the part about the wall clock.

use super::prelude::*;
use crate::agent::Child;

rules! {
    validity_ignores_the_wall_clock,
}

const STEP: i64 = 3600;

/// Sets the child's wall clock that far off, and says by how many seconds it has moved beyond the time that
/// passed.
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
    why "A clock that is set ends a lock that is held, or keeps its holder believing for an hour."
    check "Is any deadline a time of day?"
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
            inconclusive!("the child's wall clock was to be {how}, and is not");
        }
        cx.evidence("steps");
        let look = held.look().await.seen("the child looks at its guard")?;
        // A machine that stood still until the lease was nearly over says nothing.
        if look.answered > taken.asked + ask.ttl * 3 / 4 {
            inconclusive!("the clock was set only when the lease was nearly over");
        }
        ensure!(
            look.value.is_valid,
            "the wall clock went {how}, and the guard with {:?} of its {:?} to go calls itself invalid",
            look.answered.until(taken.asked + ask.ttl),
            ask.ttl
        );
        ensure!(
            look.value.remaining <= ask.ttl,
            "the wall clock went {how}, and the guard believes for another {:?} of a ttl of {:?}",
            look.value.remaining,
            ask.ttl
        );
        let signal = held.signal();
        cx.sleep_until(taken.answered + ask.ttl + ms(20)).await;
        let look = held.look().await.seen("the child looks at its guard")?.value;
        ensure!(
            !look.is_valid,
            "the wall clock went {how}, and after its ttl the guard calls itself valid for another {:?}",
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
