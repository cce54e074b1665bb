//! The body of rule 15.06.

use super::prelude::*;
use crate::network::Fault;

rules! {
    duplicates_are_harmless,
}

/// By how much the second copy of a request is later, at most: a few hand-overs.
const LATER: Duration = ms(25);

rule! { "15.06" Must phase 2 [Lock, Wait, Try] Both S X duplicates_are_harmless,
    evidence ["grants" >= 30, "duplicates" >= 30], bug "dup_release_frees_next" stochastic, budget 120 s
    "A request that arrives twice, the second time after later ones, does no more than one that arrives once."
    why "Proxies and drivers send again what they believe to be lost; a second release that arrives late \
        frees the next holder."
    check "Does every request name the grant that it is about, and is what is over remembered or refused?"
}
async fn duplicates_are_harmless(cx: Cx) -> Verdict {
    let net = cx.network()?;
    let twice = Fault::Duplicate(LATER);
    if !net.offers(twice) {
        return Err(Failure::NotRun(
            "it needs a network that sends requests twice, and the kit's proxy knows no requests, only bytes"
                .to_owned(),
        ));
    }
    let name = cx.name("contended");
    let ask = cx.ask();
    let rounds = cx.rounds(15, 200);
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(cx.connect_over(&net).await?);
    }
    let twice = net.begin(twice);
    let mut tasks = Vec::new();
    for client in clients {
        let (task, name, ask, mut rng) = (cx.clone(), name.clone(), ask.clone(), cx.rng());
        tasks.push(cx.spawn(async move {
            let lane = task.lane(&client);
            for _ in 0..rounds {
                let held = lane.acquire_timeout(&name, &ask, task.long_ttl()).await;
                let held = held.seen("acquires")?;
                task.evidence("grants");
                task.sleep(rng.duration(ms(1), ms(12))).await;
                match rng.below(4) {
                    0 => lane.renew(&held).await.seen("renews what it holds")?,
                    1 => {
                        lane.drop_guard(held);
                        continue;
                    }
                    _ => {}
                }
                lane.release(&held).await.seen("releases what it holds")?;
            }
            Ok::<(), Failure>(())
        }));
    }
    all(tasks).await?;
    cx.evidence_by("duplicates", twice.hits());
    twice.heal();
    // Until the last copy has arrived.
    cx.sleep(LATER * 2).await;
    let by = cx.now() + cx.claims().drop_prompt + cx.slack();
    let beside = cx.connect().await?;
    cx.passes_by(&*beside, &name, &ask, by, "after everybody let go of it")
        .await?;
    cx.check_history()
}
