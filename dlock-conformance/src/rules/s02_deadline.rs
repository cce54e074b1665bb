//! §2, the rules about the wait limit.

use dlock_core::LockOptions;

use super::prelude::*;

rules! {
    timeout_at_the_deadline, a_timeout_leaves_nothing, zero_wait_is_a_try, live_guard_or_timeout,
}

rule! { "2.04" Must phase 1 [Lock, Wait] Both A T timeout_at_the_deadline, evidence ["timeouts" >= 4],
    bug "deadline_half"
    "Timeout is answered not before the wait limit has passed and not later than slack after it."
    why "Too early gives up on a lock that would have come; too late blows the caller's own deadline."
    check "In which unit does the limit reach the store, and is it the rest or the whole on each retry?"
}
async fn timeout_at_the_deadline(cx: Cx) -> Verdict {
    /// How far a timer and a clock may be apart.
    const CLOCK_STEP: Duration = ms(1);
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("held"), cx.ask());
    let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
    for millis in [50, 100, 200, 400] {
        let limit = Duration::from_millis(millis);
        let asked = cx.now();
        let what = format!("B waits for at most {limit:?}");
        cx.within(
            limit + cx.prompt(),
            what,
            cx.expect_timeout(&*b, &name, &ask, limit, "B waits while A holds"),
        )
        .await??;
        let took = cx.now().since(asked);
        ensure!(
            took + CLOCK_STEP >= limit,
            "B was told Timeout after {took:?}, before its limit of {limit:?}"
        );
        ensure!(
            took <= limit + cx.slack(),
            "B was told Timeout after {took:?}, too long after its limit of {limit:?}"
        );
        cx.evidence("timeouts");
    }
    held.release().await.seen("A releases")
}

rule! { "2.05" Must phase 1 [Lock, Try, Wait] Both A D a_timeout_leaves_nothing, evidence ["timeouts" >= 5],
    bug "orphan_waiter"
    "After Timeout nothing is held and nothing is queued: after the release the next client acquires at once."
    why "An orphan in the queue gets the lock that nobody then holds, and everybody waits for a lease to run \
        out."
    check "Is the queue entry withdrawn, and its withdrawal confirmed, before Timeout is answered?"
}
async fn a_timeout_leaves_nothing(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    for round in 0..cx.rounds(5, 50) {
        let name = cx.name(round);
        let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
        let limit = Duration::from_millis(5 + 10 * (round as u64 % 4));
        cx.expect_timeout(&*b, &name, &ask, limit, "B waits while A holds")
            .await?;
        cx.evidence("timeouts");
        held.release().await.seen("A releases")?;
        cx.passes(&*c, &name, &ask, "after B's Timeout and A's release, C")
            .await?;
    }
    Ok(())
}

rule! { "2.06" Must phase 1 [Lock, Try, Wait] Both A D zero_wait_is_a_try,
    evidence ["granted" >= 3, "refused" >= 6], bug "zero_means_forever"
    "A wait limit of zero equals a try, and a limit that is as good as past has no side effect."
    why "Zero means `for ever` in more than one lock library; the caller meant `now`."
    check "Is zero a magic number on the way to the store?"
}
async fn zero_wait_is_a_try(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    let bound = cx.prompt();
    for round in 0..cx.rounds(3, 30) {
        let name = cx.name(round);
        let free = a.acquire_timeout(&name, &ask, Duration::ZERO);
        let held = cx.done(bound, "a wait of zero for a free name", free).await?;
        cx.evidence("granted");
        for limit in [Duration::ZERO, Duration::from_nanos(1)] {
            let wait = cx.expect_timeout(&*b, &name, &ask, limit, "B hardly waits while A holds");
            cx.within(bound, format!("a wait of {limit:?} for a held name"), wait)
                .await??;
            cx.evidence("refused");
        }
        held.release().await.seen("A releases")?;
        // Nothing of B's is in the way: not a hold, not a place in line.
        cx.passes(&*a, &name, &ask, "after waits of zero and A's release")
            .await?;
    }
    Ok(())
}

rule! { "2.07" Must phase 1 [Lock, Try, Wait] Both A X live_guard_or_timeout,
    evidence ["grants" >= 5, "timeouts" >= 5], bug "timeout_leaks_grant" stochastic, budget 120 s
    "When a grant races with the wait limit, the answer is either a live guard, or Timeout and nothing is \
        held."
    why "A grant that arrives as the waiter gives up belongs to nobody and blocks everybody."
    check "Who gives back a grant that arrives after the limit?"
}
async fn live_guard_or_timeout(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("raced"), cx.ask());
    let mut limit = ms(12);
    let mut rng = cx.rng();
    // When the release is sent, counted from the wait's begin. It hunts the border between the two outcomes,
    // wherever a network puts it: earlier after a timeout, later after a grant. A store that is slower than
    // the limit gets a longer one.
    let mut aim = limit;
    for round in 0..cx.rounds(60, 2_000) {
        let held = a.acquire(&name, &ask).await;
        let held = held.seen(format_args!("round {round}: A acquires"))?;
        let asked = cx.now();
        let waiting = {
            let (b, name, ask) = (Arc::clone(&b), name.clone(), ask.clone());
            cx.spawn(async move { b.acquire_timeout(&name, &ask, limit).await })
        };
        cx.sleep(aim).await;
        let released = held.release().await;
        released.seen(format_args!("round {round}: A releases"))?;
        let step = rng.duration(Duration::ZERO, ms(2));
        let what = "B's wait beyond its limit";
        let answer = cx.within(cx.prompt(), what, waiting).await?;
        match answer {
            Ok(granted) => {
                ensure!(
                    granted.is_valid(),
                    "round {round}: B was given a guard that is not valid"
                );
                cx.expect_held(&*c, &name, &ask, format!("round {round}: while B holds"))
                    .await?;
                let released = granted.release().await;
                released.seen(format_args!("round {round}: B releases"))?;
                cx.evidence("grants");
                aim += step;
            }
            Err(e) if e.kind() == ErrorKind::Timeout => {
                let when = format!("round {round}: after B's Timeout and A's release");
                cx.passes(&*c, &name, &ask, when).await?;
                cx.evidence("timeouts");
                if aim.is_zero() {
                    limit += step * 4;
                }
                aim = aim.saturating_sub(step);
            }
            Err(e)
                if e.kind() == ErrorKind::Unknown
                    && cx.now().since(asked) >= limit + LockOptions::WITHDRAWAL =>
            {
                inconclusive!("round {round}: the store was too slow to withdraw B's request: {e}")
            }
            Err(e) => return Err(Failure::from(e)).seen(format_args!("round {round}: B waits")),
        }
    }
    Ok(())
}
