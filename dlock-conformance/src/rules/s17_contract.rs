//! §17 The contract: errors, claims, panics, closing.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dlock_core::{Capability, LossReason};

use super::prelude::*;
use super::probes;
use crate::panics;

rules! {
    errors_have_their_kinds, undeclared_is_refused, declared_is_delivered, no_panic_escapes,
    errors_keep_their_cause, capabilities_are_constant, close_ends_everything,
}

rule! { "17.01" Must phase 1 [Lock, Try, Wait] Both A D errors_have_their_kinds,
    evidence ["kinds_produced" >= 4], bug "error_all_other"
    "Every error kind that the API alone can provoke is the one of its scenario, and no two scenarios share \
        one."
    why "Callers retry, give up or alert by the kind. If there is only one kind, they have to parse the \
        message."
    check "Where are the driver's errors turned into kinds, and is there a catch-all arm?"
}
async fn errors_have_their_kinds(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("kinds"), cx.ask());
    let caps = &cx.claims().capabilities;
    let mut seen = BTreeMap::new();
    let mut note = |expected: ErrorKind, scenario: &'static str, answer: dlock_core::Result<()>| -> Verdict {
        match answer {
            Ok(()) => fail!("{scenario} succeeds instead of answering {expected:?}"),
            Err(e) if e.kind() == expected => {
                if seen.insert(format!("{expected:?}"), scenario).is_none() {
                    cx.evidence("kinds_produced");
                }
                Ok(())
            }
            Err(e) => Err(e).seen(format_args!("{scenario}, rather than {expected:?}")),
        }
    };
    let held = a.is_granted(&name, &ask, "at first").await?;
    b.is_refused(&name, &ask, "a try on a held name, which is no error")
        .await?;
    let waited = b.acquire_timeout(&name, &ask, ms(20)).await.map(drop);
    note(ErrorKind::Timeout, "a wait for a held name", waited)?;
    let no_ttl = ask.clone().ttl(Duration::ZERO);
    let zero = a.try_acquire(&cx.name("zero"), &no_ttl).await;
    note(ErrorKind::InvalidInput, "a ttl of zero", zero.map(drop))?;
    held.release().await.seen("releasing")?;
    note(ErrorKind::Lost, "a second release", held.release().await)?;
    if let Some(max) = caps.max_held.filter(|n| *n <= 1000 && cx.has(Need::Limits)) {
        let mut all = Vec::new();
        for i in 0..max {
            let when = "below the limit";
            all.push(b.is_granted(&cx.name(format!("of-{i}")), &ask, when).await?);
        }
        let beyond = b.try_acquire(&cx.name("beyond"), &ask).await.map(drop);
        let scenario = "one hold more than the declared limit";
        note(ErrorKind::LimitReached, scenario, beyond)?;
    }
    if !caps.has(Capability::Priority) {
        let urgent = ask.clone().priority(9);
        let urgent = b.try_acquire(&cx.name("urgent"), &urgent).await.map(drop);
        note(ErrorKind::Unsupported, "a priority that is not declared", urgent)?;
    }
    a.close().await.seen("closing")?;
    let late = a.try_acquire(&name, &ask).await.map(drop);
    note(ErrorKind::Closed, "a try through a closed client", late)?;
    let all = "Timeout Lost Unknown InvalidInput Unsupported LimitReached Unavailable PermissionDenied \
        BackendData Closed";
    let missing: Vec<_> = all.split(' ').filter(|kind| !seen.contains_key(*kind)).collect();
    cx.note(format_args!(
        "not provoked through the API alone: {}",
        missing.join(", ")
    ));
    Ok(())
}

rule! { "17.02" Must phase 1 [] Both A D undeclared_is_refused, bug "prio_silently_ignored"
    "What is not declared answers Unsupported at once and without a side effect; it is never silently \
        ignored."
    why "An ignored priority or minimum hold looks like success until the day that it matters."
    check "Is every option compared with the capabilities before anything is sent?"
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
            Err(e) => fail!("{what}, answers {e:?} rather than Unsupported"),
            Ok(probes::Answer::Served) if *capability == Capability::Fencing => {
                fail!("{what}, was not refused: the grant has a token. Does `part` return the part?")
            }
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
        b.passes(&name, &cx.ask(), after).await?;
    }
    // A subject that declares all has nothing to refuse, and keeps the rule; the report says so.
    note_probed(&cx, "refused", &refused, &out_of_reach);
    Ok(())
}

/// Says what was tried, and what could not be.
fn note_probed(cx: &Cx, how: &str, probed: &[String], out_of_reach: &[String]) {
    match probed {
        [] => cx.note(format_args!(
            "there is no capability to probe that would be {how}"
        )),
        _ => cx.note(format_args!("{how}: {}", probed.join(", "))),
    }
    if !out_of_reach.is_empty() {
        cx.note(format_args!(
            "not probed, since a client cannot request it on its own: {}",
            out_of_reach.join(", ")
        ));
    }
}

rule! { "17.03" Must phase 1 [] Both A D declared_is_delivered, bug "claims_more_than_it_has"
    "Every declared capability is exercised once, and none of them answers Unsupported."
    why "If claims are never tried, the feature table becomes wrong."
    check "Do the capabilities come from the same place as the code that serves them?"
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
                fail!("{capability:?} is declared, and the subject does not offer it")
            }
            Err(e) => fail!("{capability:?} is declared and answers {e:?}"),
        }
    }
    note_probed(&cx, "served", &served, &out_of_reach);
    Ok(())
}

rule! { "17.04" Must phase 1 [Lock, Try, Wait] Both A D no_panic_escapes, evidence ["guards_dropped" >= 6],
    bug "panic_in_drop"
    "No panic reaches the caller or a background task when guards and futures are dropped early, late and \
        after the client is closed."
    why "A panic in a destructor during another panic aborts the process."
    check "What does the guard's Drop do once the client is closed or its runtime gone?"
}
async fn no_panic_escapes(cx: Cx) -> Verdict {
    let before = panics::count(cx.is_virtual());
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask().ttl(cx.short_ttl());
    let mut late = Vec::new();
    for i in 0..8 {
        let name = cx.name(format!("dropped-{i}"));
        let guard = a.is_granted(&name, &ask, "at first").await?;
        let waits = cx.waits(&b, &name, &ask);
        cx.sleep(ms(5)).await;
        // A wait is dropped, a release before and after its first poll, guards later.
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
    cx.sleep(ms(20)).await;
    let panics = panics::count(cx.is_virtual()) - before;
    ensure!(panics == 0, "{panics} panics happened in background tasks");
    Ok(())
}

/// The compile-time half: this does not compile for an error that is less.
fn is_an_error<E: std::error::Error + Send + Sync + 'static>(error: &E) -> Option<String> {
    error.source().map(ToString::to_string)
}

rule! { "17.06" Must phase 1 [] Both A K errors_keep_their_cause, evidence ["causes_seen" >= 1],
    bug "error_drops_source"
    "Errors are Error + Send + Sync + 'static, and the error for an unreachable store keeps its source()."
    why "The caller's log says `unavailable`. Only the cause says whether the reason is DNS, TLS, a port or \
        a password."
    check "Where errors are converted or wrapped, is the driver's error formatted into the message and \
        dropped?"
}
async fn errors_keep_their_cause(cx: Cx) -> Verdict {
    let Some(connected) = cx.connect_nowhere().await else {
        not_run!("the harness offers no client of a store that cannot be reached (connect_nowhere)");
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
        "a store that cannot be reached answers {failed:?}"
    );
    let Some(cause) = is_an_error(&failed) else {
        fail!("the error of a store that cannot be reached has no source(): {failed:?}");
    };
    ensure!(
        is_an_error(&failed.clone()).is_some(),
        "a clone of the error has lost the cause"
    );
    cx.note(format_args!("{failed}: {cause}"));
    cx.evidence("causes_seen");
    Ok(())
}

rule! { "17.07" Must phase 1 [Lock, Try] Both A D capabilities_are_constant, evidence ["looks" >= 6],
    bug "caps_flap"
    "The capabilities of a client are the claimed ones, the same for every client, from connect until after \
        close."
    why "Programs choose their algorithm by the capabilities once, at the start."
    check "Are they computed at connect, or learned from the first answers?"
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
        let guard = client.is_granted(&cx.name("x"), &cx.ask(), "at first").await?;
        same("while it holds")?;
        guard.release().await.seen("releasing")?;
        let no_ttl = cx.ask().ttl(Duration::ZERO);
        let _ = client.try_acquire(&cx.name("x"), &no_ttl).await;
        same("after an error")?;
        client.close().await.seen("closing")?;
        same("after its close")?;
    }
    Ok(())
}

rule! { "17.09" Must phase 1 [Lock, Try, Wait] Both A D close_ends_everything,
    evidence ["closed_answers" >= 3], bug "close_keeps_renewing"
    "close() is idempotent, ends guards and their renewal so that others get the lock, and later calls \
        answer Closed."
    why "If a client renews after its close, it holds a lock that nobody can release any more."
    check "Does close stop the renewal task and release what is held?"
}
async fn close_ends_everything(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("closed");
    let ask = cx.renewing(cx.ask().ttl(cx.steady_ttl()));
    let held = a.is_granted(&name, &ask, "at first").await?;
    b.is_refused(&name, &ask, "before the close").await?;
    let bound = cx.prompt();
    cx.done(bound, "closing", a.close()).await?;
    cx.done(bound, "closing again", a.close()).await?;
    let by = cx.now() + ask.ttl * 2 + cx.skew(ask.ttl) + cx.slack();
    let when = "after the holder's close";
    let next = cx.free_by(&*b, &name, &ask, by, when).await?;
    held.must_be_over("a guard is valid after its client's close, and another client holds the lock")?;
    ensure!(
        matches!(held.loss(), Some(LossReason::Closed | LossReason::Expired)),
        "a guard of a closed client says {:?} of its loss",
        held.loss()
    );
    let other = cx.name("other");
    let timed = a.acquire_timeout(&other, &ask, bound).await.map(drop);
    let answers = [
        ("try_acquire", a.try_acquire(&other, &ask).await.map(drop)),
        ("acquire", a.acquire(&other, &ask).await.map(drop)),
        ("acquire_timeout", timed),
    ];
    for (what, answer) in answers {
        refused(answer, ErrorKind::Closed, format_args!("{what} after the close"))?;
        cx.evidence("closed_answers");
    }
    next.release().await.seen("the next holder releases")
}
