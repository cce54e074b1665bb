//! §17 The contract: errors, claims, panics, closing.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dlock_core::{Capability, ErrorKind, LossReason};

use super::probes;
use super::s17_telling::{each_turn_is_told_once, secrets_stay_secret};
use crate::claims::Need;
use crate::cx::Cx;
use crate::panics;
use crate::rule::{Rule, rule};
use crate::verdict::{Failure, Seen, Verdict};
use crate::{ensure, fail};

pub(super) static RULES: &[Rule] = &[
    rule! {
        "17.01" MUST phase 1 [Lock, Try, Wait]
        layer: Both, access: A, test: D,
        title: "errors have their kinds",
        statement: "Every error kind that can be provoked through the API alone is the one of its scenario, \
            and no two scenarios share one.",
        intent: "A caller retries, gives up or alarms by the kind; one kind for everything makes it guess \
            from a text.",
        check_first: "Where are the driver's errors turned into kinds, and is there a catch-all arm?",
        evidence: ["kinds_produced" >= 4],
        budget: 60 s,
        bug: "error_all_other" deterministic
        => errors_have_their_kinds
    },
    rule! {
        "17.02" MUST phase 1 []
        layer: Both, access: A, test: D,
        title: "undeclared is refused",
        statement: "What is not declared answers Unsupported at once and without a side effect; it is never \
            silently ignored.",
        intent: "An ignored priority or minimum hold looks like success until the day that it mattered.",
        check_first: "Is every option compared with the capabilities before anything is sent?",
        evidence: [],
        budget: 60 s,
        bug: "prio_silently_ignored" deterministic
        => undeclared_is_refused
    },
    rule! {
        "17.03" MUST phase 1 []
        layer: Both, access: A, test: D,
        title: "declared is delivered",
        statement: "Every declared capability is exercised once, and none of them answers Unsupported.",
        intent: "A claim that nobody ever tries is how a matrix of features comes to lie.",
        check_first: "Do the capabilities come from the same place as the code that serves them?",
        evidence: [],
        budget: 60 s,
        bug: "claims_more_than_it_has" deterministic
        => declared_is_delivered
    },
    rule! {
        "17.04" MUST phase 1 [Lock, Try, Wait]
        layer: Both, access: A, test: D,
        title: "no panic escapes",
        statement: "No panic reaches the caller or a background task when guards and futures are dropped \
            early, late and after the client's end.",
        intent: "A panic in a destructor while another one unwinds ends the whole process.",
        check_first: "What does the guard's Drop do once the client is closed or its runtime gone?",
        evidence: ["guards_dropped" >= 6],
        budget: 60 s,
        bug: "panic_in_drop" deterministic
        => no_panic_escapes
    },
    rule! {
        "17.05" MUST phase 2 [Secrets]
        layer: Both, access: A, test: D,
        title: "secrets stay secret",
        statement: "A password that a client was given is in no error, no cause of one, no printed client \
            and no event or span of tracing.",
        intent: "The log of the night when the store was away is in a ticket the next morning, with the \
            password of the store.",
        check_first: "Where is the address put into a message, and does a driver's error that is kept as \
            the cause repeat it?",
        evidence: ["texts_read" >= 6, "errors_read" >= 2],
        budget: 60 s,
        bug: "leaks_password" deterministic
        => secrets_stay_secret
    },
    rule! {
        "17.06" MUST phase 1 []
        layer: Both, access: A, test: K,
        title: "errors keep their cause",
        statement: "Errors are Error + Send + Sync + 'static, and the error of a store that cannot be \
            reached keeps its source().",
        intent: "The caller's log says `unavailable`; only the cause says whether it is DNS, TLS, a port or \
            a password.",
        check_first: "Is the driver's error put into the message and thrown away, where errors are turned \
            into kinds or wrapped?",
        evidence: ["causes_seen" >= 1],
        budget: 60 s,
        bug: "error_drops_source" deterministic
        => errors_keep_their_cause
    },
    rule! {
        "17.07" MUST phase 1 [Lock, Try]
        layer: Both, access: A, test: D,
        title: "capabilities are constant",
        statement: "The capabilities of a client are those that are claimed, the same for every client, \
            from its first moment to after its close.",
        intent: "Programs choose their algorithm by the capabilities once, at the start.",
        check_first: "Are they computed at connect, or learned from the first answers?",
        evidence: ["looks" >= 6],
        budget: 60 s,
        bug: "caps_flap" deterministic
        => capabilities_are_constant
    },
    rule! {
        "17.08" SHOULD phase 3 [Lock, Try, Wait, Events]
        layer: Engine, access: A, test: D,
        title: "each turn is told once",
        statement: "Each grant, renewal, loss and release is one event of tracing, with the name, the id of \
            the grant, and its token where there is one; a refusal is none.",
        intent: "What a lock did last night is asked when it is over: an event that is missing, or told \
            twice, tells another story.",
        check_first: "Is it told where the state changes, or beside it, and on every way there: by hand, by \
            the drop of a guard, in the background?",
        evidence: ["grants_told" >= 4, "releases_told" >= 2],
        budget: 60 s,
        bug: "no_events" deterministic
        => each_turn_is_told_once
    },
    rule! {
        "17.09" MUST phase 1 [Lock, Try, Wait]
        layer: Both, access: A, test: D,
        title: "close ends everything",
        statement: "close() is idempotent, ends guards and their renewal so that others get the lock, and \
            later calls answer Closed.",
        intent: "A client that renews after its close holds a lock that nobody can release any more.",
        check_first: "Does closing stop the renewal task, and release what is held?",
        evidence: ["closed_answers" >= 3],
        budget: 60 s,
        bug: "close_keeps_renewing" deterministic
        => close_ends_everything
    },
];

async fn errors_have_their_kinds(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("kinds"), cx.ask());
    let caps = &cx.claims().capabilities;
    let mut seen = BTreeMap::new();
    let mut note = |expected: ErrorKind, scenario: &'static str, answer: dlock_core::Result<()>| -> Verdict {
        match answer {
            Ok(()) => fail!("{scenario} succeeds rather than to answer {expected:?}"),
            Err(e) if e.kind() == expected => {
                if seen.insert(format!("{expected:?}"), scenario).is_none() {
                    cx.evidence("kinds_produced");
                }
                Ok(())
            }
            Err(e) => fail!("{scenario} answers {e} ({:?}) rather than {expected:?}", e.kind()),
        }
    };
    let held = cx.expect_free(&*a, &name, &ask, "at first").await?;
    cx.expect_held(&*b, &name, &ask, "a try on a held name, which is no error")
        .await?;
    let limit = std::time::Duration::from_millis(20);
    let waited = b.acquire_timeout(&name, &ask, limit).await.map(drop);
    note(ErrorKind::Timeout, "a wait for a held name", waited)?;
    let zero = a
        .try_acquire(&cx.name("zero"), &ask.clone().ttl(std::time::Duration::ZERO))
        .await;
    note(ErrorKind::InvalidInput, "a ttl of zero", zero.map(drop))?;
    held.release().await.seen("releasing")?;
    note(ErrorKind::Lost, "a second release", held.release().await)?;
    if let Some(max) = caps.max_held.filter(|n| *n <= 1000) {
        let mut all = Vec::new();
        for i in 0..max {
            all.push(
                cx.expect_free(&*b, &cx.name(format!("of-{i}")), &ask, "below the limit")
                    .await?,
            );
        }
        let beyond = b.try_acquire(&cx.name("beyond"), &ask).await.map(drop);
        note(
            ErrorKind::LimitReached,
            "one hold more than the declared limit",
            beyond,
        )?;
    }
    if !caps.has(Capability::Priority) {
        let urgent = b
            .try_acquire(&cx.name("urgent"), &ask.clone().priority(9))
            .await
            .map(drop);
        note(ErrorKind::Unsupported, "a priority that is not declared", urgent)?;
    }
    a.close().await.seen("closing")?;
    note(
        ErrorKind::Closed,
        "a try through a closed client",
        a.try_acquire(&name, &ask).await.map(drop),
    )?;
    let all = [
        "Timeout",
        "Lost",
        "Unknown",
        "InvalidInput",
        "Unsupported",
        "LimitReached",
        "Unavailable",
        "PermissionDenied",
        "BackendData",
        "Closed",
    ];
    let missing: Vec<_> = all.into_iter().filter(|kind| !seen.contains_key(*kind)).collect();
    cx.note(format_args!(
        "not provoked through the API alone: {}",
        missing.join(", ")
    ));
    Ok(())
}

async fn undeclared_is_refused(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (mut refused, mut out_of_reach) = (Vec::new(), Vec::new());
    for capability in Capability::ALL {
        if cx.claims().capabilities.has(*capability) {
            continue;
        }
        let name = cx.name(format!("{capability:?}"));
        let probe = probes::exercise(&cx, &*a, &name, *capability);
        let what = format!("{capability:?}, which is not declared");
        match cx.within(cx.claims().op_bound * 4, &what, probe).await? {
            Err(e) if e.kind() == ErrorKind::Unsupported => refused.push(format!("{capability:?}")),
            Err(e) => fail!("{what}, answers {e} ({:?}) rather than Unsupported", e.kind()),
            Ok(probes::Answer::Served) => fail!("{what}, was accepted"),
            Ok(probes::Answer::Wrong(answer)) => fail!("{what}, was not refused: {answer}"),
            Ok(probes::Answer::Absent) => refused.push(format!("{capability:?} (absent)")),
            Ok(probes::Answer::NotReachable) => {
                out_of_reach.push(format!("{capability:?}"));
                continue;
            }
        }
        cx.evidence("capabilities_probed");
        let after = format!("after {what}, was refused");
        let guard = cx.expect_free(&*b, &name, &cx.ask(), after).await?;
        guard.release().await.seen("releasing")?;
    }
    // A subject that declares all has nothing to refuse, and keeps the rule. The report says that nothing was
    // tried.
    if refused.is_empty() {
        cx.note("nothing could be probed: whatever can be asked for is declared");
    } else {
        cx.note(format_args!("refused: {}", refused.join(", ")));
    }
    note_out_of_reach(&cx, &out_of_reach);
    Ok(())
}

fn note_out_of_reach(cx: &Cx, capabilities: &[String]) {
    if !capabilities.is_empty() {
        cx.note(format_args!(
            "not probed, since a client cannot ask for it by itself: {}",
            capabilities.join(", ")
        ));
    }
}

async fn declared_is_delivered(cx: Cx) -> Verdict {
    let a = cx.connect().await?;
    let (mut served, mut out_of_reach) = (Vec::new(), Vec::new());
    for capability in Capability::ALL {
        if !cx.claims().capabilities.has(*capability) {
            continue;
        }
        let name = cx.name(format!("{capability:?}"));
        match probes::exercise(&cx, &*a, &name, *capability).await {
            Ok(probes::Answer::Served) => {
                cx.evidence("capabilities_probed");
                served.push(format!("{capability:?}"));
            }
            Ok(probes::Answer::NotReachable) => out_of_reach.push(format!("{capability:?}")),
            Ok(probes::Answer::Wrong(answer)) => fail!("{capability:?} is declared, and {answer}"),
            Ok(probes::Answer::Absent) => {
                fail!("{capability:?} is declared and there is nothing that offers it")
            }
            Err(e) => fail!("{capability:?} is declared and answers {e} ({:?})", e.kind()),
        }
    }
    if served.is_empty() {
        cx.note("nothing could be probed: nothing that can be asked for is declared");
    } else {
        cx.note(format_args!("served: {}", served.join(", ")));
    }
    note_out_of_reach(&cx, &out_of_reach);
    Ok(())
}

async fn no_panic_escapes(cx: Cx) -> Verdict {
    let before = panics::count(cx.is_virtual());
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask().ttl(cx.short_ttl());
    let mut late = Vec::new();
    for i in 0..8 {
        let name = cx.name(format!("dropped-{i}"));
        let guard = cx.expect_free(&*a, &name, &ask, "at first").await?;
        let waits = cx.spawn({
            let (b, name, ask) = (b.clone(), name.clone(), ask.clone());
            async move { b.acquire(&name, &ask).await.map(drop) }
        });
        cx.sleep(std::time::Duration::from_millis(5)).await;
        // The future of a wait is dropped, a release is dropped before and after its first poll, guards
        // later.
        if i % 2 == 0 {
            drop(waits.cancel().await);
        } else {
            waits.detach();
        }
        if i % 4 == 0 {
            drop(guard.release());
        } else if i % 4 == 1 {
            let _ = cx.timeout(std::time::Duration::ZERO, guard.release()).await;
        }
        late.push(guard);
    }
    let drops = |guard: Box<dyn crate::subject::Held>, when: &str| -> Verdict {
        cx.evidence("guards_dropped");
        if catch_unwind(AssertUnwindSafe(|| drop(guard))).is_err() {
            fail!("dropping a guard {when} panics");
        }
        Ok(())
    };
    let rest = late.split_off(3);
    for guard in late {
        drops(guard, "while its client is open")?;
    }
    a.close().await.seen("closing")?;
    for guard in rest {
        ensure!(!guard.is_valid(), "a guard is valid after its client's close");
        drops(guard, "after its client's close")?;
    }
    b.close().await.seen("closing the other")?;
    cx.sleep(std::time::Duration::from_millis(20)).await;
    let panics = panics::count(cx.is_virtual()) - before;
    ensure!(panics == 0, "{panics} panics happened in background tasks");
    Ok(())
}

/// The compile-time half: this does not compile for an error that is less.
fn is_an_error<E: std::error::Error + Send + Sync + 'static>(error: &E) -> Option<String> {
    error.source().map(ToString::to_string)
}

async fn errors_keep_their_cause(cx: Cx) -> Verdict {
    let Some(connected) = cx.connect_nowhere().await else {
        return Err(Failure::NotRun(
            "the harness offers no client of a store that cannot be reached (connect_nowhere)".to_owned(),
        ));
    };
    let failed = match connected {
        Err(e) => e,
        Ok(client) => match client.try_acquire(&cx.name("nowhere"), &cx.ask()).await {
            Err(e) => e,
            Ok(_) => fail!("a store that cannot be reached has answered"),
        },
    };
    ensure!(
        matches!(
            failed.kind(),
            ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::PermissionDenied
        ),
        "a store that cannot be reached answers {failed} ({:?})",
        failed.kind()
    );
    let Some(cause) = is_an_error(&failed) else {
        fail!(
            "the error of a store that cannot be reached has no source(): {failed} ({:?})",
            failed.kind()
        );
    };
    ensure!(
        is_an_error(&failed.clone()).is_some(),
        "a clone of the error has lost the cause"
    );
    cx.note(format_args!("{failed}: {cause}"));
    cx.evidence("causes_seen");
    Ok(())
}

async fn capabilities_are_constant(cx: Cx) -> Verdict {
    let claimed = &cx.claims().capabilities;
    for round in 0..2 {
        let client = cx.connect().await?;
        let same = |when: &str| -> Verdict {
            let now = client.capabilities();
            ensure!(
                now == *claimed,
                "client {round}, {when}: {now:?}, but claimed is {claimed:?}"
            );
            cx.evidence("looks");
            Ok(())
        };
        same("at first")?;
        let guard = cx
            .expect_free(&*client, &cx.name("x"), &cx.ask(), "at first")
            .await?;
        same("while it holds")?;
        guard.release().await.seen("releasing")?;
        let _ = client
            .try_acquire(&cx.name("x"), &cx.ask().ttl(std::time::Duration::ZERO))
            .await;
        same("after an error")?;
        client.close().await.seen("closing")?;
        same("after its close")?;
    }
    Ok(())
}

async fn close_ends_everything(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("closed");
    let mut ask = cx.ask().ttl(cx.short_ttl());
    if cx.claims().has(Need::AutoRenew) {
        ask = ask.auto_renew();
    }
    let held = cx.expect_free(&*a, &name, &ask, "at first").await?;
    cx.expect_held(&*b, &name, &ask, "before the close").await?;
    let bound = cx.claims().op_bound + cx.slack();
    cx.within(bound, "closing", a.close()).await?.seen("closing")?;
    cx.within(bound, "closing again", a.close())
        .await?
        .seen("closing again")?;
    let by = cx.now() + ask.ttl * 2 + cx.skew(ask.ttl) + cx.slack();
    let next = cx
        .free_by(&*b, &name, &ask, by, "after the holder's close")
        .await?;
    ensure!(
        !held.is_valid(),
        "a guard is valid after its client's close, and somebody else holds the lock"
    );
    ensure!(
        matches!(held.loss(), Some(LossReason::Closed | LossReason::Expired)),
        "a guard of a closed client says {:?} of its loss",
        held.loss()
    );
    let other = cx.name("other");
    let answers = [
        ("try_acquire", a.try_acquire(&other, &ask).await.map(drop)),
        ("acquire", a.acquire(&other, &ask).await.map(drop)),
        (
            "acquire_timeout",
            a.acquire_timeout(&other, &ask, bound).await.map(drop),
        ),
    ];
    for (what, answer) in answers {
        match answer {
            Err(e) if e.kind() == ErrorKind::Closed => cx.evidence("closed_answers"),
            Err(e) => fail!(
                "{what} after the close answers {e} ({:?}) rather than Closed",
                e.kind()
            ),
            Ok(()) => fail!("{what} after the close succeeds"),
        }
    }
    next.release().await.seen("the next holder releases")
}
