//! §2 Acquire: try, wait, deadline.

use dlock_core::Result;

use super::prelude::*;

rules! {
    try_never_waits, no_spurious_refusal, a_release_wakes_a_waiter, invalid_arguments_change_nothing,
    cycles_leave_nothing_behind, timeout_at_the_deadline, a_timeout_leaves_nothing, zero_wait_is_a_try,
    live_guard_or_timeout,
}

rule! { "2.01" Must phase 1 [Lock, Try] Both A T try_never_waits, evidence ["refusals" >= 5],
    bug "try_blocks"
    "try_acquire on a held name answers within the operation bound that the name is held."
    why "A cron job that asks whether it is its turn must not hang until the holder finishes."
    check "Does the store's own lock timeout apply to a try?"
}
async fn try_never_waits(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("held"), cx.ask());
    let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
    let bound = cx.prompt();
    let mut waiting = None;
    for round in 0..cx.rounds(6, 60) {
        let refused = b.is_refused(&name, &ask, "B tries while A holds");
        cx.within(bound, "B's try of a held name", refused).await??;
        cx.evidence("refusals");
        if round == 2 {
            // A queue must not make a try wait either.
            waiting = Some(cx.waits(&c, &name, &ask));
            cx.sleep(ms(5)).await;
        }
    }
    held.release().await.seen("A releases")?;
    if let Some(waiting) = waiting {
        let held = waiting.await.seen("C waits for A")?;
        held.release().await.seen("C releases")?;
    }
    Ok(())
}

rule! { "2.02" Must phase 1 [Lock, Try] Both A D no_spurious_refusal, evidence ["grants" >= 120],
    bug "try_spurious_fail"
    "try_acquire on a free, uncontended name succeeds."
    why "A false `held` makes a job skip its turn. The work is not done, and no error shows it."
    check "Is a transient failure, a full pool or an unknown reply reported as `held`?"
}
async fn no_spurious_refusal(cx: Cx) -> Verdict {
    let client = cx.connect().await?;
    let ask = cx.ask();
    for round in 0..cx.rounds(120, 1000) {
        // The same name repeatedly, and new names.
        let name = match round % 3 {
            2 => cx.name(format!("new-{round}")),
            _ => cx.name("same"),
        };
        let when = format!("round {round}: a free name without other users");
        client.passes(&name, &ask, when).await?;
        cx.evidence("grants");
    }
    Ok(())
}

rule! { "2.03" Must phase 1 [Lock, Wait] Both A D a_release_wakes_a_waiter, evidence ["hand_overs" >= 5],
    bug "never_wakes"
    "A waiting acquire completes after the release, with no further call by the application."
    why "A waiter that misses its wake-up hangs until the service is restarted."
    check "Is the waiter registered before the name is checked, and is it woken after the release?"
}
async fn a_release_wakes_a_waiter(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("waited-for"), cx.ask());
    for round in 0..cx.rounds(5, 50) {
        let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
        let waiting = cx.waits(&b, &name, &ask);
        // From "not yet queued" to "waiting for long".
        cx.sleep(Duration::from_millis(20 * round as u64 % 100)).await;
        ensure!(!waiting.is_done(), "round {round}: B does not wait while A holds");
        held.release().await.seen("A releases")?;
        let bound = cx.prompt();
        let what = format!("round {round}: B's waiting acquire, after A's release");
        cx.served(bound, what, waiting).await?;
        cx.evidence("hand_overs");
    }
    Ok(())
}

rule! { "2.08" Must phase 1 [Lock, Try] Both A D invalid_arguments_change_nothing, evidence ["refusals" >= 6],
    bug "zero_ttl_forever"
    "A ttl of zero, a ttl outside of the declared range and a name beyond the declared length fail with \
        InvalidInput and change nothing."
    why "If a ttl of zero means `no expiry`, a typing error becomes a lock that is held for ever."
    check "What does the store do with zero, and with a number that does not fit?"
}
async fn invalid_arguments_change_nothing(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let caps = &cx.claims().capabilities;
    let name = cx.name("invalid");
    let mut wrong = vec![(Duration::ZERO, name.clone(), "a ttl of zero")];
    if !caps.min_ttl.is_zero() {
        wrong.push((caps.min_ttl / 2, name.clone(), "half of the minimum ttl"));
    }
    if let Some(longer) = caps.max_ttl.checked_add(Duration::from_secs(1)) {
        wrong.push((longer, name.clone(), "a ttl above the maximum"));
    }
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(caps.max_name_len.saturating_add(1).min(1 << 20), b'x');
    if bytes.len() > caps.max_name_len {
        let long = LockName::new(&bytes).map_err(|e| crate::Failure::Kit(e.to_string()))?;
        wrong.push((cx.long_ttl(), long, "a name of one byte more than declared"));
    }
    for (ttl, name, what) in wrong {
        let ask = cx.ask().ttl(ttl);
        refused_as_invalid(&cx, a.try_acquire(&name, &ask).await, what, "try_acquire")?;
        refused_as_invalid(&cx, a.acquire(&name, &ask).await.map(Some), what, "acquire")?;
        let waited = a.acquire_timeout(&name, &ask, ms(50)).await;
        refused_as_invalid(&cx, waited.map(Some), what, "acquire_timeout")?;
    }
    let free: Ask = cx.ask();
    b.passes(&name, &free, "after nothing but invalid requests").await
}

pub(super) fn refused_as_invalid(
    cx: &Cx,
    answer: Result<Option<Box<dyn Held>>>,
    what: &str,
    how: &str,
) -> Verdict {
    match answer {
        Ok(Some(held)) => fail!("{how} with {what} was granted, for {:?}", held.ttl()),
        Ok(None) => fail!("{how} with {what} answered `held` for a free name"),
        Err(e) if e.kind() == ErrorKind::InvalidInput => {
            cx.evidence("refusals");
            Ok(())
        }
        Err(e) => fail!(
            "{how} with {what} answered {:?} instead of InvalidInput: {e:?}",
            e.kind()
        ),
    }
}

rule! { "2.09" Must phase 1 [Lock] Both A D cycles_leave_nothing_behind, evidence ["cycles" >= 1100],
    bug "entry_leak", budget 120 s
    "Thousands of acquire-release cycles on one name by one client all succeed."
    why "A leak of one entry per cycle shows after a week in production, and never in a test of ten cycles."
    check "What does a cycle leave behind in the store or in the client: a row, a node, a subscription, a \
        timer?"
}
async fn cycles_leave_nothing_behind(cx: Cx) -> Verdict {
    let client = cx.connect().await?;
    let (name, ask) = (cx.name("cycle"), cx.ask());
    for cycle in 0..cx.rounds(1_100, 5_000) {
        client.cycles(&name, &ask, format!("cycle {cycle}")).await?;
        cx.evidence("cycles");
    }
    Ok(())
}

rule! { "2.04" Must phase 1 [Lock, Wait] Both A T timeout_at_the_deadline, evidence ["timeouts" >= 4],
    bug "deadline_half"
    "Timeout is answered no earlier than the wait limit and no later than slack after it."
    why "A wait that ends early gives up on a lock that it would have got. One that ends late breaks the \
        caller's own deadline."
    check "In which unit does the limit reach the store? Does a retry send the remaining time, or the whole \
        limit again?"
}
async fn timeout_at_the_deadline(cx: Cx) -> Verdict {
    /// How far a timer and a clock may differ.
    const CLOCK_STEP: Duration = ms(1);
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("held"), cx.ask());
    let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
    for limit in [50, 100, 200, 400].map(ms) {
        let asked = cx.now();
        let what = format!("B waits for at most {limit:?}");
        let wait = cx.expect_timeout(&*b, &name, &ask, limit, "B waits while A holds");
        cx.within(limit + cx.prompt(), what, wait).await??;
        let took = cx.now().since(asked);
        ensure!(
            took + CLOCK_STEP >= limit,
            "B got Timeout after {took:?}, before its limit of {limit:?}"
        );
        ensure!(
            took <= limit + cx.slack(),
            "B got Timeout after {took:?}, too long after its limit of {limit:?}"
        );
        cx.evidence("timeouts");
    }
    held.release().await.seen("A releases")
}

rule! { "2.05" Must phase 1 [Lock, Try, Wait, WaitLimit] Both A D a_timeout_leaves_nothing,
    evidence ["timeouts" >= 5],
    bug "orphan_waiter"
    "After Timeout nothing is held and nothing is queued: after the release the next client acquires at once."
    why "An orphaned queue entry is granted the lock. Nobody holds it then, and every waiter waits for that \
        lease to expire."
    check "Is the queue entry withdrawn, and its withdrawal confirmed, before Timeout is answered?"
}
async fn a_timeout_leaves_nothing(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    for (round, name) in cx.names(5, 50).enumerate() {
        let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
        let limit = Duration::from_millis(5 + 10 * (round as u64 % 4));
        cx.expect_timeout(&*b, &name, &ask, limit, "B waits while A holds")
            .await?;
        cx.evidence("timeouts");
        held.release().await.seen("A releases")?;
        c.passes(&name, &ask, "after B's Timeout and A's release, C")
            .await?;
    }
    Ok(())
}

rule! { "2.06" Must phase 1 [Lock, Try, Wait, WaitLimit] Both A D zero_wait_is_a_try,
    evidence ["granted" >= 3, "refused" >= 6], bug "zero_means_forever"
    "A wait limit of zero behaves like a try, and a limit too short to wait for anything has no side effect."
    why "In more than one lock library zero means `for ever`. The caller meant `now`."
    check "Is zero a special value anywhere on the way to the store?"
}
async fn zero_wait_is_a_try(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    let bound = cx.prompt();
    for name in cx.names(3, 30) {
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
        // B leaves nothing behind: no hold, and no queue entry.
        a.passes(&name, &ask, "after waits of zero and A's release")
            .await?;
    }
    Ok(())
}

rule! { "2.07" Must phase 1 [Lock, Try, Wait, WaitLimit] Both A X live_guard_or_timeout,
    evidence ["grants" >= 5, "timeouts" >= 5], bug "timeout_leaks_grant" stochastic, budget 120 s
    "When a grant races with the wait limit, the answer is either a live guard, or Timeout and nothing is \
        held."
    why "A grant that arrives as the waiter gives up has no owner and blocks every other client."
    check "What releases a grant that arrives after the limit?"
}
async fn live_guard_or_timeout(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("raced"), cx.ask());
    let mut limit = ms(12);
    let mut rng = cx.rng();
    // When the release is sent, counted from the begin of the wait. It searches for the border between the
    // two outcomes, which depends on the network: earlier after a timeout, later after a grant. A store that
    // is slower than the limit gets a longer limit.
    let mut aim = limit;
    for round in 0..cx.rounds(60, 2_000) {
        let held = a.takes(&name, &ask, format!("round {round}: A acquires")).await?;
        let waiting = cx.waits_for(&b, &name, &ask, limit);
        cx.sleep(aim).await;
        held.released(format!("round {round}: A releases")).await?;
        let step = rng.duration(Duration::ZERO, ms(2));
        let what = "B's wait beyond its limit";
        let answer = cx.within(cx.prompt(), what, waiting).await?;
        match answer {
            Ok(granted) => {
                granted.must_be_valid(format_args!("round {round}: B got a guard that is not valid"))?;
                c.is_refused(&name, &ask, format!("round {round}: while B holds"))
                    .await?;
                granted.released(format!("round {round}: B releases")).await?;
                cx.evidence("grants");
                aim += step;
            }
            Err(e) if e.kind() == ErrorKind::Timeout => {
                let when = format!("round {round}: after B's Timeout and A's release");
                c.passes(&name, &ask, when).await?;
                cx.evidence("timeouts");
                if aim.is_zero() {
                    limit += step * 4;
                }
                aim = aim.saturating_sub(step);
            }
            Err(e) => return Err(Failure::from(e)).seen(format_args!("round {round}: B waits")),
        }
    }
    Ok(())
}
