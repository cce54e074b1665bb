//! §2 Acquire: try, wait, deadline.

use dlock_core::Result;

use super::prelude::*;

rules! {
    try_never_waits, no_spurious_refusal, a_release_wakes_a_waiter, invalid_arguments_change_nothing,
    cycles_leave_nothing_behind,
}

rule! { "2.01" Must phase 1 [Lock, Try] Both A T try_never_waits, evidence ["refusals" >= 5],
    bug "try_blocks"
    "try_acquire on a held name answers that it is held within the operation bound."
    why "A cron job that asks whether it is its turn must not hang until the holder has finished."
    check "Does the store's own lock timeout apply to a try?"
}
async fn try_never_waits(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("held"), cx.ask());
    let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
    let bound = cx.prompt();
    let mut waiting = None;
    for round in 0..cx.rounds(6, 60) {
        let refused = cx.expect_held(&*b, &name, &ask, "B tries while A holds");
        cx.within(bound, "B's try of a held name", refused).await??;
        cx.evidence("refusals");
        if round == 2 {
            // A queue must not make a try wait either.
            let (c, name, ask) = (Arc::clone(&c), name.clone(), ask.clone());
            waiting = Some(cx.spawn(async move { c.acquire(&name, &ask).await }));
            cx.sleep(ms(5)).await;
        }
    }
    held.release().await.seen("A releases")?;
    if let Some(waiting) = waiting {
        waiting
            .await
            .seen("C waits for A")?
            .release()
            .await
            .seen("C releases")?;
    }
    Ok(())
}

rule! { "2.02" Must phase 1 [Lock, Try] Both A D no_spurious_refusal, evidence ["grants" >= 120],
    bug "try_spurious_fail"
    "try_acquire on a free, uncontended name succeeds."
    why "A turn that is skipped because of a false `held` is work that is not done, and nobody sees an error."
    check "Is a transient failure, a full pool or an unknown reply reported as `held`?"
}
async fn no_spurious_refusal(cx: Cx) -> Verdict {
    let client = cx.connect().await?;
    let ask = cx.ask();
    for round in 0..cx.rounds(120, 1000) {
        // The same name again and again, and names that were never seen before.
        let name = if round % 3 == 2 {
            cx.name(format!("new-{round}"))
        } else {
            cx.name("same")
        };
        let when = format!("round {round}: a free name that nobody else uses");
        cx.passes(&*client, &name, &ask, when).await?;
        cx.evidence("grants");
    }
    Ok(())
}

rule! { "2.03" Must phase 1 [Lock, Wait] Both A D a_release_wakes_a_waiter, evidence ["hand_overs" >= 5],
    bug "never_wakes"
    "A waiting acquire completes after the release, with no further call by the application."
    why "A waiter that nobody wakes hangs until someone restarts the service."
    check "Is the waiter registered before the name is looked at, and told after the release?"
}
async fn a_release_wakes_a_waiter(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("waited-for"), cx.ask());
    for round in 0..cx.rounds(5, 50) {
        let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
        let waiting = cx.waits(&b, &name, &ask);
        // From "not yet queued" to "long asleep".
        cx.sleep(Duration::from_millis(20 * round as u64 % 100)).await;
        ensure!(!waiting.is_done(), "round {round}: B does not wait while A holds");
        held.release().await.seen("A releases")?;
        let bound = cx.prompt();
        let what = format!("round {round}: B's waiting acquire, after A's release");
        let next = cx.done(bound, what, waiting).await?;
        next.release().await.seen("B releases")?;
        cx.evidence("hand_overs");
    }
    Ok(())
}

rule! { "2.08" Must phase 1 [Lock, Try] Both A D invalid_arguments_change_nothing, evidence ["refusals" >= 6],
    bug "zero_ttl_forever"
    "A ttl of zero, a ttl outside of the declared range and a name beyond the declared length fail with \
        InvalidInput and change nothing."
    why "A ttl of zero that means `no expiry` turns a typing error into a lock that is held for ever."
    check "What does the store make of zero, and of a number that does not fit?"
}
async fn invalid_arguments_change_nothing(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let caps = &cx.claims().capabilities;
    let name = cx.name("invalid");
    let mut wrong = vec![(Duration::ZERO, name.clone(), "a ttl of zero")];
    if !caps.min_ttl.is_zero() {
        wrong.push((caps.min_ttl / 2, name.clone(), "half of the least ttl"));
    }
    if let Some(longer) = caps.max_ttl.checked_add(Duration::from_secs(1)) {
        wrong.push((longer, name.clone(), "a ttl beyond the longest"));
    }
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(caps.max_name_len.saturating_add(1).min(1 << 20), b'x');
    if bytes.len() > caps.max_name_len {
        let long = LockName::new(&bytes).map_err(|e| crate::Failure::Kit(e.to_string()))?;
        wrong.push((cx.long_ttl(), long, "a name of one byte more than declared"));
    }
    for (ttl, name, what) in wrong {
        let ask = cx.ask().ttl(ttl);
        refused(&cx, a.try_acquire(&name, &ask).await, what, "try_acquire")?;
        refused(&cx, a.acquire(&name, &ask).await.map(Some), what, "acquire")?;
        let waited = a.acquire_timeout(&name, &ask, ms(50)).await;
        refused(&cx, waited.map(Some), what, "acquire_timeout")?;
    }
    let free: Ask = cx.ask();
    cx.passes(&*b, &name, &free, "after nothing but invalid requests")
        .await
}

fn refused(cx: &Cx, answer: Result<Option<Box<dyn Held>>>, what: &str, how: &str) -> Verdict {
    match answer {
        Ok(Some(held)) => fail!("{how} with {what} was granted, for {:?}", held.ttl()),
        Ok(None) => fail!("{how} with {what} answered `held`, on a name that nobody holds"),
        Err(e) => {
            ensure!(
                e.kind() == ErrorKind::InvalidInput,
                "{how} with {what} answered {:?} instead of InvalidInput: {e}",
                e.kind()
            );
            cx.evidence("refusals");
            Ok(())
        }
    }
}

rule! { "2.09" Must phase 1 [Lock] Both A D cycles_leave_nothing_behind, evidence ["cycles" >= 1100],
    bug "entry_leak", budget 120 s
    "Thousands of acquire-release cycles on one name by one client all succeed."
    why "What is left behind by each cycle is found after a week in production, and never in a test of ten."
    check "What does a cycle leave in the store or in the client: a row, a node, a subscription, a timer?"
}
async fn cycles_leave_nothing_behind(cx: Cx) -> Verdict {
    let client = cx.connect().await?;
    let (name, ask) = (cx.name("cycle"), cx.ask());
    for cycle in 0..cx.rounds(1_100, 5_000) {
        let held = client.acquire(&name, &ask).await;
        let held = held.seen(format_args!("cycle {cycle}: acquire"))?;
        let released = held.release().await;
        released.seen(format_args!("cycle {cycle}: release"))?;
        cx.evidence("cycles");
    }
    Ok(())
}
