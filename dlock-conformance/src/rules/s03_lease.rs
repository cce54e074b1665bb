//! §3 Lease and expiry.

use crate::cx::Cx;
use crate::ensure;
use crate::rule::{Rule, rule};
use crate::verdict::{Seen, Verdict};

pub(super) static RULES: &[Rule] = &[rule! {
    "3.02" MUST phase 1 [Lease, Try, PerGrantTtl]
    layer: Both, access: A, test: T,
    title: "no early grant",
    statement: "A lease is not grantable to another before the send time of its last successful acquire or renewal plus its ttl, less the skew.",
    intent: "The holder works until its deadline; a store that gives the lock away sooner makes two holders of one lease.",
    check_first: "Does the store round a ttl down, or expire by another clock than the one it counted the lease with?",
    evidence: ["refusals_before_expiry" >= 5],
    budget: 60 s,
    bug: EarlyExpiry deterministic,
    blast: ["3.07", "3.12"]
    => no_early_grant
}];

async fn no_early_grant(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("lease");
    let ask = cx.ask().ttl(cx.short_ttl());
    let asked = cx.now();
    let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
    // The store cannot have begun to count before the request was sent, so before this nobody else may be granted.
    let earliest = asked + (ask.ttl - cx.skew(ask.ttl).min(ask.ttl));
    loop {
        let granted = b
            .try_acquire(&name, &ask)
            .await
            .seen("B tries while A's lease runs")?;
        let now = cx.now();
        if granted.is_some() {
            ensure!(
                now >= earliest,
                "A's lease of {:?} was given to B {:?} after A asked for it, {:?} too early",
                ask.ttl,
                now.since(asked),
                now.until(earliest)
            );
            break;
        }
        if now < earliest {
            cx.evidence("refusals_before_expiry");
        }
        ensure!(
            now < asked + ask.ttl * 3 + cx.slack(),
            "A's lease of {:?} has not lapsed after {:?}",
            ask.ttl,
            now.since(asked)
        );
        cx.sleep(ask.ttl / 50).await;
    }
    ensure!(
        !held.is_valid(),
        "A still thinks that it holds the lock after B was granted"
    );
    Ok(())
}
