//! §8, the rules about many waiters.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::prelude::*;
use crate::cx::Effort;

rules! {
    nobody_starves, every_waiter_once,
}

rule! { "8.03" Should phase 2 [Lock, Wait] Both A X nobody_starves, evidence ["grants" >= 60, "gave_up" >= 2],
    bug "starve_client_0", budget 120 s
    "While clients come, wait, give up and come again, none waits longer than the claimed factor times the \
        mean wait, plus slack."
    why "A client that loses every race has no error to show, only a job that never runs."
    check "In which order are waiters served, and does a slow or distant one have the same chance?"
}
async fn nobody_starves(cx: Cx) -> Verdict {
    const CLIENTS: usize = 6;
    let (name, ask) = (cx.name("churn"), cx.ask());
    // How many grants there are in all, and of how many turns one begins with a wait that is given up soon.
    let (total, one_in) = if cx.is_virtual() {
        (240, 8)
    } else {
        (cx.rounds(60, 3_000), 3)
    };
    let granted = Arc::new(AtomicUsize::new(0));
    let waits: Arc<Mutex<Vec<(Duration, usize)>>> = Arc::default();
    let mut tasks = Vec::new();
    for number in 0..CLIENTS {
        let (client, task, name, ask) = (cx.connect().await?, cx.clone(), name.clone(), ask.clone());
        let (granted, waits, mut rng) = (granted.clone(), waits.clone(), cx.rng());
        tasks.push(cx.spawn(async move {
            let cx = task;
            // Whoever waits when the others have had their fill was overtaken by all of them.
            while granted.load(Ordering::Relaxed) < total {
                if rng.one_in(one_in) {
                    let limit = rng.duration(Duration::ZERO, ms(2));
                    match client.acquire_timeout(&name, &ask, limit).await {
                        Ok(held) => held.release().await.seen("releasing")?,
                        Err(e) if e.kind() == ErrorKind::Timeout => cx.evidence("gave_up"),
                        Err(e) => return Err(Failure::from(e)),
                    }
                }
                let asked = cx.now();
                let held = client.acquire(&name, &ask).await.seen("acquiring")?;
                let took = asked.until(cx.now());
                lock(&waits).push((took, number));
                granted.fetch_add(1, Ordering::Relaxed);
                cx.evidence("grants");
                cx.sleep(rng.duration(ms(1), ms(3))).await;
                held.release().await.seen("releasing")?;
            }
            Ok::<(), Failure>(())
        }));
    }
    all(tasks).await?;
    let waits = std::mem::take(&mut *lock(&waits));
    let sum: Duration = waits.iter().map(|(took, _)| *took).sum();
    let mean = sum / u32::try_from(waits.len()).unwrap_or(u32::MAX).max(1);
    let (longest, who) = waits.iter().max().copied().unwrap_or_default();
    let factor = cx.claims().starvation_factor;
    cx.note(format_args!("mean wait {mean:?}, longest {longest:?}"));
    ensure!(
        longest <= mean * factor + cx.slack(),
        "client {who} of {CLIENTS} waited for {longest:?}, when the mean wait was {mean:?}; {factor} times \
            that is the claimed bound"
    );
    Ok(())
}

rule! { "8.11" Must phase 2 [Lock, Wait] Both A X every_waiter_once, evidence ["granted" >= 10],
    bug "waiters_capped_256", budget 120 s
    "500 waiters on one name (or as many as the declared limit allows) are each granted exactly once."
    why "A queue with a size that nobody declared drops or refuses the waiters of the one bad day."
    check "Is there a limit to a queue, a channel or a set of listeners, and is it declared?"
}
async fn every_waiter_once(cx: Cx) -> Verdict {
    let limit = cx.claims().capabilities.max_waiters.unwrap_or(u64::MAX);
    // A store that every client looks at after each hand-over takes its time for so many: in real time a
    // short run has fewer.
    let (most, connections) = match cx.effort() {
        Effort::Quick if !cx.is_virtual() => (40, 4),
        _ => (500, 10),
    };
    let crowd = usize::try_from(limit).unwrap_or(usize::MAX).min(most);
    let (name, ask) = (cx.name("crowded"), cx.ask());
    let holder = cx.connect().await?;
    let clients = cx.clients(connections).await?;
    let held = holder.acquire(&name, &ask).await.seen("the holder acquires")?;
    let (inside, ids) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::<Mutex<HashSet<String>>>::default(),
    );
    let mut waits = Vec::new();
    for number in 0..crowd {
        let (client, name, ask) = (clients[number % clients.len()].clone(), name.clone(), ask.clone());
        let (inside, ids) = (inside.clone(), ids.clone());
        waits.push(cx.spawn(async move {
            let held = client.acquire(&name, &ask).await;
            let held = held.seen(format_args!("waiter {number} of {crowd}"))?;
            let beside = inside.fetch_add(1, Ordering::SeqCst);
            ensure!(beside == 0, "waiter {number} was granted beside {beside} others");
            let is_new = lock(&ids).insert(held.id());
            ensure!(is_new, "waiter {number} was given somebody else's grant");
            inside.fetch_sub(1, Ordering::SeqCst);
            let released = held.release().await;
            released.seen(format_args!("waiter {number} releases"))
        }));
        if number % 50 == 49 {
            // They come in bursts; no store is asked for five hundred things in one instant.
            cx.sleep(ms(1)).await;
        }
    }
    cx.sleep(ms(20)).await;
    let early = waits.iter().filter(|waiting| waiting.is_done()).count();
    ensure!(
        early == 0,
        "{early} of {crowd} waiters did not wait for the holder"
    );
    held.release().await.seen("the holder releases")?;
    let each = cx.claims().wake_p99 * u32::try_from(crowd).unwrap_or(u32::MAX);
    let bound = each + cx.prompt();
    let what = format!("granting each of {crowd} waiters");
    cx.within(bound, what, async {
        all(waits).await?;
        Ok::<(), Failure>(())
    })
    .await??;
    let granted = lock(&ids).len();
    ensure!(granted == crowd, "{granted} of {crowd} waiters were granted");
    cx.evidence_by("granted", granted as u64);
    cx.expect_free(&*holder, &name, &ask, "after every waiter")
        .await?;
    Ok(())
}
