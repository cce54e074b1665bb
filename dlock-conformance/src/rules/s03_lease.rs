//! §3 Lease and expiry.

use std::time::Duration;

use dlock_core::{ErrorKind, LockName, Nature, Timestamp};

use super::late_replies::{a_retried_grant_keeps_its_end, the_deadline_counts_from_the_send};
use super::partition::a_lapsed_place_is_not_granted;
use super::s03_handover::{beliefs_do_not_overlap, finer_ttls_round_up};
use super::stale::{Successor, stale_guard};
use crate::claims::Need;
use crate::cx::Cx;
use crate::rule::{Rule, rule};
use crate::subject::{Ask, Held, Subject};
use crate::verdict::{Seen, Verdict};
use crate::{ensure, fail};

pub(super) static RULES: &[Rule] = &[
    rule! {
        "3.01" MUST phase 1 [Lock, Lease, Try]
        layer: Both, access: A, test: T,
        title: "an unrenewed lease lapses",
        statement: "A grant that is not renewed becomes acquirable at the latest its ttl plus slack after \
            its last success.",
        intent: "A holder that dies must not keep the lock for ever; that is what the lease is for.",
        check_first: "Does the store itself end the lease, or does it wait for the holder to say so?",
        evidence: ["lapsed" >= 2],
        budget: 60 s,
        bug: "no_expiry" deterministic
        => an_unrenewed_lease_lapses
    },
    rule! {
        "3.02" MUST phase 1 [Lease, Try, PerGrantTtl]
        layer: Both, access: A, test: T,
        title: "no early grant",
        statement: "A lease is not grantable to another before the send time of its last successful acquire \
            or renewal plus its ttl, less the skew.",
        intent: "The holder works until its deadline; a store that gives the lock away sooner makes two \
            holders of one lease.",
        check_first: "Does the store round a ttl down, or expire by another clock than the one it counted \
            the lease with?",
        evidence: ["refusals_before_expiry" >= 5],
        budget: 60 s,
        bug: "early_expiry" deterministic
        => no_early_grant
    },
    rule! {
        "3.03" MUST phase 1 [Lock, Lease, PerGrantTtl]
        layer: Both, access: P, test: T,
        title: "the deadline counts from the send",
        statement: "The guard's own deadline is computed from the time at which the request was sent, less \
            the drift margin, never from the reply.",
        intent: "The store has counted since the request arrived; a reply that took a second gives a holder \
            that believes a second too long.",
        check_first: "At which moment is the clock read to which the ttl is added?",
        evidence: ["slow_replies" >= 1],
        budget: 120 s,
        bug: "deadline_from_reply" deterministic
        => the_deadline_counts_from_the_send
    },
    rule! {
        "3.04" MUST phase 1 [Lock, Lease]
        layer: Engine, access: A, test: D,
        title: "validity is computed",
        statement: "Past the deadline is_valid is false and remaining is zero, with no I/O and with the \
            executor blocked for longer than the ttl.",
        intent: "A flag that a background task clears is still set when the pause that lost the lock is \
            over.",
        check_first: "Is validity computed from the clock at each call, or kept by a timer?",
        evidence: ["stalls" >= 2],
        budget: 60 s,
        bug: "cached_valid_flag" deterministic
        => validity_is_computed
    },
    rule! {
        "3.05" MUST phase 2 [Lock, Wait, Lease, Try]
        layer: Engine, access: C, test: T,
        title: "validity ignores the wall clock",
        statement: "A step of the holder's wall clock by an hour, in either direction, changes nothing \
            about the validity of its guard.",
        intent: "A clock that is set ends a lock that is held, or keeps its holder believing for an hour.",
        check_first: "Is any deadline a time of day?",
        evidence: ["steps" >= 2],
        budget: 60 s,
        bug: "client_walltime_deadline" deterministic
        => super::s03_wall_clock::validity_ignores_the_wall_clock
    },
    rule! {
        "3.06" MUST phase 1 [Lock, Lease, Try]
        layer: Both, access: A, test: T,
        title: "an expired guard harms no successor",
        statement: "Release or renewal through a guard whose lease is over answers Lost and leaves the \
            successor untouched.",
        intent: "The late `finally` of a paused holder deletes the lock of whoever holds it now: the \
            classic bug of DEL after SET NX.",
        check_first: "Is release conditional on the acquisition, in one step with the deletion?",
        evidence: ["stale_ends" >= 1],
        budget: 60 s,
        bug: "release_by_name" deterministic
        => an_expired_guard_harms_no_successor
    },
    rule! {
        "3.07" MUST phase 1 [Lock, Lease, Try, PerGrantTtl]
        layer: Both, access: A, test: T,
        title: "each grant its own ttl",
        statement: "Each acquire's ttl is its own: of two ttls that alternate on one name, each is kept.",
        intent: "A record that survives its holder hands its old ttl to the next one.",
        check_first: "Is the ttl part of the name's record, or of the grant?",
        evidence: ["short_leases" >= 2, "long_leases" >= 1],
        budget: 60 s,
        bug: "ttl_sticky_first" deterministic
        => each_grant_its_own_ttl
    },
    rule! {
        "3.08" MUST phase 1 [Lock, Wait, Lease]
        layer: Both, access: A, test: T,
        title: "expiry wakes a waiter",
        statement: "When the holder just vanishes, a waiter gets the lock by the lease's ttl plus slack.",
        intent: "A waiter that is woken by releases only sleeps on when there will never be one.",
        check_first: "Who looks when the lease runs out and no message is sent?",
        evidence: ["taken_over" >= 2],
        budget: 120 s,
        bug: "expiry_no_wakeup" deterministic
        => expiry_wakes_a_waiter
    },
    rule! {
        "3.09" MUST phase 2 [Lock, Wait, Try, Lease, PerGrantTtl]
        layer: Both, access: P, test: T,
        title: "lapsed place is not granted",
        statement: "A waiter that was cut off until its place in line lapsed is not granted by that place: \
            not by the store, which passes on to those who are there, and not by its own belief when it is \
            back.",
        intent: "A waiter that takes the end of the wait for the grant, when it was its own session that \
            ended, is a second holder (etcd 11456).",
        check_first: "When the wait ends, does the waiter ask whether its own entry is still there, or only \
            whether those before it have gone?",
        evidence: ["lapsed_places" >= 1, "held_back" >= 1],
        budget: 120 s,
        bug: "stale_waiter_granted" deterministic
        => a_lapsed_place_is_not_granted
    },
    rule! {
        "3.10" MUST phase 2 [Lock, Try, Lease, PerGrantTtl]
        layer: Both, access: A, test: T,
        title: "finer ttls round up",
        statement: "A ttl finer than the declared granularity is rounded up to it, never down, and by no \
            more than one step.",
        intent: "A store that cuts a ttl to whole seconds ends the lease before its holder expects it: two \
            hold it for up to a second.",
        check_first: "Does the conversion to the unit of the store divide, or round up? Is the effective \
            ttl what the guard is told?",
        evidence: ["fine_ttls" >= 5],
        budget: 60 s,
        bug: "ttl_rounds_down" deterministic
        => finer_ttls_round_up
    },
    rule! {
        "3.11" MUST phase 1 [Lock, Lease, Try]
        layer: Both, access: A, test: T,
        title: "the least ttl works",
        statement: "The smallest declared ttl works and lapses; a smaller one is refused, and never makes \
            an immortal lock.",
        intent: "A ttl that is divided down to zero means `no expiry` to more than one store.",
        check_first: "In which unit does the ttl reach the store, and what does zero mean there?",
        evidence: ["lapsed" >= 2, "refusals" >= 1],
        budget: 60 s,
        bug: "tiny_ttl_immortal" deterministic
        => the_least_ttl_works
    },
    rule! {
        "3.12" MUST phase 2 [Lock, Wait, Lease, PerGrantTtl]
        layer: Both, access: A, test: X,
        title: "beliefs do not overlap",
        statement: "When a lease passes on by running out, the local deadline of the holder before is not \
            later than the return of the next one's acquire, by more than the skew.",
        intent: "The store may be right and the accident happens all the same: what counts is what the two \
            holders believe.",
        check_first: "Is the drift margin subtracted from the lease, and from which time is the deadline \
            counted?",
        evidence: ["hand_overs" >= 8],
        budget: 60 s,
        bug: "negative_margin" deterministic
        => beliefs_do_not_overlap
    },
    rule! {
        "3.13" MUST phase 2 [Lock, Wait, Lease, PerGrantTtl]
        layer: Backend, access: P, test: T,
        title: "a retried grant keeps its end",
        statement: "An acquire whose reply was lost and that is sent again answers the remaining life of \
            its grant: the local deadline is not past the store's.",
        intent: "A store that answers the full ttl to a retry promises more than it will keep.",
        check_first: "What does the store answer for a request id that it has granted already?",
        evidence: ["lost_replies" >= 1],
        budget: 120 s,
        bug: "retry_full_ttl" deterministic
        => a_retried_grant_keeps_its_end
    },
];

/// By when a lease of that ttl, confirmed by now, is over for everybody.
pub(super) fn lapsed_by(cx: &Cx, ttl: Duration) -> Timestamp {
    cx.now() + ttl + cx.skew(ttl) + cx.slack()
}

/// A ttl that is worth waiting for several times.
fn brief(cx: &Cx) -> Duration {
    cx.ttl(Duration::from_millis(150))
}

async fn an_unrenewed_lease_lapses(cx: Cx) -> Verdict {
    let next = cx.connect().await?;
    for vanishes in [true, false] {
        let name = cx.name(if vanishes { "vanished" } else { "idle" });
        let ask = cx.ask().ttl(brief(&cx));
        let holder = cx.connect().await?;
        let held = holder.acquire(&name, &ask).await.seen("A acquires a free name")?;
        let by = lapsed_by(&cx, held.ttl());
        if vanishes {
            holder.vanish();
        }
        let when = if vanishes {
            "after its holder vanished"
        } else {
            "held by an idle guard"
        };
        cx.free_by(&*next, &name, &ask, by, when).await?;
        cx.evidence("lapsed");
    }
    Ok(())
}

async fn no_early_grant(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("lease");
    let ask = cx.ask().ttl(cx.short_ttl());
    let asked = cx.now();
    let held = a.acquire(&name, &ask).await.seen("A acquires a free name")?;
    let next = first_grant(
        &cx,
        &*b,
        &name,
        &ask,
        asked,
        ask.ttl,
        asked + ask.ttl * 3 + cx.slack(),
    )
    .await?;
    ensure!(
        !held.is_valid(),
        "A still thinks that it holds the lock after B was granted"
    );
    drop(next);
    Ok(())
}

/// Tries until it is granted, which must be neither before `asked` + `ttl`, less the skew, nor after
/// `latest`.
///
/// The store cannot have begun to count before the request was sent, so before that nobody else may be
/// granted.
pub(super) async fn first_grant(
    cx: &Cx,
    client: &dyn Subject,
    name: &LockName,
    ask: &Ask,
    asked: Timestamp,
    ttl: Duration,
    latest: Timestamp,
) -> Verdict<Box<dyn Held>> {
    let earliest = asked + ttl.saturating_sub(cx.skew(ttl));
    loop {
        let tried = cx.now();
        let granted = client
            .try_acquire(name, ask)
            .await
            .seen("another tries while the lease runs")?;
        let now = cx.now();
        if let Some(granted) = granted {
            ensure!(
                now >= earliest,
                "a lease of {ttl:?} was given to another {:?} after it was asked for, {:?} too early",
                now.since(asked),
                now.until(earliest)
            );
            return Ok(granted);
        }
        if now < earliest {
            cx.evidence("refusals_before_expiry");
        }
        ensure!(
            tried < latest,
            "a lease of {ttl:?} has not lapsed {:?} after it was asked for",
            tried.since(asked)
        );
        cx.sleep(ttl / 50).await;
    }
}

async fn validity_is_computed(cx: Cx) -> Verdict {
    let client = cx.connect().await?;
    for round in 0..2_u32 {
        let ask = cx.ask().ttl(brief(&cx));
        let held = client
            .acquire(&cx.name(round), &ask)
            .await
            .seen("A acquires a free name")?;
        let (ttl, remaining) = (held.ttl(), held.remaining());
        ensure!(
            held.is_valid() && !remaining.is_zero(),
            "a fresh guard is not valid"
        );
        ensure!(
            remaining <= ttl,
            "a guard with a ttl of {ttl:?} has {remaining:?} left"
        );
        if round == 0 {
            // Nothing of the subject runs between the pause and the question, as after a long garbage
            // collection.
            cx.stall(ttl + Duration::from_millis(20));
        } else {
            // The client may hear of its session meanwhile, on another thread: then the lease goes on with
            // that, until its ttl is over.
            let over = match cx.claims().capabilities.nature {
                Nature::Session => ttl,
                _ => remaining,
            };
            cx.stall(over + Duration::from_millis(1));
        }
        let (valid, remaining) = (held.is_valid(), held.remaining());
        ensure!(
            !valid,
            "a guard says that it is valid after a pause longer than its ttl of {ttl:?}"
        );
        ensure!(
            remaining.is_zero(),
            "a guard says that {remaining:?} are left after a pause longer than its ttl"
        );
        cx.evidence("stalls");
    }
    Ok(())
}

async fn an_expired_guard_harms_no_successor(cx: Cx) -> Verdict {
    stale_guard(&cx, Successor::Stranger).await
}

async fn each_grant_its_own_ttl(cx: Cx) -> Verdict {
    let next = cx.connect().await?;
    let name = cx.name("alternating");
    let short = brief(&cx);
    let long = cx.ttl(short * 3);
    for ttl in [short, long, short] {
        // A holder of its own for each, so that it can vanish: what ends the lease is the store's clock
        // alone.
        let holder = cx.connect().await?;
        let ask = cx.ask().ttl(ttl);
        let asked = cx.now();
        let held = holder
            .acquire(&name, &ask)
            .await
            .seen("the next holder acquires a free name")?;
        let shown = held.ttl();
        ensure!(
            shown + cx.skew(ttl) >= ttl
                && shown <= ttl + cx.skew(ttl) + cx.claims().capabilities.ttl_granularity,
            "a grant that was asked for with a ttl of {ttl:?} has one of {shown:?}"
        );
        let by = lapsed_by(&cx, ttl);
        holder.vanish();
        // With a third ttl, so that a record that takes over what the prober asks for shows too.
        let probe = cx.ask();
        let taken = first_grant(&cx, &*next, &name, &probe, asked, ttl, by).await?;
        taken.release().await.seen("the prober releases")?;
        cx.evidence(if ttl == long {
            "long_leases"
        } else {
            "short_leases"
        });
    }
    Ok(())
}

async fn expiry_wakes_a_waiter(cx: Cx) -> Verdict {
    let waiter = cx.connect().await?;
    for round in 0..cx.rounds(2, 10) {
        let holder = cx.connect().await?;
        let name = cx.name(round);
        let held = holder
            .acquire(&name, &cx.ask().ttl(brief(&cx)))
            .await
            .seen("A acquires a free name")?;
        let by = lapsed_by(&cx, held.ttl()) + cx.claims().wake_p99;
        let waiting = {
            let (waiter, name, ask) = (std::sync::Arc::clone(&waiter), name.clone(), cx.ask());
            cx.spawn(async move { waiter.acquire(&name, &ask).await })
        };
        cx.sleep(Duration::from_millis(10)).await;
        ensure!(!waiting.is_done(), "B does not wait while A holds");
        holder.vanish();
        let left = cx.now().until(by);
        let taken = cx
            .within(
                left,
                format!("B's wait, after A with a lease of {:?} vanished", held.ttl()),
                waiting,
            )
            .await?
            .seen("B waits for A")?;
        taken.release().await.seen("B releases")?;
        cx.evidence("taken_over");
    }
    Ok(())
}

async fn the_least_ttl_works(cx: Cx) -> Verdict {
    let next = cx.connect().await?;
    let least = cx.claims().capabilities.min_ttl;
    for round in 0..2 {
        let holder = cx.connect().await?;
        let (name, ask) = (cx.name(round), cx.ask().ttl(least));
        let held = holder
            .acquire(&name, &ask)
            .await
            .seen(format_args!("A acquires with the least ttl, {least:?}"))?;
        let by = lapsed_by(&cx, least);
        if cx.claims().has(Need::PerGrantTtl) {
            let longest = least + cx.skew(least) + cx.claims().capabilities.ttl_granularity;
            ensure!(
                held.ttl() <= longest,
                "a lease of {least:?}, the least ttl, became one of {:?}",
                held.ttl()
            );
        }
        holder.vanish();
        let when = format!("a lease of {least:?}, the least ttl, whose holder vanished");
        cx.free_by(&*next, &name, &cx.ask(), by, when).await?;
        cx.evidence("lapsed");
    }
    let mut smaller = vec![Duration::ZERO];
    if least / 2 > Duration::ZERO {
        smaller.push(least / 2);
    }
    for ttl in smaller {
        let name = cx.name(format!("below-{}", ttl.as_nanos()));
        match next.try_acquire(&name, &cx.ask().ttl(ttl)).await {
            Ok(_) => fail!("a ttl of {ttl:?} was accepted, although the least is {least:?}"),
            Err(e) if e.kind() == ErrorKind::InvalidInput => cx.evidence("refusals"),
            Err(e) => {
                return Err(e).seen(format_args!(
                    "a ttl of {ttl:?}, below the least: InvalidInput expected"
                ));
            }
        }
        cx.expect_free(&*next, &name, &cx.ask(), "after a refused ttl")
            .await?;
    }
    Ok(())
}
