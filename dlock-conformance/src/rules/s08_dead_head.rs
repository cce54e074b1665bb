//! §8 Waking and fairness, the part about a waiter that dies.

use super::prelude::*;
use crate::agent::{Asked, Child, Hold};

rules! {
    a_dead_head_does_not_block,
}

/// Until that many are queued, by the store's own word where it gives one.
async fn queued(cx: &Cx, client: &dyn Subject, name: &LockName, n: u32) -> Verdict {
    let Some(observe) = client.observe().filter(|_| cx.has(Need::Inspect)) else {
        cx.sleep(ms(100)).await;
        return Ok(());
    };
    let by = cx.now() + cx.claims().op_bound;
    while observe
        .inspect(name)
        .await
        .seen("the queue is looked at")?
        .waiting
        < n
    {
        if cx.now() > by {
            inconclusive!("{n} waiters were not queued after {:?}", cx.claims().op_bound);
        }
        cx.sleep(ms(5)).await;
    }
    Ok(())
}

/// Stops the child while nothing of it is in the store. One that waits may be asking just now, and in some
/// stores a process that is stopped at that moment keeps everybody from everything; that is no matter of the
/// queue's.
async fn stop_outside(cx: &Cx, child: &Child, client: &dyn Subject, round: usize) -> Verdict {
    for attempt in 0..20 {
        child.stop()?;
        let probe = cx.name(format_args!("probe-{round}-{attempt}"));
        let tried = cx
            .timeout(cx.claims().op_bound, client.try_acquire(&probe, &cx.ask()))
            .await;
        if let Some(Ok(Some(held))) = tried {
            let released = held.release().await;
            released.seen("a lock that nobody else knows is released")?;
            return Ok(());
        }
        child.resume()?;
        cx.sleep(ms(7)).await;
    }
    inconclusive!("wherever the head of the queue was stopped, it kept everybody from the store");
}

rule! { "8.06" Must phase 2 [Lock, Wait, Lease, Fair] Both C T a_dead_head_does_not_block,
    evidence ["heads_gone" >= 3, "granted_behind" >= 3], bug "dead_head_blocks", budget 120 s
    "A waiter at the head of the queue that dies or is cancelled keeps those behind it waiting for its ttl \
        and slack at most."
    why "A queue of waiters without leases stands still for ever behind the first one whose process was \
        killed."
    check "Does a place in the queue lapse by itself, and is what is granted to a dead waiter an ordinary \
        lease?"
}
async fn a_dead_head_does_not_block(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask().ttl(cx.short_ttl());
    for round in 0..cx.rounds(1, 10) {
        for how in [
            "cancelled",
            "killed before the release",
            "killed after the release",
        ] {
            let name = cx.name(format_args!("{how}-{round}"));
            let child = cx.child().await?;
            let held = a.acquire(&name, &cx.ask()).await.seen("A acquires")?;
            let head: Asked<Hold> = child.wait_for(&name, &ask, None);
            queued(&cx, &*a, &name, 1).await?;
            let waiting = {
                // With a place that does not lapse, however busy this machine is.
                let (b, name, ask) = (b.clone(), name.clone(), cx.ask());
                cx.spawn(async move { b.acquire(&name, &ask).await })
            };
            queued(&cx, &*a, &name, 2).await?;
            let bound = match how {
                "cancelled" => {
                    drop(head);
                    // What was cancelled a moment ago may be on its way yet.
                    cx.claims().cancel_prompt + cx.slack()
                }
                "killed before the release" => {
                    child.kill()?;
                    ask.ttl + cx.slack()
                }
                // It is stopped first: it must have no time to take what it is given and let go of it.
                _ => {
                    stop_outside(&cx, &child, &*b, round).await?;
                    ask.ttl + cx.slack()
                }
            };
            held.release().await.seen("A releases")?;
            let from = cx.now();
            if how == "killed after the release" {
                child.kill()?;
            }
            cx.evidence("heads_gone");
            let Some(granted) = cx.timeout(bound, waiting).await else {
                fail!(
                    "the head of the queue was {how}; {:?} after the release the one behind it is not \
                        granted",
                    from.until(cx.now())
                );
            };
            let granted = granted.seen("the one behind waits")?;
            granted.release().await.seen("the one behind releases")?;
            cx.evidence("granted_behind");
        }
    }
    Ok(())
}
