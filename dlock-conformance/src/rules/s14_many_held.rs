//! §14 One client that holds many locks.

use super::prelude::*;

rules! {
    held_locks_use_up_no_pool, a_drop_ends_one_hold,
}

/// More than any usual pool has connections.
const MANY: u64 = 64;

rule! { "14.06" Must phase 2 [Lock, Try, Wait] Both A T held_locks_use_up_no_pool,
    evidence ["held_at_once" >= 16], bug "pool_deadlock"
    "A client that holds 64 locks, or as many as it is allowed, takes, renews and releases each within the \
        bound of an operation, or answers LimitReached; it never waits for itself."
    why "A lock that keeps a connection of the pool makes the eleventh lock wait for the release of the \
        first, by the same program."
    check "Does a held lock keep a connection, and what does the release need when all of them are kept?"
}
async fn held_locks_use_up_no_pool(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let bound = cx.claims().op_bound;
    let most = cx.claims().capabilities.max_held.unwrap_or(MANY).min(MANY);
    let ask = cx.ask();
    let mut held: Vec<(LockName, Box<dyn Held>)> = Vec::new();
    for n in 0..most {
        let name = cx.name(format_args!("held-{n}"));
        let what = format!("taking a free lock beside {n} others");
        let taking = cx.within(bound, what, a.acquire(&name, &ask));
        match taking.await? {
            Ok(guard) => held.push((name, guard)),
            // Said at once, it can be dealt with.
            Err(e) if e.kind() == ErrorKind::LimitReached => break,
            Err(e) => return Err(e).seen(format_args!("taking a free lock beside {n} others")),
        }
        cx.evidence("held_at_once");
    }
    // All are kept, and every one is still within reach.
    for (name, guard) in &held {
        let when = "while its client holds many";
        cx.expect_held(&*b, name, &ask, when).await?;
        if cx.has(Need::Renew) {
            cx.done(bound, "renewing one of many", guard.renew()).await?;
        }
    }
    for (_, guard) in &held {
        cx.done(bound, "releasing one of many", guard.release()).await?;
    }
    Ok(())
}

rule! { "14.07" Must phase 2 [Lock, Try, Lease] Both A D a_drop_ends_one_hold,
    evidence ["dropped" >= 8, "kept" >= 8], bug "drop_all_on_one"
    "Dropping half of a client's guards leaves the other half held."
    why "Cleaning up by session ends the locks of every other task of the process."
    check "What does giving back one lock do to the connection or session of the others?"
}
async fn a_drop_ends_one_hold(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let most = cx.claims().capabilities.max_held.unwrap_or(16).min(16);
    // Those that are dropped may take their ttl to be free.
    let (short, long) = (cx.ask().ttl(cx.short_ttl()), cx.ask());
    let mut kept = Vec::new();
    let mut dropped = Vec::new();
    for n in 0..most {
        let name = cx.name(format_args!("one of {most}: {n}"));
        let ask = if n % 2 == 0 { &long } else { &short };
        let guard = cx.expect_free(&*a, &name, ask, "one of many").await?;
        match n % 2 {
            0 => kept.push((name, guard)),
            _ => dropped.push((name, guard)),
        }
    }
    for (name, guard) in dropped {
        drop(guard);
        cx.evidence("dropped");
        let by = cx.now() + short.ttl + cx.slack();
        cx.passes_by(&*b, &name, &short, by, "after its guard was dropped")
            .await?;
        for (name, guard) in &kept {
            let when = "after another guard of its client was dropped";
            ensure!(
                guard.is_valid(),
                "`{name}`, {when}: its guard is not valid any more"
            );
            cx.expect_held(&*b, name, &long, when).await?;
        }
    }
    for (name, guard) in kept {
        let released = guard.release().await;
        released.seen(format_args!("releasing `{name}`, which was kept"))?;
        cx.evidence("kept");
    }
    Ok(())
}
