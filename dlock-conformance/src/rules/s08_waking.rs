//! §8 Waking, fairness, priority.

use std::collections::HashSet;

use super::prelude::*;
use super::s08_queue::Line;
use super::steps::Waiting;
use crate::agent::{Asked, Child, Hold};
use crate::cx::Effort;

rules! {
    no_lost_wake_up, prompt_hand_over, cancelled_waiters_pass_it_on, nobody_starves, every_waiter_once,
    a_dead_head_does_not_block,
}

/// The holder releases, and the waiter is granted within the bound.
async fn handed_over(
    cx: &Cx,
    held: Box<dyn Held>,
    waiting: Waiting,
    bound: Duration,
    round: usize,
) -> Verdict<Box<dyn Held>> {
    let what = format!("hand-off {round}");
    ensure!(
        !waiting.is_done(),
        "{what}: the waiter does not wait while the name is held"
    );
    held.released(format!("{what}: the holder releases")).await?;
    cx.evidence("hand_overs");
    cx.done(bound, format!("{what}: the waiter of a released lock"), waiting)
        .await
}

rule! { "8.01" Must phase 1 [Lock, Wait] Both A X no_lost_wake_up, evidence ["hand_overs" >= 100],
    bug "notify_before_register" stochastic, budget 300 s
    "After each release a waiter is granted within the hand-over bound and slack, whenever it began to wait."
    why "If the store refuses first and registers the waiter second, a release in between is missed. The \
        waiter is never woken."
    check "Is the waiter registered in the step that refused it? If not, does it try again afterwards?"
}
async fn no_lost_wake_up(cx: Cx) -> Verdict {
    let clients = [cx.connect().await?, cx.connect().await?];
    let name = cx.name("ping-pong");
    let ask = cx.ask();
    // After a lost wake-up a poll comes much later; a busy machine is not that late.
    let bound = cx.claims().wake_p99 + cx.slack() * 2;
    let mut rng = cx.rng();
    let mut held = clients[1].acquire(&name, &ask).await.seen("B acquires")?;
    for round in 0..cx.rounds(120, 10_000) {
        let waiting = cx.waits(&clients[round % 2], &name, &ask);
        // The release falls before, into and after the registration of the waiter.
        cx.sleep(rng.duration(Duration::ZERO, ms(4))).await;
        held = handed_over(&cx, held, waiting, bound, round).await?;
    }
    Ok(())
}

rule! { "8.02" Should phase 1 [Lock, Wait] Both A T prompt_hand_over, evidence ["hand_overs" >= 100],
    bug "poll_every_5s", budget 300 s
    "In 99 of 100 cases, the time from a release to the next waiter's grant is at most the claimed bound."
    why "If waiters poll every few seconds, the lock is mostly idle although clients always wait for it."
    check "Is the waiter notified, or does it poll, and how often?"
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
        let from = cx.now();
        held = handed_over(&cx, held, waiting, cx.long_ttl(), round).await?;
        took.push(from.until(cx.now()));
        late.extend(took.last().copied().filter(|took| *took > bound));
        ensure!(
            late.len() <= allowed,
            "{1} of {0} hand-offs took longer than {bound:?}: {late:?}",
            took.len(),
            late.len()
        );
    }
    took.sort_unstable();
    cx.note(format_args!(
        "hand-off: p50 {:?}, {} of {rounds} late",
        took[rounds / 2],
        late.len()
    ));
    Ok(())
}

rule! { "8.12" Must phase 1 [Lock, Wait, CancelFrees] Both A X cancelled_waiters_pass_it_on,
    evidence ["cancelled" >= 10, "granted" >= 20], bug "cancel_eats_wakeup" stochastic, budget 300 s
    "When waiters are cancelled during a hand-off, the remaining ones are still granted in time."
    why "A waiter that is cancelled while it is being granted swallows the wake-up, and the queue stops."
    check "What happens to a grant whose receiver is gone, and does undoing it admit the next waiter?"
}
async fn cancelled_waiters_pass_it_on(cx: Cx) -> Verdict {
    let clients = cx.clients(7).await?;
    let ask = cx.ask();
    let bound = cx.claims().wake_p99 + cx.slack() * 2;
    let mut rng = cx.rng();
    for (round, name) in cx.names(30, 300).enumerate() {
        let held = clients[6].takes(&name, &ask, "the holder acquires").await?;
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
        // Three are cancelled while the first ones are being granted: the head, and then others.
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
            let what = format!("round {round}: a remaining waiter, after others were cancelled");
            cx.within(bound, what, task).await??;
        }
    }
    Ok(())
}

rule! { "8.03" Should phase 2 [Lock, Wait, BoundedWaits] Both A X nobody_starves,
    evidence ["grants" >= 60, "gave_up" >= 2], bug "starve_client_0", budget 120 s
    "While clients arrive, wait, give up and come back, none waits longer than the claimed factor times the \
        mean wait, plus slack."
    why "A client that loses every race reports no error. Its job just never runs."
    check "In which order are waiters served, and does a slow or distant client have the same chance?"
}
async fn nobody_starves(cx: Cx) -> Verdict {
    const CLIENTS: usize = 6;
    // How many grants there are in all, and of how many turns one begins with a wait that is given up soon.
    let (total, one_in) = if cx.is_virtual() {
        (240, 8)
    } else {
        (cx.rounds(60, 3_000), 3)
    };
    let granted = Arc::new(AtomicUsize::new(0));
    let waits: Arc<Mutex<Vec<(Duration, usize)>>> = Arc::default();
    let shared = (cx.name("churn"), granted, waits.clone());
    let clients = cx.clients(CLIENTS).await?;
    let tasks = cx.at_work(clients, &shared, move |worker, shared| async move {
        let (cx, lane, mut rng, number) = worker;
        let client = lane.client();
        let (ask, (name, granted, waits)) = (cx.ask(), shared);
        // A client that still waits when the others are done was overtaken by all of them.
        while granted.load(Ordering::Relaxed) < total {
            if rng.one_in(one_in) {
                let limit = rng.duration(Duration::ZERO, ms(2));
                match client.acquire_timeout(&name, &ask, limit).await {
                    Ok(held) => held.release().await.seen("releasing")?,
                    // `Unknown` is a withdrawal that the store was slow to confirm.
                    Err(e) if matches!(e.kind(), ErrorKind::Timeout | ErrorKind::Unknown) => {
                        cx.evidence("gave_up");
                    }
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
    });
    all(tasks).await?;
    let waits = std::mem::take(&mut *lock(&waits));
    let sum: Duration = waits.iter().map(|(took, _)| *took).sum();
    let mean = sum / u32::try_from(waits.len()).unwrap_or(u32::MAX).max(1);
    let (longest, who) = waits.iter().max().copied().unwrap_or_default();
    let factor = cx.claims().starvation_factor;
    cx.note(format_args!("mean wait {mean:?}, longest {longest:?}"));
    ensure!(
        longest <= mean * factor + cx.slack(),
        "client {who} of {CLIENTS} waited for {longest:?}; the mean wait was {mean:?}, and {factor} times \
            that is the claimed bound"
    );
    Ok(())
}

rule! { "8.11" Must phase 2 [Lock, Wait] Both A X every_waiter_once, evidence ["granted" >= 10],
    bug "waiters_capped_256", budget 120 s
    "500 waiters on one name (or as many as the declared limit allows) are each granted exactly once."
    why "A queue with an undeclared size limit drops or refuses waiters on the one day of heavy load."
    check "Is there a limit on a queue, a channel or a set of listeners, and is it declared?"
}
async fn every_waiter_once(cx: Cx) -> Verdict {
    let limit = cx.claims().capabilities.max_waiters.unwrap_or(u64::MAX);
    // Where every client polls after each hand-off, a quick run in real time has fewer.
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
            ensure!(is_new, "waiter {number} got another waiter's grant");
            inside.fetch_sub(1, Ordering::SeqCst);
            held.released(format!("waiter {number} releases")).await
        }));
        if number % 50 == 49 {
            // They arrive in bursts, since no store gets five hundred requests in one instant.
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
    cx.within(bound, what, all(waits)).await??;
    let granted = lock(&ids).len();
    ensure!(granted == crowd, "{granted} of {crowd} waiters were granted");
    cx.evidence_by("granted", granted as u64);
    holder.is_granted(&name, &ask, "after every waiter").await?;
    Ok(())
}

/// Stops the child while it has no request in the store. A waiting child may be sending one just now, and in
/// some stores a process that is stopped at that moment blocks all clients. That does not concern the queue.
pub(super) async fn stop_outside(cx: &Cx, child: &Child, client: &dyn Subject, round: usize) -> Verdict {
    for attempt in 0..20 {
        child.stop()?;
        let (probe, ask) = (cx.name(format_args!("probe-{round}-{attempt}")), cx.ask());
        let trying = client.try_acquire(&probe, &ask);
        if let Some(Ok(Some(held))) = cx.timeout(cx.claims().op_bound, trying).await {
            held.released("a lock without other users is released").await?;
            return Ok(());
        }
        child.resume()?;
        cx.sleep(ms(7)).await;
    }
    inconclusive!("wherever the head of the queue was stopped, no client could use the store");
}

rule! { "8.06" Must phase 2 [Lock, Wait, Lease, Fair] Both C T a_dead_head_does_not_block,
    evidence ["heads_gone" >= 3, "granted_behind" >= 3], bug "dead_head_blocks", budget 120 s
    "A waiter at the head of the queue that dies or is cancelled delays the waiters behind it for at most \
        its ttl and slack."
    why "If queue entries have no lease, the queue stops for ever behind the first waiter whose process is \
        killed."
    check "Does a queue entry expire automatically, and is a grant to a dead waiter an ordinary lease?"
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
            Line::new(&cx, name.clone()).until_waiting(&*a, 1).await?;
            // With a queue entry that does not lapse, however busy this machine is.
            let waiting = cx.waits(&b, &name, &cx.ask());
            Line::new(&cx, name.clone()).until_waiting(&*a, 2).await?;
            let bound = match how {
                "cancelled" => {
                    drop(head);
                    // A request that was cancelled a moment ago may still be in flight.
                    cx.claims().cancel_prompt + cx.slack()
                }
                "killed before the release" => {
                    child.kill()?;
                    ask.ttl + cx.slack()
                }
                // It is stopped first, so that it has no time to take its grant and release it.
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
                    "the head of the queue was {how}; {:?} after the release the waiter behind it is not \
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
