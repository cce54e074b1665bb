//! Many requests of one client at once, which a backend may send as one: 14.08, 15.11 and 16.17.

use dlock_core::Result;
use futures::future::BoxFuture;

use super::faulty::{faulty, patience, struck};
use super::prelude::*;

rules! { one_of_many_ends_alone, many_unheard_are_each_unknown, one_of_many_fails_alone }

/// More than go alone, as far as the store's limits allow.
fn names(cx: &Cx, of: &str) -> Verdict<Vec<LockName>> {
    let most = cx.claims().capabilities.max_held.unwrap_or(96) / 2;
    if most < 7 {
        not_run!("it needs a client that can hold at least fourteen locks");
    }
    let names = (0..most.min(48)).map(|n| cx.name(format_args!("{of} {n}")));
    Ok(names.collect())
}

rule! { "14.08" Must phase 2 [Lock, Try, Lease] Both A D one_of_many_ends_alone,
    evidence ["rounds" >= 6, "granted_beside" >= 24], bug "drop_ends_company", budget 300 s
    "When a client has many requests in flight at once, each ends as it would alone: neither a dropped \
        future nor a refusal affects the other requests."
    why "A batch is one transaction in the store and one future in the client. If it fails or is dropped as \
        a whole, one impatient caller takes the locks of all the others."
    check "Does one future carry the requests of others, and what becomes of them when it is dropped?"
}
async fn one_of_many_ends_alone(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    // A dropped request may need its ttl to be free.
    let (long, short, mut rng) = (cx.ask(), cx.ask().ttl(cx.short_ttl()), cx.rng());
    let mut in_flight = 0;
    for round in 0..cx.rounds(6, 60) {
        // At its first poll, and later.
        let after = rng.duration(Duration::ZERO, ms(3)) * u32::from(round % 2 == 1);
        let names = names(&cx, &format!("round {round}"))?;
        let third = names.len() / 3;
        let refused = rng.index(names.len());
        let [dropped, kept] = [third, 2 * third].map(|n| (refused + n) % names.len());
        let before = b.is_granted(&names[refused], &long, "before the others try");
        let before = before.await?;
        let asks = |n| if n == dropped || n == kept { &short } else { &long };
        let trying = names.iter().enumerate();
        let trying = trying.map(|(n, name)| a.try_acquire(name, asks(n))).collect();
        let (tried, was_cut) = all_but(&cx, dropped, after, trying).await?;
        in_flight += u32::from(was_cut);
        before.release().await.seen("the former holder releases")?;
        let mut held = Vec::new();
        for (n, answer) in tried {
            let name = &names[n];
            match answer.seen(format_args!("trying for `{name}` beside others"))? {
                Some(_) if n == refused => fail!("`{name}` was granted beside others although it was held"),
                Some(guard) => held.push((n, guard)),
                None => ensure!(n == refused, "the free `{name}` was refused beside others"),
            }
        }
        let when = "after a try for it was dropped, beside others";
        let by = cx.lapsed_by(short.ttl);
        cx.passes_by(&*b, &names[dropped], &short, by, when).await?;
        for (n, guard) in held.iter().filter(|(n, _)| *n != kept) {
            let name = &names[*n];
            ensure!(guard.is_valid(), "`{name}` is lost after another try was dropped");
            let when = "after another try of the holder's client was dropped";
            b.is_refused(name, &long, when).await?;
            cx.evidence("granted_beside");
        }
        let dropped = held.iter().position(|(n, _)| *n == kept).unwrap_or(0);
        let releasing = held.iter().map(|(_, guard)| guard.release()).collect();
        let (released, was_cut) = all_but(&cx, dropped, after, releasing).await?;
        in_flight += u32::from(was_cut);
        for (n, answer) in released {
            answer.seen("a release beside others, of which one was dropped")?;
            let when = "after its release beside others";
            b.passes(&names[held[n].0], &long, when).await?;
        }
        let (n, _) = held.swap_remove(dropped);
        let when = "after its release was dropped, beside others, and its guard";
        let by = cx.lapsed_by(short.ttl);
        cx.passes_by(&*b, &names[n], &short, by, when).await?;
        cx.evidence("rounds");
    }
    cx.note(format_args!("{in_flight} were dropped in flight"));
    Ok(())
}

/// Starts all, drops that one after a while, and returns the other answers, and whether it was in flight.
async fn all_but<T>(
    cx: &Cx,
    dropped: usize,
    after: Duration,
    asking: Vec<BoxFuture<'_, Result<T>>>,
) -> Verdict<(Vec<(usize, Result<T>)>, bool)> {
    let all = asking.into_iter().enumerate().map(async |(n, asking)| {
        if n == dropped {
            return Err(cx.timeout(after, asking).await.is_none());
        }
        Ok((n, asking.await))
    });
    let what = "many concurrent requests, one of them dropped";
    let answers = cx.within(Duration::from_secs(60), what, join_all(all)).await?;
    let was_cut = answers.iter().any(|answer| matches!(answer, Err(true)));
    Ok((
        answers.into_iter().filter_map(std::result::Result::ok).collect(),
        was_cut,
    ))
}

rule! { "15.11" Must phase 2 [Lock, Try, Lease] Both P D many_unheard_are_each_unknown,
    evidence ["unknown" >= 1, "unheard_releases" >= 2], bug "unknown_in_company", budget 300 s
    "When the replies to many requests are lost at once, none of them guesses its outcome: each is Unknown, \
        or Unavailable if it certainly holds nothing."
    why "A batch has one reply for all its requests. If its loss is reported as `not acquired`, each request \
        may leave a lock that nothing releases."
    check "What does each request of a batch answer when the connection breaks, whether it was sent or not?"
}
async fn many_unheard_are_each_unknown(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask().ttl(cx.long_ttl());
    let (asked, held) = (names(&cx, "asked for")?, names(&cx, "held")?);
    // At once, so that there are as many connections as many requests need.
    let holding = join_all(held.iter().map(|name| f.a_holds(name, &ask))).await;
    let guards = holding.into_iter().collect::<Verdict<Vec<_>>>()?;
    let hold = f.net.begin(Fault::Hold(Direction::ToClient));
    let trying = asked.iter().map(|name| cx.asks(&f.a, name, &ask, None));
    let trying: Vec<_> = trying.collect();
    struck(&cx, &hold, "the replies to A are kept").await?;
    let releasing: Vec<_> = guards.iter().map(|guard| cx.releases(guard)).collect();
    // Until the requests that waited to be batched have been sent.
    cx.sleep(ms(50)).await;
    let away = f.net.begin(Fault::Away);
    drop(hold);
    for (name, trying) in asked.iter().zip(trying) {
        let what = format!("a try for `{name}` whose reply was lost with others");
        match cx.within(patience(&cx), &what, trying).await? {
            Ok(answer) => fail!("{what} answers that it was granted: {}", answer.is_some()),
            Err(e) if e.kind() == ErrorKind::Unknown => cx.evidence("unknown"),
            Err(e) => {
                refused::<()>(Err(e), ErrorKind::Unavailable, &what)?;
                f.b.passes(name, &ask, "after A's answer says that nothing was sent")
                    .await?;
            }
        }
    }
    for releasing in releasing {
        let what = "a release whose reply was lost with others";
        let answer = cx.within(patience(&cx), what, releasing).await?;
        match answer.map_err(|e| e.kind()) {
            Err(ErrorKind::Unknown | ErrorKind::Unavailable) => cx.evidence("unheard_releases"),
            // A session may have ended in the meantime, with all its holds.
            Err(ErrorKind::Lost) if cx.has(Need::Session) => cx.evidence("unheard_releases"),
            answer => fail!("{what} answers {answer:?}"),
        }
    }
    drop(guards);
    away.heal();
    let by = cx.lapsed_by(ask.ttl);
    for name in asked.iter().chain(&held) {
        let when = "after replies to many were lost";
        cx.passes_by(&*f.b, name, &ask, by, when).await?;
    }
    Ok(())
}

rule! { "16.17" Must phase 3 [Lock, Try] Backend H D one_of_many_fails_alone,
    evidence ["failed" >= 4, "granted_beside" >= 24], bug "foreign_fails_company"
    "When a client has many requests in flight at once, one that the store cannot carry out fails alone."
    why "An error ends a whole transaction or script. If one of forty names has an unreadable record, forty \
        jobs stop."
    check "What does one error do to the statement, script or transaction that carries the other requests?"
}
async fn one_of_many_fails_alone(cx: Cx) -> Verdict {
    let (a, mut rng) = (cx.connect().await?, cx.rng());
    let (ask, foreign) = (cx.ask(), format!("no lock {:016x}", rng.bits()));
    for round in 0..4 {
        let names = names(&cx, &format!("round {round}"))?;
        let [first, second] = [rng.index(names.len()), rng.index(names.len())];
        let trying = join_all(names.iter().map(|name| a.try_acquire(name, &ask)));
        let tried = beside_one_that_fails(&cx, &names[first], &foreign, trying).await?;
        let mut held = Vec::new();
        for (n, answer) in tried.into_iter().enumerate() {
            let what = format!("a try for `{}`, beside one that must fail", names[n]);
            if n == first {
                refused(answer, ErrorKind::BackendData, &what)?;
                continue;
            }
            match answer.seen(&what)? {
                Some(guard) => held.push((n, guard)),
                None => fail!("{what}: it was refused although it is free"),
            }
            cx.evidence("granted_beside");
        }
        let releasing = join_all(held.iter().map(|(_, guard)| guard.release()));
        let released = beside_one_that_fails(&cx, &names[second], &foreign, releasing).await?;
        for ((n, _), answer) in held.iter().zip(released) {
            let what = format!("releasing `{}`, beside one that must fail", names[*n]);
            match *n == second {
                true => ensure!(answer.is_err(), "{what}: foreign data was released"),
                false => answer.seen(what)?,
            }
        }
        cx.evidence("failed");
    }
    Ok(())
}

/// While foreign data is stored at that name. It must still be there afterwards, and is removed in any case.
async fn beside_one_that_fails<T>(
    cx: &Cx,
    name: &LockName,
    foreign: &str,
    asking: impl Future<Output = T>,
) -> Verdict<T> {
    cx.spoil(name, foreign).await?;
    let answers = cx
        .within(Duration::from_secs(30), "many requests at once", asking)
        .await;
    let stands = cx.is_spoiled(name, foreign).await;
    cx.mend(name, foreign).await?;
    ensure!(stands?, "foreign data was overwritten beside others");
    answers
}
