//! §8 Waking, fairness, priority.

use super::prelude::*;

rules! {
    no_lost_wake_up, prompt_hand_over, cancelled_waiters_pass_it_on,
}

rule! { "8.01" Must phase 1 [Lock, Wait] Both A X no_lost_wake_up, evidence ["hand_overs" >= 60],
    bug "notify_before_register" stochastic, budget 300 s
    "A waiter is granted after each release within the hand-over bound and slack, whenever it began to wait."
    why "A release between the refusal and the registration is missed by a store that registers second; the \
        waiter sleeps on."
    check "Is the waiter registered in the step that refused it, and if not, does it look again afterwards?"
}
async fn no_lost_wake_up(cx: Cx) -> Verdict {
    let clients = [cx.connect().await?, cx.connect().await?];
    let name = cx.name("ping-pong");
    let ask = cx.ask();
    // A lost wake-up is made up for by a look much later, a third of the ttl say; what a busy machine costs
    // is not one.
    let bound = cx.claims().wake_p99 + cx.slack() * 2;
    let mut rng = cx.rng();
    let mut held = clients[1].acquire(&name, &ask).await.seen("B acquires")?;
    for round in 0..cx.rounds(80, 10_000) {
        let waiting = cx.waits(&clients[round % 2], &name, &ask);
        // The release falls before, into and after the registration of the waiter.
        cx.sleep(rng.duration(Duration::ZERO, ms(4))).await;
        ensure!(
            !waiting.is_done(),
            "hand-over {round}: the waiter does not wait while the name is held"
        );
        held.release()
            .await
            .seen(format_args!("hand-over {round}: the holder releases"))?;
        held = cx
            .within(
                bound,
                format!("hand-over {round}: the waiter of a released lock"),
                waiting,
            )
            .await?
            .seen(format_args!("hand-over {round}: the waiter"))?;
        cx.evidence("hand_overs");
    }
    Ok(())
}

rule! { "8.02" Should phase 1 [Lock, Wait] Both A T prompt_hand_over, evidence ["hand_overs" >= 100],
    bug "poll_every_5s", budget 300 s
    "From a release to the next waiter's grant it takes at most the claimed bound, 99 times of 100."
    why "Waiters that poll every few seconds make a lock that is mostly idle and always waited for."
    check "Is the waiter told, or does it look, and how often?"
}
async fn prompt_hand_over(cx: Cx) -> Verdict {
    let clients = [cx.connect().await?, cx.connect().await?];
    let name = cx.name("handed-over");
    let ask = cx.ask();
    let bound = cx.claims().wake_p99 + (cx.slack() - cx.claims().slack);
    let rounds = cx.rounds(100, 300);
    // One in a hundred may be late. Two standard deviations more than that are hardly chance.
    let allowed = rounds / 100 + 2 * (rounds / 100).isqrt();
    let (mut took, mut late) = (Vec::<Duration>::new(), Vec::new());
    let mut held = clients[1].acquire(&name, &ask).await.seen("B acquires")?;
    for round in 0..rounds {
        let waiting = cx.waits(&clients[round % 2], &name, &ask);
        // Long enough that it waits for sure.
        cx.sleep(ms(20)).await;
        ensure!(
            !waiting.is_done(),
            "hand-over {round}: the waiter does not wait while the name is held"
        );
        let from = cx.now();
        let released = held.release().await;
        released.seen(format_args!("hand-over {round}: the holder releases"))?;
        held = cx
            .done(
                cx.long_ttl(),
                format!("hand-over {round}: the waiter of a released lock"),
                waiting,
            )
            .await?;
        took.push(from.until(cx.now()));
        cx.evidence("hand_overs");
        late.extend(took.last().copied().filter(|took| *took > bound));
        ensure!(
            late.len() <= allowed,
            "of {} hand-overs {} took longer than {bound:?}: {late:?}",
            took.len(),
            late.len()
        );
    }
    took.sort_unstable();
    cx.note(format_args!(
        "hand-over: p50 {:?}, {} of {rounds} late",
        took[rounds / 2],
        late.len()
    ));
    Ok(())
}

rule! { "8.12" Must phase 1 [Lock, Wait] Both A X cancelled_waiters_pass_it_on,
    evidence ["cancelled" >= 10, "granted" >= 20], bug "cancel_eats_wakeup" stochastic, budget 300 s
    "When waiters are cancelled while the lock is handed over, those who stay are granted all the same, in \
        time."
    why "A cancelled waiter that was just being granted takes the wake-up with it, and the queue stands \
        still."
    check "What happens to a grant whose receiver has gone, and does undoing it admit the next?"
}
async fn cancelled_waiters_pass_it_on(cx: Cx) -> Verdict {
    let clients = cx.clients(7).await?;
    let ask = cx.ask();
    let bound = cx.claims().wake_p99 + cx.slack() * 2;
    let mut rng = cx.rng();
    for round in 0..cx.rounds(30, 300) {
        let name = cx.name(round);
        let held = clients[6]
            .acquire(&name, &ask)
            .await
            .seen("the holder acquires")?;
        let mut waiting = Vec::new();
        for client in &clients[..6] {
            let (task, client, name, ask) = (cx.clone(), client.clone(), name.clone(), ask.clone());
            waiting.push(Some(cx.spawn(async move {
                let granted = client.acquire(&name, &ask).await.seen("a waiter acquires")?;
                task.evidence("granted");
                granted.release().await.seen("it releases")
            })));
            cx.sleep(ms(1)).await;
        }
        cx.sleep(ms(4)).await;
        held.release().await.seen("the holder releases")?;
        // Three go while the first of them are being granted: the head, and then others.
        let mut order = [0, 1, 2, 3, 4, 5];
        rng.shuffle(&mut order[1..]);
        for &victim in &order[..3] {
            if let Some(task) = waiting[victim].take() {
                match task.cancel().await {
                    Some(done) => done?,
                    None => cx.evidence("cancelled"),
                }
            }
            cx.sleep(rng.duration(Duration::ZERO, Duration::from_micros(1500)))
                .await;
        }
        for task in waiting.into_iter().flatten() {
            let what = format!("round {round}: a waiter that stays, after others were cancelled");
            cx.within(bound, what, task).await??;
        }
    }
    Ok(())
}
