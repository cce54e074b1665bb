//! Shared code of rules 3.06 and 4.02: a guard whose hold is over, and a successor.

use super::prelude::*;

/// Who holds the lock after the guard's hold is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Successor {
    /// Another client.
    Stranger,
    /// The same client.
    Sibling,
}

/// How the hold ends before its guard does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Expiry,
    /// By an operator: then the guard does not know that it is over, and its release does reach the store.
    Force,
}

/// What is done with the stale guard.
#[derive(Clone, Copy, Debug)]
enum Use {
    Release,
    Renew,
    Drop,
}

/// However a hold ended, any later use of its guard answers Lost and leaves the successor's hold alone.
pub(super) async fn stale_guard(cx: &Cx, successor: Successor) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let mut ends = vec![(End::Expiry, Use::Release), (End::Expiry, Use::Renew)];
    if cx.has(Need::ForceRelease) {
        ends.extend([
            (End::Force, Use::Release),
            (End::Force, Use::Renew),
            (End::Force, Use::Drop),
        ]);
    }
    if !cx.has(Need::Renew) {
        ends.retain(|(_, used)| !matches!(used, Use::Renew));
    }
    for (end, used) in ends {
        let name = cx.name(format!("{end:?}-{used:?}"));
        let ttl = cx.ttl(ms(if end == End::Expiry { 100 } else { 60_000 }));
        let stale = a.acquire(&name, &cx.ask().ttl(ttl)).await;
        let stale = stale.seen("A acquires a free name")?;
        match end {
            End::Force => drop(cx.force(&*c, &name).await?),
            End::Expiry => cx.sleep(stale.ttl() + cx.skew(stale.ttl())).await,
        }
        let next = if successor == Successor::Stranger { &b } else { &a };
        let by = cx.now() + cx.slack();
        let when = "after the end of A's hold";
        let live = cx.free_by(&**next, &name, &cx.ask(), by, when).await?;
        let what = format!("{used:?} of a guard whose hold is over ({end:?})");
        use_stale(stale, used, &what).await?;
        // What a drop sets going in the background has its time to do harm.
        cx.sleep(ms(10)).await;
        live.must_be_valid(format_args!(
            "{what}: the successor's guard is not valid any more"
        ))?;
        let then = format!("{what}, while the successor holds");
        c.is_refused(&name, &cx.ask(), then).await?;
        live.released(format!("{what}: the successor releases")).await?;
        cx.evidence("stale_ends");
    }
    Ok(())
}

async fn use_stale(stale: Box<dyn Held>, used: Use, what: &str) -> Verdict {
    let answer = match used {
        Use::Release => stale.release().await,
        Use::Renew => stale.renew().await,
        Use::Drop => return Ok(()),
    };
    match answer {
        Ok(()) => fail!("{what} was answered as a success"),
        Err(e) if e.kind() == ErrorKind::Lost => Ok(()),
        Err(e) => Err(e).seen(format_args!("{what}: Lost expected")),
    }
}
