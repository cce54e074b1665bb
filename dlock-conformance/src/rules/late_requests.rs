//! The bodies of rules about requests that are carried out without an answer, sent again, or delivered late:
//! 4.04, 10.05, 15.07, 15.09, 15.10, 15.12.

use dlock_core::spi::{Abandoned, Acquire, Attempt, Grant};

use super::faulty::{Faulty, SLOW, faulty, kept, patience, struck};
use super::prelude::*;
use super::probes::key_of_nobody;
use crate::claims::Engine;

rules! {
    retried_release_frees_nobody_else, retry_is_one_level, what_is_late_is_refused,
    late_acquire_leaves_nothing, copy_of_a_released_acquire_is_refused, requests_go_by_their_key,
}

type Released = dlock_core::Result<()>;

rule! { "4.04" Must phase 2 [Lock, Try] Both P D retried_release_frees_nobody_else,
    evidence ["lost_replies" >= 2, "retries" >= 4, "successors_kept" >= 2], bug "release_retry_blind_delete",
    budget 120 s
    "A release whose reply was lost can be retried, by the user and by the client itself: it answers Ok, \
        Lost or Unknown, and never frees the lock of a later holder."
    why "The second copy of a release arrives when there is another holder. A release that does not check \
        whose lock it ends frees that one."
    check "Does the retry of a release name the grant, and what happens if that grant no longer exists?"
}
async fn retried_release_frees_nobody_else(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let c = cx.connect().await?;
    for how in [Cut::Reset, Cut::Fin] {
        let mut tries = 0;
        while !release_after_a_cut(&cx, &f, &*c, how, tries).await? {
            tries += 1;
            if tries == 5 {
                inconclusive!("A gave up its connection each time before it was broken ({how:?})");
            }
            // Not at the same phase of A's periodic messages.
            cx.sleep(ms(130)).await;
        }
    }
    release_after_a_relock(&cx, &f, &*c).await
}

/// `false`: A sent another request then. Its reply was kept, and A gave up the connection of the release.
async fn release_after_a_cut(cx: &Cx, f: &Faulty, c: &dyn Subject, how: Cut, tries: u32) -> Verdict<bool> {
    let (name, ask) = (cx.name(format_args!("{how:?}-{tries}")), cx.ask());
    let held = f.a_holds(&name, &ask).await?;
    let slow = f.net.begin(Fault::Delay(Direction::ToClient, SLOW));
    let releasing = cx.releases(&held);
    let (hold, next) = kept(cx, f, &slow, (&name, &ask), true).await?;
    let was_cut = !releasing.is_done() && f.net.cut(how) > 0;
    drop((hold, slow));
    let what = "a release whose reply was lost";
    is_an_answer(what, &cx.within(patience(cx), what, releasing).await?)?;
    if was_cut {
        cx.evidence("lost_replies");
        retries_spare_the_successor(cx, &*held, c, &name, "B").await?;
    }
    if let Some(next) = next {
        let released = next.release().await;
        released.seen("B releases what it was granted after A's release")?;
    }
    if was_cut {
        cx.evidence("successors_kept");
    }
    Ok(was_cut)
}

/// The successor is another task: a retry that releases by client, session or connection ends its hold.
async fn release_after_a_relock(cx: &Cx, f: &Faulty, c: &dyn Subject) -> Verdict {
    let (name, ask) = (cx.name("relocked"), cx.ask());
    let held = f.a_holds(&name, &ask).await?;
    let hold = f.net.begin(Fault::Hold(Direction::ToClient));
    let releasing = cx.releases(&held);
    struck(cx, &hold, "the reply to A's release is kept").await?;
    // The client retries less and less often: A has time to take the lock before the next retry.
    let away = f.net.begin(Fault::Away);
    drop(hold);
    cx.evidence("lost_replies");
    let what = "a release whose reply was lost";
    is_an_answer(what, &cx.within(patience(cx), what, releasing).await?)?;
    cx.sleep(ms(300)).await;
    away.heal();
    let by = cx.now() + patience(cx);
    let when = "after A's release was carried out";
    let next = cx.free_by(&*f.a, &name, &ask, by, when).await?;
    retries_spare_the_successor(cx, &*held, c, &name, "A itself, by another task,").await?;
    let released = next.release().await;
    released.seen("A releases what it was granted after its release")?;
    cx.evidence("successors_kept");
    Ok(())
}

async fn retries_spare_the_successor(
    cx: &Cx,
    held: &dyn Held,
    c: &dyn Subject,
    name: &LockName,
    who: &str,
) -> Verdict {
    for _ in 0..2 {
        let what = "a release that is retried after its reply was lost";
        is_an_answer(what, &cx.within(patience(cx), what, held.release()).await?)?;
        cx.evidence("retries");
        c.is_refused(name, &cx.ask(), format!("{who} holds, and after {what}"))
            .await?;
    }
    // And by what the client retries automatically.
    cx.sleep(cx.slack()).await;
    let when = format!("{who} holds, and some time after a release was retried");
    c.is_refused(name, &cx.ask(), when).await
}

fn is_an_answer(what: &str, answer: &Released) -> Verdict {
    match answer {
        Ok(()) => Ok(()),
        Err(e) if matches!(e.kind(), ErrorKind::Lost | ErrorKind::Unknown) => Ok(()),
        Err(e) => fail!("{what} answers {:?}, not Ok, Lost or Unknown: {e:?}", e.kind()),
    }
}

rule! { "10.05" Must phase 2 [Reentrant, Try, Wait, OutlivesConnection] Both P D retry_is_one_level,
    evidence ["lost_replies" >= 1, "freed" >= 1], bug "retry_double_count", budget 120 s
    "An acquire that is retried after a lost reply is one level, not two: after as many releases as acquires \
        the lock is free."
    why "No guard releases the extra level. The lock stays with an owner that believes to have released it."
    check "Is the count increased once for a request, or once for each copy of it that arrives?"
}
async fn retry_is_one_level(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let (plain, ask) = (cx.ask(), cx.ask().reentrant(1));
    for how in [Cut::Reset, Cut::Fin] {
        let name = cx.name(format_args!("{how:?}"));
        let (acquiring, hold) = f.a_is_granted_unheard(&cx, &name, &ask, None).await?;
        f.cut(how)?;
        drop(hold);
        cx.evidence("lost_replies");
        let what = "the outermost acquire, with a lost reply";
        let Some(outer) = if_known(cx.within(patience(&cx), what, acquiring).await?, what)? else {
            continue;
        };
        // If a level is taken at the store, its reply is lost too; if only in the client, nothing is.
        let hold = f.net.begin(Fault::Hold(Direction::ToClient));
        let entering = cx.waits(&f.a, &name, &ask);
        cx.sleep(ms(20)).await;
        f.cut(how)?;
        drop(hold);
        let what = "the second level, with a connection that broke";
        let inner = if_known(cx.within(patience(&cx), what, entering).await?, what)?;
        if let Some(inner) = inner {
            inner.release().await.seen("releasing the second level")?;
            outer.must_be_valid("the outermost guard is not valid after the second level was released")?;
            f.b.is_refused(&name, &plain, "one of two levels is released")
                .await?;
            cx.evidence("levels");
        }
        let by = match if_known(outer.release().await, "releasing the outermost level")? {
            Some(()) => cx.now() + cx.slack(),
            // It was sent on the broken connection, and the client retries it automatically.
            None => cx.now() + patience(&cx),
        };
        let when = "after as many releases as acquires, one of which was sent twice";
        cx.passes_by(&*f.b, &name, &plain, by, when).await?;
        cx.evidence("freed");
    }
    Ok(())
}

/// What is late.
#[derive(Clone, Copy, Debug)]
enum Late {
    Release,
    Renewal,
}

rule! { "15.07" Must phase 2 [Lock, Try, Renew] Both P D what_is_late_is_refused,
    evidence ["late_releases" >= 2, "late_renewals" >= 2], bug "delayed_release_applies", budget 120 s
    "A release or renewal of a former holder that arrives after the next grant is refused: it neither frees \
        nor extends the new grant, nor restores the former one."
    why "A packet that was delayed for a minute carries a release that is out of date. It must not free the \
        next holder's lock."
    check "Does every release and renewal name its grant, and does the store compare it?"
}
async fn what_is_late_is_refused(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let c = cx.connect().await?;
    // A library with its own engine may send a release once and leave the rest to the ttl.
    let ask = match cx.claims().engine {
        Engine::Inherited => cx.ask(),
        Engine::Own => cx.ask().ttl(cx.steady_ttl()),
    };
    for late in [Late::Release, Late::Renewal] {
        for taken in [true, false] {
            let name = cx.name(format_args!("{late:?}-{taken}"));
            let held = f.a_holds(&name, &ask).await?;
            let kept = f.net.begin(Fault::DeliverLate);
            let saying = match late {
                Late::Release => cx.releases(&held),
                Late::Renewal => cx.renews(&held),
            };
            struck(&cx, &kept, format!("A's {late:?} is delayed on its way")).await?;
            let what = format!("A's {late:?}, whose connection broke");
            // Other rules check what it answers.
            let _: Released = cx.within(patience(&cx), &what, saying).await?;
            let what = "A's release after that, over a new connection";
            is_an_answer(what, &cx.within(patience(&cx), what, held.release()).await?)?;
            let by = cx.now() + patience(&cx);
            let next = cx.free_by(&*f.b, &name, &ask, by, "after A has released").await?;
            if !taken {
                next.release().await.seen("B releases before that")?;
            }
            kept.heal();
            cx.sleep(settling(&cx)).await;
            match late {
                Late::Release => cx.evidence("late_releases"),
                Late::Renewal => cx.evidence("late_renewals"),
            }
            if taken {
                let when = format!("B holds, and a late {late:?} of the holder before it has arrived");
                c.is_refused(&name, &ask, &when).await?;
                next.renew().await.seen(format_args!("{when}: B renews"))?;
                next.release().await.seen(format_args!("{when}: B releases"))?;
            }
            let when = format!("the name is free, and a late {late:?} has arrived");
            c.passes(&name, &ask, when).await?;
        }
    }
    Ok(())
}

/// Time for a message in flight, and for its reply.
fn settling(cx: &Cx) -> Duration {
    cx.slack().min(ms(100))
}

rule! { "15.09" Must phase 2 [Lock, Try, Wait, LateTakesNothing] Both P D late_acquire_leaves_nothing,
    evidence ["late_acquires" >= 4], bug "no_tombstone", budget 120 s
    "An acquire or try that is delivered after it was abandoned leaves nothing: no hold, and no queue entry."
    why "A withdrawn request that arrives late is granted without an owner, and the lock is unavailable for \
        a ttl."
    check "Does withdrawing a request that the store has not seen yet leave a record that refuses it when it \
        arrives?"
}
async fn late_acquire_leaves_nothing(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let ask = cx.ask();
    for tries in [false, true] {
        for held_then in [true, false] {
            let name = cx.name(format_args!("{tries}-{held_then}"));
            let before = f.b.acquire(&name, &ask).await.seen("B acquires a free name")?;
            given_up(&cx, &f, &name, &ask, (tries, held_then), before).await?;
        }
    }
    Ok(())
}

/// A abandons its request while B holds. Then the request is delivered, while B still holds or afterwards.
async fn given_up(
    cx: &Cx,
    f: &Faulty,
    name: &LockName,
    ask: &Ask,
    (tries, held_then): (bool, bool),
    before: Box<dyn Held>,
) -> Verdict {
    let kept = f.net.begin(Fault::DeliverLate);
    let asking = cx.asks(&f.a, name, ask, (!tries).then_some(ms(150)));
    struck(cx, &kept, "A's request is delayed on its way").await?;
    let what = if tries { "a try" } else { "an acquire" };
    match cx.within(patience(cx), what, asking).await? {
        Ok(Some(_)) => fail!("{what} was granted while B holds"),
        Ok(None) => {}
        Err(e) if matches!(e.kind(), ErrorKind::Timeout | ErrorKind::Unknown) => {}
        Err(e) => return Err(e).seen(what),
    }
    // Requests that are withdrawn in the background.
    cx.sleep(cx.slack()).await;
    if held_then {
        kept.heal();
        cx.sleep(settling(cx)).await;
        before.release().await.seen("B releases")?;
    } else {
        before.release().await.seen("B releases")?;
        kept.heal();
        cx.sleep(settling(cx)).await;
    }
    cx.evidence("late_acquires");
    let when = format!("the name is free, and the abandoned request of {what} has arrived");
    f.b.passes(name, ask, when).await
}

/// How much later than the release the copy arrives.
const MUCH_LATER: Duration = Duration::from_secs(3);

rule! { "15.10" Must phase 2 [Lock, Try, Wait, LateTakesNothing] Both P D
        copy_of_a_released_acquire_is_refused,
    evidence ["late_copies" >= 2], bug "released_is_forgotten", budget 120 s
    "A copy of an acquire that arrives seconds after its lease was released is refused: no hold, and no \
        queue entry."
    why "The connection broke, the driver sent the request again, the work was done and the lock released. \
        Then the first copy arrives, and the lock is held without an owner for a whole ttl."
    check "Does the store remember a request that was sent more than once after its release, for as long as \
        a copy may be in flight?"
}
async fn copy_of_a_released_acquire_is_refused(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    for round in 0..cx.rounds(2, 6) {
        let (name, ask) = (cx.name(round), cx.ask());
        let kept = f.net.begin(Fault::DeliverLate);
        let asking = cx.waits(&f.a, &name, &ask);
        struck(&cx, &kept, "A's request is delayed on its way").await?;
        let what = "an acquire whose first copy is delayed on its way";
        // If it is unknown, it was abandoned, and is withdrawn in the background.
        if let Some(held) = if_known(cx.within(patience(&cx), what, asking).await?, what)? {
            cx.evidence("released_before");
            held.release().await.seen("A releases")?;
        }
        cx.sleep(MUCH_LATER).await;
        kept.heal();
        cx.sleep(settling(&cx)).await;
        cx.evidence("late_copies");
        let when = "a copy of an acquire whose lease was released long ago has arrived";
        f.b.passes(&name, &ask, when).await?;
    }
    Ok(())
}

rule! { "15.12" Must phase 1 [Lock, Try, LateTakesNothing, Requests] Backend A D requests_go_by_their_key,
    evidence ["repeated" >= 2, "abandoned" >= 4], bug "tombstone_unread"
    "A request is known by its key: repeated, it gets the same grant; abandoned, it is undone, and refused \
        if it arrives later."
    why "A network repeats and delays requests. Where no proxy can be put in front of the store, no other \
        rule does."
    check "Does an attempt look for its key among the grants, and among the abandoned keys, before it grants?"
}
async fn requests_go_by_their_key(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let no_backend = || Failure::Kit("a subject with the claim `Requests` has no backend".to_owned());
    let store = a.backend().ok_or_else(no_backend)?;
    let ask = cx.ask();
    for (round, name) in cx.names(4, 40).enumerate() {
        let key = key_of_nobody(&cx, &name);
        let request = Acquire::new(key.clone(), ask.ttl);
        let is_late = round % 2 == 1;
        if !is_late {
            let first = granted(store.attempt(&request).await, "an attempt at a free name")?;
            let again = granted(store.attempt(&request).await, "the same attempt, repeated")?;
            // Of a quorum, a member that answered later may have the larger one.
            ensure!(
                again.token == first.token || cx.has(Need::Quorum) && again.token > first.token,
                "the same attempt, repeated, got the token {:?} in place of {:?}",
                again.token,
                first.token
            );
            cx.evidence("repeated");
        }
        let what = match is_late {
            true => "the abandon of a request that has not arrived",
            false => "the abandon of a granted request",
        };
        match (is_late, store.abandon(&[key]).await.pop()) {
            (false, Some(Ok(Abandoned::WasGranted(_)))) | (true, Some(Ok(Abandoned::Nothing))) => {}
            (_, answer) => fail!("{what} answers {answer:?}"),
        }
        let arriving = format!("an attempt that arrives after {what}");
        refused(store.attempt(&request).await, ErrorKind::Lost, arriving)?;
        cx.evidence("abandoned");
        b.passes(&name, &ask, format!("after {what} and its late arrival"))
            .await?;
    }
    Ok(())
}

fn granted(answer: dlock_core::Result<Attempt>, what: &str) -> Verdict<Grant> {
    match answer.seen(what)? {
        Attempt::Granted(grant) => Ok(grant),
        other => fail!("{what} answers {other:?}"),
    }
}
