//! §8 Waking, fairness, priority.

use std::time::Duration;

use dlock_core::LockName;

use super::s08_crowd::{every_waiter_once, nobody_starves};
use super::s08_queue::{
    a_live_waiter_keeps_its_place, a_try_does_not_overtake, first_come_first_served,
    the_least_urgent_is_served, the_most_urgent_is_next,
};
use super::traffic::one_release_wakes_few;
use crate::cx::Cx;
use crate::ensure;
use crate::rule::{Rule, rule};
use crate::subject::{Ask, Held};
use crate::task::Task;
use crate::verdict::{Seen, Verdict};

pub(super) static RULES: &[Rule] = &[
    rule! {
        "8.01" MUST phase 1 [Lock, Wait]
        layer: Both, access: A, test: X,
        title: "no lost wake-up",
        statement: "A waiter is granted after each release within the hand-over bound and slack, whenever \
            it began to wait.",
        intent: "A release between the refusal and the registration is missed by a store that registers \
            second; the waiter sleeps on.",
        check_first: "Is the waiter registered in the step that refused it, and if not, does it look again \
            afterwards?",
        evidence: ["hand_overs" >= 60],
        budget: 300 s,
        bug: "notify_before_register" stochastic
        => no_lost_wake_up
    },
    rule! {
        "8.02" SHOULD phase 1 [Lock, Wait]
        layer: Both, access: A, test: T,
        title: "prompt hand-over",
        statement: "From a release to the next waiter's grant it takes at most the claimed bound, 99 times \
            of 100.",
        intent: "Waiters that poll every few seconds make a lock that is mostly idle and always waited for.",
        check_first: "Is the waiter told, or does it look, and how often?",
        evidence: ["hand_overs" >= 100],
        budget: 300 s,
        bug: "poll_every_5s" deterministic
        => prompt_hand_over
    },
    rule! {
        "8.03" SHOULD phase 2 [Lock, Wait]
        layer: Both, access: A, test: X,
        title: "nobody starves",
        statement: "While clients come, wait, give up and come again, none waits longer than the claimed \
            factor times the mean wait, plus slack.",
        intent: "A client that loses every race has no error to show, only a job that never runs.",
        check_first: "In which order are waiters served, and does a slow or distant one have the same \
            chance?",
        evidence: ["grants" >= 60, "gave_up" >= 2],
        budget: 120 s,
        bug: "starve_client_0" deterministic
        => nobody_starves
    },
    rule! {
        "8.04" MUST phase 2 [Lock, Wait, Fair]
        layer: Both, access: A, test: D,
        title: "first come, first served",
        statement: "Those who wait are granted in the order in which they came.",
        intent: "That is what a queue is claimed for; without the order the one who waits longest is nobody \
            in particular.",
        check_first: "At which end do new waiters enter, and by what are they sorted?",
        evidence: ["hand_overs" >= 16],
        budget: 60 s,
        bug: "lifo_queue" deterministic
        => first_come_first_served
    },
    rule! {
        "8.05" MUST phase 2 [Lock, Try, Wait, Fair]
        layer: Both, access: A, test: D,
        title: "a try does not overtake",
        statement: "A try, or a wait that begins later, is not granted before those who wait already, also \
            where the holders would not mind it.",
        intent: "Under a steady stream of readers that overtake, a writer in the queue never gets its turn.",
        check_first: "Does the path that grants at once look at the queue, or only at the holders?",
        evidence: ["tries" >= 12],
        budget: 60 s,
        bug: "barging_try" deterministic
        => a_try_does_not_overtake
    },
    rule! {
        "8.06" MUST phase 2 [Lock, Wait, Lease, Fair]
        layer: Both, access: C, test: T,
        title: "a dead head does not block",
        statement: "A waiter at the head of the queue that dies or is cancelled keeps those behind it \
            waiting for its ttl and slack at most.",
        intent: "A queue of waiters without leases stands still for ever behind the first one whose process \
            was killed.",
        check_first: "Does a place in the queue lapse by itself, and is what is granted to a dead waiter an \
            ordinary lease?",
        evidence: ["heads_gone" >= 3, "granted_behind" >= 3],
        budget: 120 s,
        bug: "dead_head_blocks" deterministic
        => super::s08_dead_head::a_dead_head_does_not_block
    },
    rule! {
        "8.07" MUST phase 2 [Lock, Wait, Fair]
        layer: Both, access: A, test: T,
        title: "a live waiter keeps its place",
        statement: "A waiter that lives keeps its place in the queue however long it waits.",
        intent: "An entry that is dropped after a fixed time puts the one who waited longest at the end, \
            again and again (Redisson 3004).",
        check_first: "What keeps a queue entry alive, and is that done for as long as the waiter waits?",
        evidence: ["kept_places" >= 5],
        budget: 120 s,
        bug: "live_waiter_evicted" deterministic
        => a_live_waiter_keeps_its_place
    },
    rule! {
        "8.08" MUST phase 2 [Lock, Wait, Fair, Priority]
        layer: Both, access: A, test: D,
        title: "the most urgent is next",
        statement: "Of those who wait the one with the highest priority is next, and of equals the one who \
            came first.",
        intent: "A priority that is accepted and not applied lets the urgent repair wait behind a hundred \
            nightly jobs.",
        check_first: "Is the priority part of what the queue is sorted by, before the arrival?",
        evidence: ["hand_overs" >= 24],
        budget: 60 s,
        bug: "prio_ignored" deterministic
        => the_most_urgent_is_next
    },
    rule! {
        "8.09" SHOULD phase 3 [Lock, Wait, Fair, Priority]
        layer: Both, access: A, test: X,
        title: "the least urgent is served",
        statement: "The least urgent waiter is served within the claimed ageing bound; with strict \
            priorities, as soon as nobody more urgent waits.",
        intent: "What everybody may overtake is easily forgotten altogether: the lock is free, and the last \
            in line sleeps on.",
        check_first: "Does every way in which a more urgent hold ends look at the whole queue?",
        evidence: ["served" >= 2, "overtaken" >= 6],
        budget: 60 s,
        bug: "prio_starves" deterministic
        => the_least_urgent_is_served
    },
    rule! {
        "8.10" SHOULD phase 3 [Lock, Wait, BoundedWakes]
        layer: Both, access: A, test: D,
        title: "one release wakes few",
        statement: "One release wakes a few of those who wait, however many they are: in one client by the \
            tasks that are polled, and of many clients by the requests that are sent.",
        intent: "When each release wakes everybody the store answers a thousand questions to grant one \
            lock, and the next release comes before the last answer.",
        check_first: "Is the news of a release sent to the next in line, or to everybody who watches the \
            name?",
        evidence: ["releases" >= 2],
        budget: 120 s,
        bug: "herd_wakeup" deterministic
        => one_release_wakes_few
    },
    rule! {
        "8.11" MUST phase 2 [Lock, Wait]
        layer: Both, access: A, test: X,
        title: "every waiter once",
        statement: "500 waiters on one name (or as many as the declared limit allows) are each granted \
            exactly once.",
        intent: "A queue with a size that nobody declared drops or refuses the waiters of the one bad day.",
        check_first: "Is there a limit to a queue, a channel or a set of listeners, and is it declared?",
        evidence: ["granted" >= 10],
        budget: 120 s,
        bug: "waiters_capped_256" deterministic
        => every_waiter_once
    },
    rule! {
        "8.12" MUST phase 1 [Lock, Wait]
        layer: Both, access: A, test: X,
        title: "cancelled waiters pass it on",
        statement: "When waiters are cancelled while the lock is handed over, those who stay are granted \
            all the same, in time.",
        intent: "A cancelled waiter that was just being granted takes the wake-up with it, and the queue \
            stands still.",
        check_first: "What happens to a grant whose receiver has gone, and does undoing it admit the next?",
        evidence: ["cancelled" >= 10, "granted" >= 20],
        budget: 300 s,
        bug: "cancel_eats_wakeup" stochastic
        => cancelled_waiters_pass_it_on
    },
];

type Waiting = Task<dlock_core::Result<Box<dyn Held>>>;

/// Somebody who waits in a task of its own.
fn wait_for(cx: &Cx, client: &std::sync::Arc<dyn crate::Subject>, name: &LockName, ask: &Ask) -> Waiting {
    let (client, name, ask) = (client.clone(), name.clone(), ask.clone());
    cx.spawn(async move { client.acquire(&name, &ask).await })
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
        let waiting = wait_for(&cx, &clients[round % 2], &name, &ask);
        // The release falls before, into and after the registration of the waiter.
        cx.sleep(rng.duration(Duration::ZERO, Duration::from_millis(4)))
            .await;
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
        let waiting = wait_for(&cx, &clients[round % 2], &name, &ask);
        // Long enough that it waits for sure.
        cx.sleep(Duration::from_millis(20)).await;
        ensure!(
            !waiting.is_done(),
            "hand-over {round}: the waiter does not wait while the name is held"
        );
        let released = cx.now();
        held.release()
            .await
            .seen(format_args!("hand-over {round}: the holder releases"))?;
        held = cx
            .within(
                cx.long_ttl(),
                format!("hand-over {round}: the waiter of a released lock"),
                waiting,
            )
            .await?
            .seen(format_args!("hand-over {round}: the waiter"))?;
        took.push(released.until(cx.now()));
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

async fn cancelled_waiters_pass_it_on(cx: Cx) -> Verdict {
    let mut clients = Vec::new();
    for _ in 0..7 {
        clients.push(cx.connect().await?);
    }
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
            cx.sleep(Duration::from_millis(1)).await;
        }
        cx.sleep(Duration::from_millis(4)).await;
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
            cx.within(
                bound,
                format!("round {round}: a waiter that stays, after others were cancelled"),
                task,
            )
            .await??;
        }
    }
    Ok(())
}
