//! §2, the rules about very long times.

use super::prelude::*;
use crate::cx::Effort;

rules! {
    huge_durations_never_wrap, unbounded_wait_has_no_end,
}

/// The value that a too narrow counter makes of the times below.
const REST: Duration = ms(150);

/// Longer than any real use, and each a little longer than some counter can hold.
fn huge() -> Vec<(String, Duration)> {
    let limits = [
        ("2^32 nanoseconds", Duration::from_nanos(1 << 32)),
        ("2^32 microseconds", Duration::from_micros(1 << 32)),
        ("2^31 milliseconds", ms(1 << 31)),
        ("2^32 milliseconds", ms(1 << 32)),
        ("2^31 seconds", Duration::from_secs(1 << 31)),
        ("2^32 seconds", Duration::from_secs(1 << 32)),
        ("2^64 nanoseconds", Duration::from_nanos(u64::MAX)),
    ];
    let mut huge = Vec::from(limits.map(|(what, limit)| (format!("{what} and a bit"), limit + REST)));
    huge.push(("50 days".to_owned(), Duration::from_secs(50 * 24 * 3600)));
    huge.push(("the longest Duration".to_owned(), Duration::MAX));
    huge
}

rule! { "2.10" Must phase 2 [Lock, Try, Wait, Lease] Both A D huge_durations_never_wrap,
    evidence ["huge_ttls" >= 8, "huge_waits" >= 8], bug "ttl_u32_wrap"
    "Very long ttls and wait limits, up to the longest Duration, are kept, cut to the declared maximum, or \
        refused. None becomes a short one."
    why "A `Duration::MAX` that wraps to a few milliseconds takes the lock away from its holder, or ends a \
        wait that should never end."
    check "Into which unit and width is the duration converted, and what happens to values that do not fit?"
}
async fn huge_durations_never_wrap(cx: Cx) -> Verdict {
    huge_ttls(&cx).await?;
    huge_limits(&cx).await
}

async fn huge_ttls(cx: &Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let mut held = Vec::new();
    let longest = cx.claims().capabilities.max_ttl;
    let with_ttl = |(what, ttl): (String, Duration)| {
        let least = ttl.min(longest);
        (format!("a ttl of {what}"), cx.ask().ttl(ttl), least)
    };
    let mut asks: Vec<_> = huge().into_iter().map(with_ttl).collect();
    if cx.has(Need::MaximumHold) {
        let ask = cx.ask().max_hold(Duration::MAX);
        asks.push(("a maximum hold without end".to_owned(), ask, cx.long_ttl()));
    }
    for (n, (what, ask, least)) in asks.into_iter().enumerate() {
        let name = cx.name(n);
        match a.try_acquire(&name, &ask).await {
            Ok(Some(guard)) => {
                // Half of it, since margins and round trips do not matter here.
                ensure!(
                    !cx.has(Need::PerGrantTtl) || guard.remaining() >= least / 2,
                    "{what} gives a guard with {:?} left",
                    guard.remaining()
                );
                held.push((what, name, guard));
            }
            Ok(None) => fail!("{what}: the answer is `held`, for a free name"),
            Err(e) if e.kind() == ErrorKind::InvalidInput => {
                b.passes(&name, &cx.ask(), format!("{what} was refused")).await?;
            }
            Err(e) => return Err(e).seen(format_args!("{what}: a grant or InvalidInput expected")),
        }
        cx.evidence("huge_ttls");
    }
    cx.sleep(REST * 2 + cx.skew(REST)).await;
    for (what, name, guard) in &held {
        guard.must_be_valid(format_args!(
            "{what}: the guard is lost, for {:?}, {:?} later",
            guard.loss(),
            REST * 2
        ))?;
        b.is_refused(name, &cx.ask(), format!("{what}, {:?} later", REST * 2))
            .await?;
    }
    for (what, _, guard) in held {
        guard.release().await.seen(format_args!("{what}: A releases"))?;
    }
    Ok(())
}

async fn huge_limits(cx: &Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("waited-for"), cx.ask());
    let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
    let mut waits = Vec::new();
    for (what, limit) in huge() {
        let (b, name, ask) = (Arc::clone(&b), name.clone(), ask.clone());
        let waiting = cx.spawn(async move {
            let granted = b.acquire_timeout(&name, &ask, limit).await?;
            granted.release().await
        });
        waits.push((what, waiting));
    }
    cx.sleep(REST * 2).await;
    let mut patient = Vec::new();
    for (what, mut waiting) in waits {
        match cx.timeout(ms(1), &mut waiting).await {
            None => patient.push((what, waiting)),
            Some(Err(e)) if e.kind() == ErrorKind::InvalidInput => {}
            Some(Err(e)) => {
                return Err(Failure::from(e))
                    .seen(format_args!("a wait of {what} ended after {:?}", REST * 2));
            }
            Some(Ok(())) => fail!("a wait of {what} was granted although the name is held"),
        }
        cx.evidence("huge_waits");
    }
    held.release().await.seen("A releases")?;
    for (what, waiting) in patient {
        let what = format!("a wait of {what}, after the release");
        cx.done(cx.prompt(), what, waiting).await?;
    }
    Ok(())
}

/// How long to wait for the claimed longest default to show. A quick run in real time looks for shorter ones.
pub(super) fn endurance(cx: &Cx) -> Duration {
    let whole = (cx.claims().largest_default * 3).max(Duration::from_secs(1));
    if cx.is_virtual() || cx.effort() == Effort::Full {
        whole
    } else {
        whole.min(Duration::from_secs(2))
    }
}

rule! { "2.11" Must phase 2 [Lock, Wait] Engine A T unbounded_wait_has_no_end,
    evidence ["waits_outlived" >= 1], bug "hidden_default_timeout", budget 120 s
    "A wait without a limit outlives three times the longest time limit of the subject itself."
    why "A caller that waits without a limit does not handle `Timeout`. A hidden default ends its wait \
        during the first long job."
    check "Does the timeout of a request, a socket or the pool also end the wait for the holder?"
}
async fn unbounded_wait_has_no_end(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("held-long");
    let long = endurance(&cx);
    let ask = cx.renewing(cx.ask());
    let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
    let mut waiting = cx.waits(&b, &name, &ask);
    let from = cx.now();
    if let Some(ended) = cx.timeout(long, &mut waiting).await {
        let after = cx.now().since(from);
        match ended {
            Ok(_) => fail!("B was granted after {after:?} although A holds"),
            Err(e) => return Err(e).seen(format_args!("B's wait without limit ended after {after:?}")),
        }
    }
    held.release().await.seen("A releases")?;
    let bound = cx.claims().wake_p99 + cx.slack();
    let what = format!("B, which has waited for {long:?}");
    let granted = cx.done(bound, what, waiting).await?;
    cx.evidence("waits_outlived");
    cx.note(format_args!(
        "waited for {long:?}; the longest default that is claimed is {:?}",
        cx.claims().largest_default
    ));
    granted.release().await.seen("B releases")
}
