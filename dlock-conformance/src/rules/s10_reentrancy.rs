//! §10 Re-entrancy.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::prelude::*;
use super::s09_contract::moved;

rules! {
    reentry_keeps_the_token, reentry_up_to_the_declared_depth, last_release_frees,
    others_are_excluded_at_every_depth, loss_ends_every_level, owner_is_the_key,
}

/// The owner that most of these rules act as.
const OWNER: u32 = 1;

rule! { "10.01" Must phase 2 [Reentrant, Try, Wait] Engine A D reentry_up_to_the_declared_depth,
    evidence ["levels" >= 2, "refused_beyond_depth" >= 6], bug "reent_unbounded"
    "An owner may acquire again what it holds, up to the declared depth and through every kind of acquire. \
        Beyond the depth the answer is LimitReached, and the hold stays."
    why "Without a limit, a loop that acquires and never releases goes unnoticed until the count wraps or \
        the memory is full."
    check "Is the count compared before it is increased, for try, wait and timed wait?"
}
async fn reentry_up_to_the_declared_depth(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("deep"), cx.ask().reentrant(OWNER));
    let depth = cx.claims().reentry_depth;
    ensure!(
        depth >= 1,
        "a depth of {depth} is claimed, which is too small to hold anything"
    );
    let bound = cx.claims().op_bound;
    let mut held = Vec::new();
    for level in 1..=depth {
        let entered = enter(&*a, &name, &ask, level);
        let what = format!("level {level} of {depth}");
        match cx.done(bound, &what, entered).await? {
            Some(guard) => held.push(guard),
            None => fail!("{what}: the owner is refused a lock that it holds"),
        }
        cx.evidence("levels");
    }
    for after in ["at the declared depth", "one level down and up again"] {
        for way in 0..3 {
            let what = format!("{after}: one more");
            let entered = cx.within(bound, &what, enter(&*a, &name, &ask, way));
            let what = format!("{what} than {depth}");
            refused(entered.await?, ErrorKind::LimitReached, what)?;
            cx.evidence("refused_beyond_depth");
        }
        let valid = held.iter().filter(|guard| guard.is_valid()).count();
        ensure!(
            valid == held.len(),
            "after a refusal beyond the depth {valid} of {} levels are valid",
            held.len()
        );
        if let Some(top) = held.pop() {
            top.release().await.seen("releasing the innermost level")?;
        }
        match enter(&*a, &name, &ask, 0).await.seen("entering again")? {
            Some(guard) => held.push(guard),
            None => fail!("the owner is refused after it released one of {depth} levels"),
        }
    }
    for guard in held.iter().rev() {
        guard.release().await.seen("releasing a level")?;
    }
    b.passes(&name, &cx.ask(), "after every level was released").await
}

/// Enters in one of the three ways.
fn enter<'a>(
    client: &'a dyn Subject,
    name: &'a LockName,
    ask: &'a Ask,
    way: u32,
) -> BoxFuture<'a, dlock_core::Result<Option<Box<dyn Held>>>> {
    match way % 3 {
        0 => client.try_acquire(name, ask),
        1 => client.acquire(name, ask).map(|held| held.map(Some)).boxed(),
        _ => {
            let limit = Duration::from_secs(5);
            let waits = client.acquire_timeout(name, ask, limit);
            waits.map(|held| held.map(Some)).boxed()
        }
    }
}

rule! { "10.02" Must phase 2 [Reentrant, Wait] Engine A X last_release_frees,
    evidence ["inner_releases" >= 20, "grants" >= 20], bug "first_release_frees", budget 120 s
    "A re-entrant lock is free after as many releases as acquires, in any order of the guards, and not \
        before."
    why "A helper function that takes and releases its caller's lock leaves the caller without it."
    check "Does the release of one level decrease the count, or end the lease?"
}
async fn last_release_frees(cx: Cx) -> Verdict {
    let (rounds, clients) = (cx.rounds(10, 100), cx.clients(4).await?);
    let tasks = cx.at_work(clients, &cx.name("nested"), move |worker, name| async move {
        let (cx, lane, mut rng, number) = worker;
        let client = lane.client();
        // The history has only the outermost hold: no other client may be granted during it.
        let ask = cx.ask().reentrant(number as u32);
        for _ in 0..rounds {
            let outer = lane.acquire(&name, &ask).await.seen("the outermost acquire")?;
            cx.evidence("grants");
            let mut inner = Vec::new();
            for level in 2..2 + rng.below(4) {
                let entered = enter(&**client, &name, &ask, u32::try_from(level).unwrap_or(0));
                match entered.await.seen(format_args!("level {level}"))? {
                    Some(guard) => inner.push(guard),
                    None => fail!("level {level}: the owner is refused a lock that it holds"),
                }
                cx.sleep(rng.duration(Duration::ZERO, ms(1))).await;
            }
            while !inner.is_empty() {
                let which = rng.index(inner.len());
                let guard = inner.swap_remove(which);
                let left = inner.len() + 1;
                if rng.one_in(3) {
                    drop(guard);
                } else {
                    let what = format!("releasing a level, with {left} left");
                    guard.release().await.seen(what)?;
                }
                cx.evidence("inner_releases");
                cx.sleep(rng.duration(Duration::ZERO, ms(3))).await;
                outer.must_be_valid(format_args!(
                    "the outermost guard is not valid any more, with {left} levels left"
                ))?;
            }
            lane.release(&outer).await.seen("the outermost release")?;
        }
        Ok::<(), Failure>(())
    });
    all(tasks).await?;
    cx.check_history()
}

rule! { "10.03" Must phase 2 [Reentrant, Try, Wait] Engine A X others_are_excluded_at_every_depth,
    evidence ["refusals" >= 30, "deepest" >= 4], bug "reent_for_all", budget 120 s
    "At every depth all others are excluded: other clients with the same owner key, other owners of the \
        client, and handles without an owner."
    why "If re-entry only checks that the lock is re-entrant, and not for which owner, it excludes no one."
    check "Does re-entry compare the owner, or only the client, or only that the lock is re-entrant?"
}
async fn others_are_excluded_at_every_depth(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (plain, mine) = (cx.ask(), cx.ask().reentrant(OWNER));
    let other = cx.ask().reentrant(OWNER + 1);
    let strangers = [
        ("another client with the same owner key", &b, &mine),
        ("another client", &b, &plain),
        ("another owner of the same client", &a, &other),
        ("a handle without an owner", &a, &plain),
    ];
    let (lane, try_lane) = (cx.lane(&a), [cx.lane(&b), cx.lane(&a)]);
    let mut rng = cx.rng();
    for name in cx.names(4, 40) {
        let outer = lane.acquire(&name, &mine).await.seen("the owner acquires")?;
        let mut inner: Vec<Box<dyn Held>> = Vec::new();
        // Up at first, so that depth is certain; then up and down.
        for step in 0..10 {
            if step < 4 || inner.is_empty() || rng.one_in(2) {
                let guard = a.acquire(&name, &mine).await;
                inner.push(guard.seen("the owner enters again")?);
            } else if let Some(guard) = inner.pop() {
                guard.release().await.seen("the owner releases a level")?;
            }
            let depth = inner.len() + 1;
            let (who, client, ask) = strangers[step % strangers.len()];
            let recorded = &try_lane[usize::from(Arc::ptr_eq(client, &a))];
            let tried = recorded.try_acquire(&name, ask).await;
            let tried = tried.seen(format_args!("{who} tries"))?;
            ensure!(
                tried.is_none(),
                "{who} was granted a lock that an owner holds {depth} times"
            );
            cx.evidence("refusals");
            if rng.one_in(4) {
                let limit = ms(10);
                let when = format!("{who} waits for a lock that an owner holds {depth} times");
                cx.expect_timeout(&**client, &name, ask, limit, when).await?;
                cx.evidence("refusals");
            }
            if depth >= 5 {
                cx.evidence("deepest");
            }
        }
        for guard in inner {
            guard.release().await.seen("the owner releases a level")?;
        }
        lane.release(&outer).await.seen("the owner releases")?;
    }
    cx.check_history()
}

/// Three levels, entered at different times.
async fn three_levels(cx: &Cx, a: &dyn Subject, name: &LockName, ask: &Ask) -> Verdict<Vec<Box<dyn Held>>> {
    let mut levels = Vec::new();
    for level in 1..=3 {
        let entered = a.acquire(name, ask).await;
        levels.push(entered.seen(format_args!("level {level}"))?);
        cx.sleep(ask.ttl / 6).await;
    }
    Ok(levels)
}

/// No level is valid, and each has got the loss signal by `by`.
async fn every_level_is_lost(cx: &Cx, levels: &[Box<dyn Held>], how: &str) -> Verdict {
    for (level, guard) in (1..).zip(levels) {
        ensure!(
            !guard.is_valid() && guard.remaining().is_zero(),
            "{how}, and level {level} is still valid, for {:?}",
            guard.remaining()
        );
    }
    let told = join_all(levels.iter().map(|guard| guard.lost()));
    if cx.timeout(cx.slack(), told).await.is_none() {
        fail!(
            "{how}, and not every level got the loss signal within {:?}",
            cx.slack()
        );
    }
    cx.evidence_by("levels_told", levels.len() as u64);
    for (level, guard) in (1..).zip(levels) {
        let answer = guard.release().await;
        is_lost(answer, format_args!("{how}: the release of level {level}"))?;
    }
    Ok(())
}

rule! { "10.04" Must phase 2 [Reentrant, Wait, Lease, PerGrantTtl, LossSignal] Engine A T
        loss_ends_every_level,
    evidence ["levels_told" >= 3, "refused_after_loss" >= 1], bug "partial_loss"
    "When the lease is lost, every level is lost at once: no guard is valid, each gets the loss signal, and \
        no re-entry revives it."
    why "An inner level with its own deadline works on under a lock that the outer level has lost."
    check "Do the levels share one deadline and one loss, or does re-entry begin a separate hold?"
}
async fn loss_ends_every_level(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("lapses");
    let ask = cx.ask().ttl(cx.short_ttl()).reentrant(OWNER);
    let levels = three_levels(&cx, &*a, &name, &ask).await?;
    let deadline = levels[0].deadline();
    ensure!(
        cx.now() >= deadline || levels.iter().all(|guard| guard.is_valid()),
        "a level is not valid before the deadline"
    );
    cx.sleep_until(deadline).await;
    let bound = cx.skew(ask.ttl) + cx.slack();
    let plain = cx.ask();
    let successor = b.acquire_timeout(&name, &plain, ask.ttl / 2 + bound);
    // Its levels are looked at as soon as the deadline has passed, while the successor waits.
    let lost = every_level_is_lost(&cx, &levels, "the lease has lapsed");
    let (lost, successor) = futures::future::join(lost, successor).await;
    lost?;
    let successor = successor.seen("B waits for the lapsed lock")?;
    match a.try_acquire(&name, &ask).await {
        Ok(None) => {}
        Err(e) if e.kind() == ErrorKind::Lost => {}
        other => fail!(
            "re-entry into a lost lease answers {:?}",
            other.map(|granted| granted.is_some())
        ),
    }
    cx.evidence("refused_after_loss");
    drop(levels);
    ensure!(successor.is_valid(), "the successor is not valid");
    a.is_refused(&name, &ask, "the former owner, with the successor there")
        .await?;
    successor.release().await.seen("B releases")?;
    let by = cx.now() + cx.slack();
    cx.passes_by(&*a, &name, &ask, by, "the owner, anew").await?;
    let (claims, observe) = (cx.claims(), b.observe());
    let Some(observe) = observe.filter(|_| claims.has(Need::ForceRelease) && claims.has(Need::Renew)) else {
        return Ok(());
    };
    // The same for a lease that an operator ended, which the next renewal finds out.
    let (name, ask) = (cx.name("forced"), cx.ask().reentrant(OWNER));
    let levels = three_levels(&cx, &*a, &name, &ask).await?;
    observe.force_release(&name).await.seen("force_release")?;
    is_lost(levels[1].renew().await, "renewing a lock that was ended by force")?;
    every_level_is_lost(&cx, &levels, "a renewal was refused").await
}

rule! { "10.06" Must phase 2 [Reentrant, Try, Wait] Engine A D owner_is_the_key,
    evidence ["polls_elsewhere" >= 6, "reentered_elsewhere" >= 6, "strangers_refused" >= 6],
    bug "reent_by_thread"
    "The owner is the declared key: that owner may re-enter from any task and thread, and the thread that \
        holds the lock may not re-enter with another key."
    why "If the owner is the thread, a task that moves to another thread deadlocks with itself, and two \
        tasks on one thread both get in."
    check "Is the owner taken from the declared key, or from the current thread or task?"
}
async fn owner_is_the_key(cx: Cx) -> Verdict {
    let a = cx.connect().await?;
    let (mine, other) = (cx.ask().reentrant(OWNER), cx.ask().reentrant(OWNER + 1));
    for (round, name) in cx.names(6, 60).enumerate() {
        let held = a.acquire(&name, &mine).await.seen("the owner acquires")?;
        let entering = {
            let (a, name, mine, limit) = (a.clone(), name.clone(), mine.clone(), cx.claims().op_bound);
            async move { a.acquire_timeout(&name, &mine, limit).await }.boxed()
        };
        let entered = moved(&cx, entering).await;
        let inner = entered.seen(format_args!(
            "round {round}: the owner enters from another thread"
        ))?;
        cx.evidence("reentered_elsewhere");
        a.is_refused(&name, &other, "the same task, as another owner")
            .await?;
        cx.evidence("strangers_refused");
        if cx.is_virtual() {
            held.release().await.seen("the outer release")?;
        } else {
            // From another task than the one that acquired it.
            cx.spawn(async move { held.release().await })
                .await
                .seen("the outer release")?;
        }
        inner.must_be_valid("the inner guard is not valid after the outer release")?;
        a.is_refused(&name, &other, "another owner, with one level left")
            .await?;
        inner.release().await.seen("the inner release")?;
        a.passes(&name, &other, "another owner, after the last release")
            .await?;
    }
    Ok(())
}

rule! { "7.10" Must phase 2 [Fence, Reentrant, Wait] Engine A D reentry_keeps_the_token,
    evidence ["reentries" >= 20], bug "token_bump_on_reenter"
    "Every level of a re-entrant hold has the same token. The next grant has a larger one."
    why "A new token on re-entry makes the outer level a stale holder of its own lock. The resource refuses \
        it."
    check "Does re-entry draw a new token, or return the token of the lease?"
}
async fn reentry_keeps_the_token(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("same"), cx.ask().reentrant(OWNER));
    let mut last = None;
    for round in 0..cx.rounds(4, 40) {
        let outer = a.acquire(&name, &ask).await.seen("the owner acquires")?;
        let token = outer.token();
        ensure!(
            token.is_some() && token > last,
            "round {round}: a new hold has token {token:?} after {last:?}"
        );
        for way in 0..6 {
            let Some(inner) = enter(&*a, &name, &ask, way).await.seen("the owner enters")? else {
                fail!("the owner is refused a lock that it holds");
            };
            outer.must_keep(token, "a re-entry")?;
            inner.must_keep(token, "a re-entry, for the inner level,")?;
            cx.evidence("reentries");
            inner.release().await.seen("releasing a level")?;
            outer.must_keep(token, "the release of a level")?;
        }
        outer.release().await.seen("the owner releases")?;
        let between = b.acquire(&name, &cx.ask()).await.seen("B acquires")?;
        between.must_follow(&cx, token, "the next grant")?;
        last = between.token();
        between.release().await.seen("B releases")?;
    }
    Ok(())
}
