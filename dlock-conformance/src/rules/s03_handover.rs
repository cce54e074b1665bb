//! §3, the rules about the exact end of a lease, and what its holders believe then.

use super::prelude::*;

rules! {
    finer_ttls_round_up, beliefs_do_not_overlap,
}

rule! { "3.10" Must phase 2 [Lock, Try, Lease, PerGrantTtl] Both A T finer_ttls_round_up,
    evidence ["fine_ttls" >= 5], bug "ttl_rounds_down"
    "A ttl finer than the declared granularity is rounded up to it, never down, and by no more than one step."
    why "A store that truncates a ttl to whole seconds ends the lease before its holder expects it. For up \
        to a second there are two holders."
    check "Does the conversion to the store's unit truncate or round up? Does the guard get the effective \
        ttl?"
}
async fn finer_ttls_round_up(cx: Cx) -> Verdict {
    let grain = cx.claims().capabilities.ttl_granularity;
    let base = cx.ttl(ms(150));
    let (milli, nano) = (ms(1), Duration::from_nanos(1));
    // Just above, within and just below a step of the claimed granularity, and of others.
    let wishes = [
        base + nano,
        base + grain / 2,
        base + grain.saturating_sub(nano),
        base + milli * 49 + milli / 2,
        base + milli * 9,
    ];
    let next = cx.connect().await?;
    let each = wishes.into_iter().enumerate().map(|(n, ttl)| {
        let (cx, next) = (cx.clone(), next.clone());
        async move {
            let holder = cx.connect().await?;
            let name = cx.name(n);
            let asked = cx.now();
            let held = holder.acquire(&name, &cx.ask().ttl(ttl)).await;
            let held = held.seen(format_args!("A acquires with a ttl of {ttl:?}"))?;
            let shown = held.ttl();
            ensure!(
                shown >= ttl,
                "a ttl of {ttl:?} was rounded down to {shown:?}; the claimed granularity is {grain:?}"
            );
            ensure!(
                shown <= ttl + grain + cx.skew(ttl),
                "a ttl of {ttl:?} became {shown:?}; the claimed granularity is {grain:?}"
            );
            let by = cx.lapsed_by(shown);
            holder.vanish();
            let window = (asked + ttl.saturating_sub(cx.skew(ttl)), by);
            let (asking, what) = (cx.ask(), format!("a lease of {ttl:?}"));
            let (of, early) = ((&name, &asking), "refusals_before_expiry");
            granted_within(&cx, &*next, of, window, early, what).await?;
            cx.evidence("fine_ttls");
            Ok::<(), Failure>(())
        }
    });
    try_join_all(each).await?;
    Ok(())
}

rule! { "3.12" Must phase 2 [Lock, Wait, Lease, PerGrantTtl] Both A X beliefs_do_not_overlap,
    evidence ["hand_overs" >= 8], bug "negative_margin"
    "When a lease expires and the lock passes on, the former holder's local deadline is not later than the \
        return of the next holder's acquire, by more than the skew."
    why "The store can be right and two holders still overlap. What matters is what the two holders believe."
    check "Is the drift margin subtracted from the lease, and from which moment is the deadline counted?"
}
async fn beliefs_do_not_overlap(cx: Cx) -> Verdict {
    let ask = cx.ask().ttl(cx.ttl(ms(120)));
    // With the deadline of the last holder, from its guard.
    let shared = (
        cx.name("handed-over"),
        ask,
        Arc::<Mutex<Option<Timestamp>>>::default(),
    );
    let rounds = cx.rounds(4, 30);
    let clients = cx.clients(3).await?;
    let tasks = cx.at_work(clients, &shared, move |worker, (name, ask, last)| async move {
        let (cx, lane, mut rng, number) = worker;
        for _ in 0..rounds {
            let held = lane.acquire(&name, &ask).await;
            let held = held.seen(format_args!("holder {number} acquires"))?;
            let granted = cx.now();
            let before = lock(&last).replace(held.deadline());
            if let Some(before) = before {
                ensure!(
                    before <= granted + cx.skew(held.ttl()),
                    "holder {number} was granted {:?} before the deadline of the holder before it",
                    granted.until(before)
                );
                cx.evidence("hand_overs");
            }
            if cx.has(Need::Renew) && rng.one_in(2) {
                cx.sleep(ask.ttl / 4).await;
                // A stalled machine may have lost it by now. Then it ends here.
                if lane.renew(&held).await.is_ok() {
                    lock(&last).replace(held.deadline());
                }
            }
            // It is not released: it expires.
            while held.is_valid() {
                cx.sleep(held.remaining().max(ms(1))).await;
            }
            lane.lost(&held);
            lane.drop_guard(held);
        }
        Ok::<(), Failure>(())
    });
    all(tasks).await?;
    cx.check_history()
}
