//! §4, the rules about guards that nobody releases.

use super::prelude::*;
use crate::claims::Engine;

rules! {
    a_drop_frees_promptly, a_leaked_guard_lapses,
}

rule! { "4.10" Should phase 2 [Lock, Try] Engine A T a_drop_frees_promptly, evidence ["drops" >= 3],
    bug "drop_waits_ttl", budget 120 s
    "While its client and runtime live, a dropped guard's lock is free within the claimed bound, not only at \
        the end of its ttl."
    why "An early return with `?` drops the guard; if that costs the others the whole ttl, every error \
        becomes a standstill."
    check "Who sends the release of a dropped guard, and is it woken for that?"
}
async fn a_drop_frees_promptly(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let plain = cx.ask();
    let mut asks = vec![("idle", plain.clone())];
    if cx.has(Need::AutoRenew) {
        asks.push(("renewing", plain.clone().auto_renew()));
    }
    let bound = cx.claims().drop_prompt + cx.slack();
    let mut longest = Duration::ZERO;
    for round in 0..cx.rounds(3, 30) {
        for (kind, ask) in &asks {
            let name = cx.name(format_args!("{kind}-{round}"));
            let held = a.acquire(&name, ask).await.seen("A acquires a free name")?;
            cx.sleep(ms(3)).await;
            let dropped = cx.now();
            drop(held);
            let when = format!("A dropped its {kind} guard");
            cx.passes_by(&*b, &name, &plain, dropped + bound, when).await?;
            longest = longest.max(dropped.until(cx.now()));
            cx.evidence("drops");
        }
    }
    cx.note(format_args!("from drop to free: at most {longest:?}"));
    Ok(())
}

rule! { "4.12" Must phase 2 [Lock, Try, Lease] Both A T a_leaked_guard_lapses, evidence ["lapsed" >= 1],
    bug "forget_is_immortal"
    "A leaked guard that does not renew itself lapses by its ttl, whatever else its client renews; one that \
        does renew itself ends with its client at the latest."
    why "A guard in a leaked task or a reference cycle is never dropped; nothing but the lease can end its \
        hold."
    check "What decides whether a lease is renewed: its own options, or that the client renews at all?"
}
async fn a_leaked_guard_lapses(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask().ttl(cx.short_ttl());
    let (idle, renewing) = (cx.name("idle"), cx.name("renewing"));
    let lapsed_by = |ttl: Duration| cx.now() + ttl + cx.skew(ttl) + cx.slack();
    let renews = cx.has(Need::AutoRenew);
    // Beside the idle one: what keeps the one alive must not keep the other.
    if renews {
        let held = a.acquire(&renewing, &ask.clone().auto_renew()).await;
        let held = held.seen("A acquires what will renew itself")?;
        std::mem::forget(held);
    }
    let held = a.acquire(&idle, &ask).await.seen("A acquires a free name")?;
    let by = lapsed_by(held.ttl());
    std::mem::forget(held);
    let then = "A leaked its guard, which does not renew itself";
    cx.passes_by(&*b, &idle, &ask, by, then).await?;
    cx.evidence("lapsed");
    if !renews {
        return Ok(());
    }
    // At least one renewal after the other one has lapsed.
    cx.sleep(ask.ttl).await;
    let kept = b.try_acquire(&renewing, &ask).await;
    let kept = kept.seen("B tries what A leaked and renews")?.is_none();
    cx.note(if kept {
        "a leaked guard that renews itself stays held while its client lives"
    } else {
        "a leaked guard that renews itself lapses"
    });
    ensure!(
        kept || cx.claims().engine == Engine::Own,
        "a leaked guard that renews itself is not held any more, although its client lives"
    );
    cx.done(cx.claims().op_bound, "A's close", a.close()).await?;
    let when = "A leaked a guard that renews itself, and is closed";
    cx.free_by(&*b, &renewing, &ask, lapsed_by(ask.ttl), when).await?;
    cx.evidence("lapsed");
    Ok(())
}
