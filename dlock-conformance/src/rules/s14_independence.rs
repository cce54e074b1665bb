//! §14 Many names, many tasks, one client.

use super::prelude::*;

rules! {
    no_head_of_line_blocking, one_client_many_operations, release_passes_the_waiter,
    clones_share_no_ownership, names_do_not_meet, held_locks_use_up_no_pool, a_drop_ends_one_hold,
}

rule! { "14.01" Must phase 1 [Lock, Try, Wait] Both A T no_head_of_line_blocking,
    evidence ["uncontended_rounds" >= 3], bug "head_of_line"
    "A client that waits for 100 contended names acquires and releases an uncontended one within the \
        operation bound."
    why "If waiters occupy the one connection, or all connections of a small pool, every other lock of the \
        process waits too."
    check "Does a waiter occupy a connection, a thread or a slot while it waits?"
}
async fn no_head_of_line_blocking(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    let limit = cx.claims().capabilities.max_held;
    let limit = limit.map_or(100, |n| n.saturating_sub(1).min(100));
    let mut held = Vec::new();
    let mut waiting = Vec::new();
    for i in 0..limit {
        let name = cx.name(format!("contended-{i}"));
        held.push(b.is_granted(&name, &ask, "before the first wait").await?);
        waiting.push(cx.waits(&a, &name, &ask));
    }
    cx.sleep(ms(50)).await;
    let bound = cx.prompt();
    for round in 0..3 {
        let name = cx.name(format!("free-{round}"));
        let what = format!("acquiring a free name beside {limit} waits");
        let guard = cx.done(bound, &what, a.acquire(&name, &ask)).await?;
        let what = format!("releasing it beside {limit} waits");
        cx.done(bound, &what, guard.release()).await?;
        cx.evidence("uncontended_rounds");
    }
    for task in waiting {
        ensure!(task.cancel().await.is_none(), "a wait for a held name has ended");
    }
    Ok(())
}

rule! { "14.02" Must phase 1 [Lock, Try, Wait] Both A X one_client_many_operations,
    evidence ["at_once" >= 200], bug "client_not_concurrent" stochastic
    "One client carries 256 concurrent operations, and every one of them ends as if it were alone."
    why "A service has one client and thousands of requests. If replies are mixed up, two of them get the \
        same lock."
    check "How are replies matched to requests, and what happens when the pool is exhausted?"
}
async fn one_client_many_operations(cx: Cx) -> Verdict {
    let caps = &cx.claims().capabilities;
    let tasks = caps.max_held.map_or(256, |n| n.min(256));
    let names = caps.max_waiters.map_or(16, |n| (tasks / n.max(1) + 1).max(16));
    let (one, other) = (cx.connect().await?, cx.connect().await?);
    let mut held = Vec::new();
    for i in 0..names {
        let name = cx.name(format!("n{i}"));
        let when = "before the first wait";
        held.push(other.is_granted(&name, &cx.ask(), when).await?);
    }
    let at_once = Arc::new(AtomicU64::new(0));
    let clients = vec![one; tasks as usize];
    let running = cx.at_work(clients, &at_once, move |worker, at_once| async move {
        let (cx, lane, _, number) = worker;
        let i = number as u64;
        let name = cx.name(format!("n{}", i % names));
        // Some with another ttl, so that grants can be distinguished.
        let ask = cx.ask().ttl(cx.ttl(Duration::from_secs(40 + i % 20)));
        at_once.fetch_add(1, Ordering::Relaxed);
        let tried = match i % 4 {
            1 => lane.try_acquire(&name, &ask).await.seen("trying")?,
            _ => None,
        };
        let held = match tried {
            Some(held) => held,
            None => lane.acquire(&name, &ask).await.seen("acquiring")?,
        };
        at_once.fetch_sub(1, Ordering::Relaxed);
        ensure!(held.is_valid(), "a grant is not valid when it arrives");
        if i % 4 == 2 && cx.has(Need::Renew) {
            lane.renew(&held).await.seen("renewing")?;
        }
        if i % 4 == 3 && cx.has(Need::DropFrees) {
            lane.drop_guard(held);
        } else {
            lane.release(&held).await.seen("releasing")?;
        }
        Ok::<(), Failure>(())
    });
    // All the names are held: each must come to wait beside the others, however slow the store. A few may
    // still have failed.
    let by = cx.now() + Duration::from_secs(10);
    cx.comes(by, || at_once.load(Ordering::Relaxed) == tasks).await;
    let seen = at_once.load(Ordering::Relaxed);
    cx.note(format_args!("{seen} operations of one client at once"));
    // Of fewer where the store's limits allow fewer.
    cx.evidence_by("at_once", seen * 256 / tasks.max(1));
    for guard in held {
        guard.release().await.seen("letting the others begin")?;
    }
    for task in running {
        cx.within(Duration::from_secs(30), "one of 256 operations at once", task)
            .await??;
    }
    cx.check_history()
}

rule! { "14.03" Must phase 1 [Lock, Wait] Both A D release_passes_the_waiter,
    evidence ["releases_beside_a_waiter" >= 5], bug "release_behind_waiter"
    "While one task of a client waits for a name, another task of it can release that name."
    why "A release that queues behind its own client's wait is a deadlock until the ttl ends."
    check "Does the waiter hold a connection or a mutex that the release needs?"
}
async fn release_passes_the_waiter(cx: Cx) -> Verdict {
    let a = cx.connect().await?;
    let ask = cx.ask();
    let bound = cx.claims().op_bound;
    for round in 0..cx.rounds(5, 50) {
        let name = cx.name(format!("x{round}"));
        let guard = a.is_granted(&name, &ask, "at first").await?;
        let waiter = cx.waits(&a, &name, &ask);
        cx.sleep(ms(15)).await;
        ensure!(!waiter.is_done(), "round {round}: the waiter does not wait");
        let what = "releasing a name that the same client waits for";
        cx.done(bound, what, guard.release()).await?;
        let doing = "handing it off to the waiter of the same client";
        cx.served(bound + cx.slack(), doing, waiter).await?;
        cx.evidence("releases_beside_a_waiter");
    }
    Ok(())
}

rule! { "14.04" Must phase 1 [Lock, Try, Wait] Both A D clones_share_no_ownership,
    evidence ["guards_left_alone" >= 3], bug "clone_shares_owner"
    "What one task of a client does with a name (a try, a wait that times out, a cancelled wait, a dropped \
        handle) does not affect the guard of another task."
    why "If an attempt is undone by client id, the lock of another task of the same process is released."
    check "Does undoing an attempt name that attempt, or its client?"
}
async fn clones_share_no_ownership(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    let name = cx.name("kept");
    let guard = a.is_granted(&name, &ask, "at first").await?;
    let patience = ms(40);
    let another = "another task of the client";
    for what in [
        "tries",
        "waits until it times out",
        "is cancelled while it waits",
        "takes and releases another name",
    ] {
        match what {
            "tries" => a.is_refused(&name, &ask, another).await?,
            "waits until it times out" => cx.expect_timeout(&*a, &name, &ask, patience, another).await?,
            "is cancelled while it waits" => {
                let task = cx.waits(&a, &name, &ask);
                cx.sleep(patience).await;
                ensure!(task.cancel().await.is_none(), "{another} got a held name");
                cx.sleep(cx.claims().cancel_prompt).await;
            }
            _ => a.passes(&cx.name("other"), &ask, "another name").await?,
        }
        let when = format!("after another task of the holder's client {what}");
        b.is_refused(&name, &cx.ask(), &when).await?;
        ensure!(guard.is_valid(), "{when}: the guard is not valid any more");
        if cx.has(Need::Renew) {
            guard.renew().await.seen(format_args!("{when}: renewing"))?;
        }
        cx.evidence("guards_left_alone");
    }
    drop(a);
    let released = guard.release().await;
    released.seen("releasing after all handles of the client but the guard's are gone")
}

rule! { "14.05" Must phase 1 [Lock, Try, Wait] Both A X names_do_not_meet,
    evidence ["grants" >= 150, "held_by_others" >= 1], bug "cross_name_release" stochastic, budget 120 s
    "With many clients and many names, the history of each name is legal on its own."
    why "A release that hits the wrong row shows only when there are many rows."
    check "Which key do release and renewal use, and can two names share it?"
}
async fn names_do_not_meet(cx: Cx) -> Verdict {
    let (clients, names) = (cx.rounds(20, 50), cx.rounds(60, 100));
    let rounds = cx.rounds(15, 30);
    let names: Vec<LockName> = (0..names).map(|i| cx.name(format!("n{i}"))).collect();
    // All are connected before the first one asks: to connect may take longer than all that one of them does.
    let clients = cx.clients(clients).await?;
    let tasks = cx.at_work(clients, &Arc::new(names), move |worker, names| async move {
        let (cx, lane, mut rng, ..) = worker;
        let ask = cx.ask();
        for _ in 0..rounds {
            let name = &names[rng.index(names.len())];
            let held = match lane.try_acquire(name, &ask).await.seen("trying")? {
                Some(held) => held,
                None => {
                    cx.evidence("held_by_others");
                    lane.acquire(name, &ask).await.seen("acquiring")?
                }
            };
            cx.evidence("grants");
            cx.sleep(rng.duration(Duration::ZERO, ms(4))).await;
            let released = lane.release(&held).await;
            released.seen(format_args!("releasing `{name}`"))?;
        }
        Ok::<(), Failure>(())
    });
    all(tasks).await?;
    cx.check_history()
}

/// More than any usual pool has connections.
const MANY: u64 = 64;

rule! { "14.06" Must phase 2 [Lock, Try, Wait] Both A T held_locks_use_up_no_pool,
    evidence ["held_at_once" >= 16], bug "pool_deadlock"
    "A client that holds 64 locks, or as many as it is allowed, acquires, renews and releases each within \
        the operation bound, or answers LimitReached. It never waits for itself."
    why "If a lock occupies a connection of a pool of ten, the eleventh acquire waits until the same program \
        releases the first."
    check "Does a held lock occupy a connection, and what does the release need when all of them are \
        occupied?"
}
async fn held_locks_use_up_no_pool(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let bound = cx.claims().op_bound;
    let most = cx.claims().capabilities.max_held.unwrap_or(MANY).min(MANY);
    let ask = cx.ask();
    let mut held = Vec::new();
    for n in 0..most {
        let name = cx.name(format_args!("held-{n}"));
        let what = format!("taking a free lock beside {n} others");
        let taking = cx.within(bound, what, a.acquire(&name, &ask));
        match taking.await? {
            Ok(guard) => held.push((name, guard)),
            // An immediate error can be handled.
            Err(e) if e.kind() == ErrorKind::LimitReached => break,
            Err(e) => return Err(e).seen(format_args!("taking a free lock beside {n} others")),
        }
        cx.evidence("held_at_once");
    }
    // All are kept, and every one is still within reach.
    for (name, guard) in &held {
        b.is_refused(name, &ask, "while its client holds many").await?;
        if cx.has(Need::Renew) {
            cx.done(bound, "renewing one of many", guard.renew()).await?;
        }
    }
    for (_, guard) in &held {
        cx.done(bound, "releasing one of many", guard.release()).await?;
    }
    Ok(())
}

rule! { "14.07" Must phase 2 [Lock, Try, Lease] Both A D a_drop_ends_one_hold,
    evidence ["dropped" >= 8, "kept" >= 8], bug "drop_all_on_one"
    "Dropping half of a client's guards leaves the other half held."
    why "A clean-up by session ends the locks of every other task of the process."
    check "What does the release of one lock do to the connection or session of the others?"
}
async fn a_drop_ends_one_hold(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let most = cx.claims().capabilities.max_held.unwrap_or(16).min(16);
    // Those that are dropped may take their ttl to be free.
    let (short, long) = (cx.ask().ttl(cx.short_ttl()), cx.ask());
    let mut kept = Vec::new();
    let mut dropped = Vec::new();
    for n in 0..most {
        let name = cx.name(format_args!("one of {most}: {n}"));
        let ask = if n % 2 == 0 { &long } else { &short };
        let guard = a.is_granted(&name, ask, "one of many").await?;
        match n % 2 {
            0 => kept.push((name, guard)),
            _ => dropped.push((name, guard)),
        }
    }
    for (name, guard) in dropped {
        drop(guard);
        cx.evidence("dropped");
        let by = cx.now() + short.ttl + cx.slack();
        cx.passes_by(&*b, &name, &short, by, "after its guard was dropped")
            .await?;
        for (name, guard) in &kept {
            let when = "after another guard of its client was dropped";
            guard.must_be_valid(format_args!("`{name}`, {when}: its guard is not valid any more"))?;
            b.is_refused(name, &long, when).await?;
        }
    }
    for (name, guard) in kept {
        let released = guard.release().await;
        released.seen(format_args!("releasing `{name}`, which was kept"))?;
        cx.evidence("kept");
    }
    Ok(())
}
