//! §2 Acquire: try, wait, deadline.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{ErrorKind, LockName, Result};

use super::s02_deadline::{
    after_a_timeout_nothing_is_left, grant_xor_timeout, timeout_at_the_deadline, zero_wait_is_a_try,
};
use super::s02_extremes::{huge_durations_never_wrap, unbounded_wait_has_no_end};
use super::traffic::an_uncontended_cycle_is_cheap;
use crate::cx::Cx;
use crate::rule::{Rule, rule};
use crate::subject::{Ask, Held};
use crate::verdict::{Seen, Verdict};
use crate::{ensure, fail};

pub(super) static RULES: &[Rule] = &[
    rule! {
        "2.01" MUST phase 1 [Lock, Try]
        layer: Both, access: A, test: T,
        title: "try never waits",
        statement: "try_acquire on a held name answers that it is held within the operation bound.",
        intent: "A cron job that asks whether it is its turn must not hang until the holder has finished.",
        check_first: "Does the store's own lock timeout apply to a try?",
        evidence: ["refusals" >= 5],
        budget: 60 s,
        bug: "try_blocks" deterministic
        => try_never_waits
    },
    rule! {
        "2.02" MUST phase 1 [Lock, Try]
        layer: Both, access: A, test: D,
        title: "no spurious refusal",
        statement: "try_acquire on a free, uncontended name succeeds.",
        intent: "A turn that is skipped because of a false `held` is work that is not done, and nobody sees \
            an error.",
        check_first: "Is a transient failure, a full pool or an unknown reply reported as `held`?",
        evidence: ["grants" >= 120],
        budget: 60 s,
        bug: "try_spurious_fail" deterministic
        => no_spurious_refusal
    },
    rule! {
        "2.03" MUST phase 1 [Lock, Wait]
        layer: Both, access: A, test: D,
        title: "a release wakes a waiter",
        statement: "A waiting acquire completes after the release, with no further call by the application.",
        intent: "A waiter that nobody wakes hangs until someone restarts the service.",
        check_first: "Is the waiter registered before the name is looked at, and told after the release?",
        evidence: ["hand_overs" >= 5],
        budget: 60 s,
        bug: "never_wakes" deterministic
        => a_release_wakes_a_waiter
    },
    rule! {
        "2.04" MUST phase 1 [Lock, Wait]
        layer: Both, access: A, test: T,
        title: "timeout at the deadline",
        statement: "Timeout is answered not before the wait limit has passed and not later than slack after \
            it.",
        intent: "Too early gives up on a lock that would have come; too late blows the caller's own \
            deadline.",
        check_first: "In which unit does the limit reach the store, and is it the rest or the whole on each \
            retry?",
        evidence: ["timeouts" >= 4],
        budget: 60 s,
        bug: "deadline_half" deterministic
        => timeout_at_the_deadline
    },
    rule! {
        "2.05" MUST phase 1 [Lock, Try, Wait]
        layer: Both, access: A, test: D,
        title: "a timeout leaves nothing",
        statement: "After Timeout nothing is held and nothing is queued: after the release the next client \
            acquires at once.",
        intent: "An orphan in the queue gets the lock that nobody then holds, and everybody waits for a \
            lease to run out.",
        check_first: "Is the queue entry withdrawn, and its withdrawal confirmed, before Timeout is \
            answered?",
        evidence: ["timeouts" >= 5],
        budget: 60 s,
        bug: "orphan_waiter" deterministic
        => after_a_timeout_nothing_is_left
    },
    rule! {
        "2.06" MUST phase 1 [Lock, Try, Wait]
        layer: Both, access: A, test: D,
        title: "zero wait is a try",
        statement: "A wait limit of zero equals a try, and a limit that is as good as past has no side \
            effect.",
        intent: "Zero means `for ever` in more than one lock library; the caller meant `now`.",
        check_first: "Is zero a magic number on the way to the store?",
        evidence: ["granted" >= 3, "refused" >= 6],
        budget: 60 s,
        bug: "zero_means_forever" deterministic
        => zero_wait_is_a_try
    },
    rule! {
        "2.07" MUST phase 1 [Lock, Try, Wait]
        layer: Both, access: A, test: X,
        title: "live guard or timeout",
        statement: "When a grant races with the wait limit, the answer is either a live guard, or Timeout \
            and nothing is held.",
        intent: "A grant that arrives as the waiter gives up belongs to nobody and blocks everybody.",
        check_first: "Who gives back a grant that arrives after the limit?",
        evidence: ["grants" >= 5, "timeouts" >= 5],
        budget: 120 s,
        bug: "timeout_leaks_grant" stochastic
        => grant_xor_timeout
    },
    rule! {
        "2.08" MUST phase 1 [Lock, Try]
        layer: Both, access: A, test: D,
        title: "invalid arguments change nothing",
        statement: "A ttl of zero, a ttl outside of the declared range and a name beyond the declared \
            length fail with InvalidInput and change nothing.",
        intent: "A ttl of zero that means `no expiry` turns a typing error into a lock that is held for \
            ever.",
        check_first: "What does the store make of zero, and of a number that does not fit?",
        evidence: ["refusals" >= 6],
        budget: 60 s,
        bug: "zero_ttl_forever" deterministic
        => invalid_arguments_change_nothing
    },
    rule! {
        "2.09" MUST phase 1 [Lock]
        layer: Both, access: A, test: D,
        title: "cycles leave nothing behind",
        statement: "Thousands of acquire-release cycles on one name by one client all succeed.",
        intent: "What is left behind by each cycle is found after a week in production, and never in a test \
            of ten.",
        check_first: "What does a cycle leave in the store or in the client: a row, a node, a subscription, \
            a timer?",
        evidence: ["cycles" >= 1100],
        budget: 120 s,
        bug: "entry_leak" deterministic
        => cycles_leave_nothing_behind
    },
    rule! {
        "2.10" MUST phase 2 [Lock, Try, Wait, Lease]
        layer: Both, access: A, test: D,
        title: "huge durations never wrap",
        statement: "Very long ttls and wait limits, up to the longest Duration, are kept, cut to what is \
            declared, or refused; none becomes a short one.",
        intent: "A limit of `Duration::MAX` that wraps to a few milliseconds gives the lock away under its \
            holder, or ends a wait that was to be endless.",
        check_first: "Into which unit and width is the duration converted, and what happens to what does \
            not fit?",
        evidence: ["huge_ttls" >= 8, "huge_waits" >= 8],
        budget: 60 s,
        bug: "ttl_u32_wrap" deterministic
        => huge_durations_never_wrap
    },
    rule! {
        "2.11" MUST phase 2 [Lock, Wait]
        layer: Engine, access: A, test: T,
        title: "unbounded wait has no end",
        statement: "A wait without a limit outlives three times the longest time limit that the subject has \
            of its own.",
        intent: "Whoever asks to wait for ever has no plan for `Timeout`; a default that nobody set ends \
            the wait during the first long job.",
        check_first: "Does the time limit of a request, of a socket or of the pool also end the wait for \
            the holder?",
        evidence: ["waits_outlived" >= 1],
        budget: 120 s,
        bug: "hidden_default_timeout" deterministic
        => unbounded_wait_has_no_end
    },
    rule! {
        "2.12" SHOULD phase 2 [Lock, Try]
        layer: Both, access: P, test: D,
        title: "round trips are few",
        statement: "An acquire of a lock that nobody holds and its release cost at most the claimed number \
            of round trips, for a try and a wait, for a name that is new and one that is not.",
        intent: "Where the store is far away every question more is what a lock costs; a look before the \
            grant and another after it make it three times as slow.",
        check_first: "Which requests are sent besides the one that asks and the one that lets go: a look \
            before, a confirmation after, a sign of life for each lock?",
        evidence: ["cycles" >= 100, "round_trips" >= 20],
        budget: 60 s,
        bug: "chatty_acquire" deterministic
        => an_uncontended_cycle_is_cheap
    },
];

async fn try_never_waits(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("held"), cx.ask());
    let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
    let bound = cx.claims().op_bound + cx.slack();
    let mut waiting = None;
    for round in 0..cx.rounds(6, 60) {
        let refused = cx.expect_held(&*b, &name, &ask, "B tries while A holds");
        cx.within(bound, "B's try of a held name", refused).await??;
        cx.evidence("refusals");
        if round == 2 {
            // A queue must not make a try wait either.
            let (c, name, ask) = (Arc::clone(&c), name.clone(), ask.clone());
            waiting = Some(cx.spawn(async move { c.acquire(&name, &ask).await }));
            cx.sleep(Duration::from_millis(5)).await;
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
        let held = cx
            .expect_free(
                &*client,
                &name,
                &ask,
                format!("round {round}: a free name that nobody else uses"),
            )
            .await?;
        held.release()
            .await
            .seen(format_args!("round {round}: release"))?;
        cx.evidence("grants");
    }
    Ok(())
}

async fn a_release_wakes_a_waiter(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("waited-for"), cx.ask());
    for round in 0..cx.rounds(5, 50) {
        let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
        let waiting = {
            let (b, name, ask) = (Arc::clone(&b), name.clone(), ask.clone());
            cx.spawn(async move { b.acquire(&name, &ask).await })
        };
        // From "not yet queued" to "long asleep".
        cx.sleep(Duration::from_millis(20 * round as u64 % 100)).await;
        ensure!(!waiting.is_done(), "round {round}: B does not wait while A holds");
        held.release().await.seen("A releases")?;
        let bound = cx.claims().op_bound + cx.slack();
        let next = cx
            .within(
                bound,
                format!("round {round}: B's waiting acquire, after A's release"),
                waiting,
            )
            .await?
            .seen("B waits for A")?;
        next.release().await.seen("B releases")?;
        cx.evidence("hand_overs");
    }
    Ok(())
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
        let waited = a.acquire_timeout(&name, &ask, Duration::from_millis(50)).await;
        refused(&cx, waited.map(Some), what, "acquire_timeout")?;
    }
    let free: Ask = cx.ask();
    let held = cx
        .expect_free(&*b, &name, &free, "after nothing but invalid requests")
        .await?;
    held.release().await.seen("B releases")
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

async fn cycles_leave_nothing_behind(cx: Cx) -> Verdict {
    let client = cx.connect().await?;
    let (name, ask) = (cx.name("cycle"), cx.ask());
    for cycle in 0..cx.rounds(1_100, 5_000) {
        let held = client
            .acquire(&name, &ask)
            .await
            .seen(format_args!("cycle {cycle}: acquire"))?;
        held.release()
            .await
            .seen(format_args!("cycle {cycle}: release"))?;
        cx.evidence("cycles");
    }
    Ok(())
}
