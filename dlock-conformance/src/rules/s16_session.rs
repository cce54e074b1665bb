//! §16, §8: clients that were cut off or stopped, and what happens to their holds and queue entries.

use futures::future::{Either, select};

use super::faulty::{faulty, patience, struck};
use super::prelude::*;
use super::s08_queue::Line;
use super::s08_waking::stop_outside;

rules! {
    what_lapsed_is_never_adopted, a_turn_reaches_a_waiter_that_was_cut_off,
    a_stopped_client_costs_one_claim_window,
}

rule! { "16.04" Must phase 2 [Lock, Try, LossSignal] Both P T what_lapsed_is_never_adopted,
    evidence ["lost" >= 3, "stale_guards" >= 3, "taken_anew" >= 1], bug "adopts_old_entry", budget 120 s
    "A client whose session or leases ended while it was cut off has lost all of its guards. When it is back \
        none of them revives, and a new acquire is a new grant."
    why "A client returns with a new session and takes the entry of its old one for its own. It now holds a \
        lock that the server is about to delete (CURATOR-604)."
    check "How does a client recognise its own entry: by the request id, or by its name or address?"
}
async fn what_lapsed_is_never_adopted(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.renewing(cx.ask().ttl(cx.short_ttl()));
    let (plain, names) = (cx.ask(), [0, 1, 2].map(|n| cx.name(n)));
    let mut held = Vec::new();
    for name in &names {
        held.push(f.a_holds(name, &ask).await?);
    }
    let ttl = held[0].ttl().min(cx.long_ttl());
    let away = f.net.begin(Fault::Away);
    let limit = ttl + cx.skew(ttl) + patience(&cx);
    let lost = join_all(held.iter().map(|held| cx.timeout(limit, held.lost()))).await;
    for (reason, name) in lost.iter().zip(&names) {
        ensure!(
            reason.is_some(),
            "the guard of `{name}` was not lost within {limit:?} of its client being cut off"
        );
        cx.evidence("lost");
    }
    let when = "after A was cut off for longer than its leases";
    let by = cx.lapsed_by(ttl);
    let taken = cx.free_by(&*f.b, &names[0], &plain, by, when).await?;
    // The others are over as well, and no client has used them: A is the first to find what is left of them.
    cx.sleep_until(by).await;
    away.heal();
    let what = "A acquires a name that it has lost";
    let anew = cx
        .done(patience(&cx) + ttl, what, f.a.acquire(&names[1], &plain))
        .await?;
    ensure!(
        anew.id() != held[1].id(),
        "A's new grant of `{}` has the id of the lost one",
        names[1]
    );
    anew.must_follow(
        &cx,
        held[1].token(),
        format_args!("A's new grant of `{}`", names[1]),
    )?;
    cx.evidence("taken_anew");
    for (held, name) in held.iter().zip(&names) {
        held.must_be_over(format_args!(
            "A is back, and its guard of `{name}`, which was lost, is valid"
        ))?;
        if cx.has(Need::Renew) {
            is_lost(held.renew().await, "A renews a lost guard")?;
        }
        is_lost(held.release().await, "A releases a lost guard")?;
        cx.evidence("stale_guards");
    }
    let when = "A has released its lost guard";
    f.a.is_refused(&names[0], &plain, "B holds a name that A has lost")
        .await?;
    f.b.is_refused(&names[1], &plain, when).await?;
    anew.release().await.seen("A releases its new grant")?;
    taken.release().await.seen("B releases a name that A has lost")
}

rule! { "8.14" Must phase 2 [Lock, Wait, Fair, OutlivesConnection] Both P T
        a_turn_reaches_a_waiter_that_was_cut_off,
    evidence ["turns_during_a_cut" >= 2], bug "turn_lost_with_connection", budget 120 s
    "A waiter whose turn comes while its connection is broken keeps its place: it is granted when it is \
        back, after at most one waiter that stood behind it."
    why "The notification went to a connection that is gone. If it is not repeated, the lock is idle for a \
        ttl. If the place is lost as well, every short network failure sends a waiter to the end of the \
        queue."
    check "Does a reconnected waiter ask for its place with the same request id?"
}
async fn a_turn_reaches_a_waiter_that_was_cut_off(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let (c, ask) = (cx.connect().await?, cx.ask());
    for name in cx.names(2, 10) {
        let before = c.acquire(&name, &ask).await.seen("C acquires a free name")?;
        let mut first = cx.waits(&f.a, &name, &ask);
        cx.in_line(&*c, &name, 1).await?;
        let mut second = cx.waits(&f.b, &name, &ask);
        cx.in_line(&*c, &name, 2).await?;
        let third = cx.waits(&f.b, &name, &ask);
        cx.in_line(&*c, &name, 3).await?;
        let away = f.net.begin(Fault::Away);
        struck(&cx, &away, "A's connection is broken").await?;
        before.release().await.seen("C releases")?;
        cx.sleep(ms(30)).await;
        away.heal();
        cx.evidence("turns_during_a_cut");
        let served = async {
            match select(&mut first, &mut second).await {
                Either::Left((held, _)) => (held, false),
                Either::Right((held, _)) => (held, true),
            }
        };
        let (next, passed_over) = cx
            .within(patience(&cx), "granting one of the waiters", served)
            .await?;
        let next = next.seen("a waiter acquires")?;
        if passed_over {
            // It was skipped while it was cut off, and gets time to come back.
            cx.sleep(Duration::from_secs(1)).await;
        }
        next.release().await.seen("the first of them releases")?;
        let what = "A, whose turn came while its connection was broken,";
        let held = cx.done(patience(&cx), what, if passed_over { first } else { second });
        let held = held.await?;
        ensure!(
            !third.is_done(),
            "{what} is granted after two waiters that stood behind it"
        );
        held.release().await.seen("the second of them releases")?;
        cx.served(patience(&cx), "the last waiter", third).await?;
    }
    Ok(())
}

/// How many of its tasks wait.
const TASKS: usize = 6;

rule! { "8.15" Should phase 2 [Lock, Wait, Lease, Fair, PerGrantTtl] Both C T
        a_stopped_client_costs_one_claim_window,
    evidence ["stopped_clients" >= 2], bug "a_window_per_task", budget 120 s
    "A stopped client delays the waiters behind it once, not once for each of its queued tasks."
    why "A client that swaps has fifty tasks queued for the same lock. If the store waits for the \
        confirmation of each of fifty grants, that is an outage for every other client."
    check "When a grant is not confirmed in time, what happens to the other queue entries of that client?"
}
async fn a_stopped_client_costs_one_claim_window(cx: Cx) -> Verdict {
    let alone = held_up(&cx, 1).await?;
    let many = held_up(&cx, TASKS).await?;
    cx.note(format_args!(
        "one task delayed the queue for {alone:?}, {TASKS} for {many:?}"
    ));
    ensure!(
        many <= alone * 2 + cx.slack(),
        "a stopped client with one queued task delayed the next waiter for {alone:?}, with {TASKS} tasks for \
            {many:?}"
    );
    Ok(())
}

/// How long a waiter is delayed behind that many tasks of a stopped client.
async fn held_up(cx: &Cx, tasks: usize) -> Verdict<Duration> {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name(tasks), cx.ask().ttl(cx.steady_ttl()));
    let (child, line) = (cx.child().await?, Line::new(cx, name.clone()));
    let held = a.acquire(&name, &cx.ask()).await.seen("A acquires")?;
    let mut stopped = Vec::new();
    for n in 1..=tasks {
        stopped.push(child.wait_for(&name, &ask, None));
        line.until_waiting(&*a, n).await?;
    }
    let behind = cx.waits(&b, &name, &cx.ask());
    line.until_waiting(&*a, tasks + 1).await?;
    stop_outside(cx, &child, &*b, tasks).await?;
    let from = cx.now();
    held.release().await.seen("A releases")?;
    let what = "the waiter behind a stopped client";
    let limit = (ask.ttl + cx.slack()) * (tasks as u32 + 1);
    let granted = cx.done(limit, what, behind).await?;
    let took = from.until(cx.now());
    child.kill()?;
    cx.evidence("stopped_clients");
    granted.release().await.seen("it releases")?;
    Ok(took)
}
