//! §12 What an operator sees of a lock, and how its holders are ended by force. The rules are declared in
//! [`s12_watch`](super::s12_watch).

use std::fmt::Debug;

use dlock_core::{Inspection, Mode};

use super::prelude::*;
use super::watching::{Told, Watching, observer};

rules! {
    inspection_is_true, force_ends_every_hold, a_forced_end_is_no_release, each_shared_end_is_told,
}

/// What an operator reads when they look at a name.
struct Look<'a>(&'a Cx, &'a dyn Subject, &'a LockName);

/// Breaks the rule unless what is shown is true.
fn is_shown<T: PartialEq + Debug>(when: &str, what: &str, is: T, shown: T) -> Verdict {
    ensure!(
        is == shown,
        "{when}: the {what} is {is:?}, and {shown:?} is shown"
    );
    Ok(())
}

impl Look<'_> {
    async fn now(&self, when: &str) -> Verdict<Inspection> {
        let seen = observer(self.1)?.inspect(self.2).await;
        seen.seen(format_args!("inspect, {when}"))
    }

    /// Exactly these hold it, in that mode.
    async fn shows(&self, when: &str, held: &[&dyn Held], ask: &Ask, waiting: u32) -> Verdict {
        let seen = self.now(when).await?;
        is_shown(when, "number of holders", held.len(), seen.holders.len())?;
        for guard in held {
            let id = guard.id();
            let Some(shown) = seen.holders.iter().find(|holder| holder.id.to_string() == id) else {
                fail!("{when}: the holder {id} is not shown, but {:?}", seen.holders);
            };
            is_shown(when, "mode of a holder", ask.mode, shown.mode)?;
            is_shown(when, "token of a holder", guard.token(), shown.token)?;
            let most = guard.ttl() + self.0.skew(guard.ttl());
            ensure!(
                !shown.expires_in.is_zero() && shown.expires_in <= most,
                "{when}: a lease of {:?} is shown to end in {:?}",
                guard.ttl(),
                shown.expires_in
            );
            if self.0.has(Need::OwnerLabel) {
                is_shown(when, "label of a holder", &ask.label, &shown.owner)?;
            }
            self.0.evidence("holders_shown");
        }
        is_shown(when, "number of waiters", waiting, seen.waiting)
    }
}

rule! { "12.10" Must phase 2 [Inspect, Lock, Try, Wait] Backend A D inspection_is_true,
    evidence ["holders_shown" >= 9], bug "inspect_shows_one"
    "inspect shows every holder of a name, with its mode, token, label and remaining time, and nothing that \
        is not a holder."
    why "An operator on call ends by force what inspect shows."
    check "Is the answer read in one step, without released holds?"
}
async fn inspection_is_true(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let mut ask = cx.ask();
    if cx.has(Need::OwnerLabel) {
        ask = ask.label("till 7");
    }
    for round in 0..cx.rounds(3, 20) {
        let name = cx.name(format_args!("one-{round}"));
        let look = Look(&cx, &*c, &name);
        look.shows("before the first holder", &[], &ask, 0).await?;
        let held = a.is_granted(&name, &ask, "at first").await?;
        look.shows("while A holds", &[&*held], &ask, 0).await?;
        let waiting = cx.waits(&b, &name, &ask);
        let by = cx.now() + cx.claims().op_bound;
        // A waiter that polls, without a queue entry, is not shown: true, not complete.
        while look.now("while B waits").await?.waiting == 0 && cx.now() < by {
            cx.sleep(ms(2)).await;
        }
        let queued = look.now("while B waits").await?.waiting;
        ensure!(queued <= 1, "one waits, and {queued} are shown");
        look.shows("while A holds and B waits", &[&*held], &ask, queued)
            .await?;
        held.release().await.seen("A releases")?;
        let bound = cx.prompt();
        let next = cx.within(bound, "B's wait, after A's release", waiting).await?;
        let next = next.seen("B waits for A")?;
        look.shows("after the hand-off to B", &[&*next], &ask, 0).await?;
        next.release().await.seen("B releases")?;
        look.shows("after both", &[], &ask, 0).await?;
    }
    if cx.has(Need::Shared) {
        let (name, read) = (cx.name("several"), ask.reader());
        let look = Look(&cx, &*c, &name);
        let first = a.is_granted(&name, &read, "the first reader").await?;
        let second = b.is_granted(&name, &read, "the second reader").await?;
        look.shows("while there are two readers", &[&*first, &*second], &read, 0)
            .await?;
        first.release().await.seen("the first reader releases")?;
        look.shows("while the second reader holds", &[&*second], &read, 0)
            .await?;
        second.release().await.seen("the second reader releases")?;
    }
    Ok(())
}

rule! { "12.11" Must phase 2 [ForceRelease, Lock, Try, Wait] Both A D force_ends_every_hold,
    evidence ["ended" >= 1, "late_releases" >= 1], bug "force_ends_one"
    "force_release ends every hold of the name and answers how many there were: the name is free or the next \
        waiter's, the token grows, and a late release of an ended hold has no effect."
    why "An operator who ends a hung holder must be able to rely on it."
    check "Does it end one entry or all of them, and does it admit the next waiter?"
}
async fn force_ends_every_hold(cx: Cx) -> Verdict {
    let (a, b, operator) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let force = observer(&*operator)?;
    let mut modes = vec![Mode::Exclusive];
    if cx.has(Need::Shared) {
        modes.push(Mode::READER);
    }
    for (n, mode) in modes.into_iter().enumerate() {
        let (name, ask) = (cx.name(n), cx.ask().mode(mode));
        let nobody = force.force_release(&name).await.seen("forcing a free name")?;
        ensure!(
            nobody == 0,
            "the name was free, and force_release says that it ended {nobody} holds"
        );
        let mut held = vec![a.is_granted(&name, &ask, "at first").await?];
        if mode == Mode::READER {
            held.push(b.is_granted(&name, &ask, "a second reader").await?);
        }
        let ended = force.force_release(&name).await.seen("forcing a held name")?;
        ensure!(
            ended as usize == held.len(),
            "{} held it ({mode:?}), and force_release says that it ended {ended}",
            held.len()
        );
        cx.evidence_by("ended", ended.into());
        // Exclusively: nothing of what was ended is left.
        let (next, asked) = (cx.ask(), "after every hold was ended by force");
        let next = operator.is_granted(&name, &next, asked).await?;
        for before in &held {
            next.must_follow(&cx, before.token(), "the grant after a forced end")?;
            let answer = before.release().await;
            is_lost(answer, "the release of a hold that was ended by force")?;
            cx.evidence("late_releases");
        }
        let when = "after the late release of a hold that was ended by force";
        a.is_refused(&name, &cx.ask(), when).await?;
        // The waiter is next.
        let waiting = cx.waits(&b, &name, &cx.ask());
        cx.in_line(&*operator, &name, 1).await?;
        cx.force(&*operator, &name).await?;
        let bound = cx.claims().wake_p99 + cx.slack();
        let doing = "the waiter, after the holder was ended by force";
        let last = cx.within(bound, doing, waiting).await?;
        last.seen("B waits")?.release().await.seen("B releases")?;
        drop(next);
    }
    Ok(())
}

rule! { "12.12" Must phase 2 [Watch, ForceRelease, Lock, Try] Backend A D a_forced_end_is_no_release,
    evidence ["ends" >= 4], bug "forced_told_as_released"
    "A forced end is reported as forced, or replaced by a snapshot. It is never reported as a release by the \
        holder."
    why "A release says that the work is done. After a forced end, a program that goes on from there builds \
        on half of it."
    check "Does the stream know why a hold ended: is the reason recorded where the hold is ended?"
}
async fn a_forced_end_is_no_release(cx: Cx) -> Verdict {
    let (holder, operator) = (cx.connect().await?, cx.connect().await?);
    for (n, client) in [&holder, &operator].into_iter().enumerate() {
        let name = cx.name(n);
        let mut stream = Watching::begin(&cx, &**client, &name, "a watcher").await?;
        for forced in [true, false] {
            let held = holder.is_granted(&name, &cx.ask(), "a watched name").await?;
            let id = held.id();
            let (by, holds) = (cx.now() + cx.claims().op_bound, [id.clone()]);
            stream.until_holders(&cx, by, &holds).await?;
            match forced {
                true => drop(cx.force(&*operator, &name).await?),
                false => held.release().await.seen("the holder releases")?,
            }
            let by = cx.now() + cx.claims().op_bound;
            stream.until_holders(&cx, by, &[]).await?;
            let how = stream.told().iter().find_map(|told| match told {
                Told::Ended(ended, how) if *ended == id => Some(*how),
                _ => None,
            });
            let expected = if forced { "forced" } else { "released" };
            ensure!(
                how.is_none_or(|how| how == expected),
                "a hold that was {expected} is reported as {how:?}"
            );
            cx.evidence("ends");
        }
    }
    Ok(())
}

rule! { "12.13" Must phase 2 [Watch, Shared, Lock, Try] Backend A D each_shared_end_is_told,
    evidence ["ends" >= 3], bug "shared_end_untold"
    "The stream reports the end of each of several shared holds, not only of the last one."
    why "A program that waits for one reader to leave, for example to drain a node, would wait for all of \
        them."
    check "Is an end reported for each lease, or only when the name becomes free?"
}
async fn each_shared_end_is_told(cx: Cx) -> Verdict {
    let (clients, watcher) = (cx.clients(3).await?, cx.connect().await?);
    let (name, ask) = (cx.name("several"), cx.ask().reader());
    let mut stream = Watching::begin(&cx, &*watcher, &name, "a watcher").await?;
    let mut held = Vec::new();
    for client in &clients {
        held.push(client.is_granted(&name, &ask, "one of three readers").await?);
    }
    loop {
        let ids: Vec<_> = held.iter().map(|held| held.id()).collect();
        let by = cx.now() + cx.claims().op_bound;
        stream.until_holders(&cx, by, &ids).await?;
        let Some(next) = held.pop() else { return Ok(()) };
        next.release().await.seen("a reader releases")?;
        cx.evidence("ends");
    }
}
