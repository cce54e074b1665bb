//! The bodies of rules about watching over a network that fails: 12.05, 12.06.

use std::pin::{Pin, pin};

use dlock_core::{Change, Inspection, Result};
use futures::StreamExt;
use futures::future::{Either, select};
use futures::stream::{BoxStream, Peekable};

use super::faulty::{Faulty, faulty, patience, struck};
use super::prelude::*;
use super::watching::{Watching, observer};

rules! {
    cut_is_told, nothing_is_told_that_never_was,
}

type Changes = Peekable<BoxStream<'static, Result<Change>>>;

/// How the connection of a watcher breaks.
#[derive(Clone, Copy, Debug)]
enum Break {
    Cut(Cut),
    /// For a while.
    Away,
    /// With changes on their way.
    InFlight,
}

const BREAKS: [Break; 4] = [
    Break::Cut(Cut::Reset),
    Break::Cut(Cut::Fin),
    Break::Away,
    Break::InFlight,
];

rule! { "12.05" Must phase 2 [Watch, Lock, Wait] Both P T cut_is_told, evidence ["cuts_told" >= 4],
    bug "watch_silent_stall", budget 120 s
    "A stream whose connection breaks ends with an error, or continues with a snapshot that says that \
        changes are missing, or misses none. It is never silent, and a new watch shows the current state."
    why "A stream that died silently looks like a lock that does not change. A follower waits for the end of \
        a leader that is long gone."
    check "Which code notices that the connection of a watch broke, and what does it report to the reader of \
        the stream?"
}
async fn cut_is_told(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let c = cx.connect().await?;
    for how in BREAKS {
        let name = cx.name(format_args!("{how:?}"));
        let first = f.b.acquire(&name, &cx.ask()).await.seen("B acquires")?;
        let (mut changes, now) = watch(&cx, &*f.a, &name).await?;
        shows(&now, &[first.id()], "the first item of a stream")?;
        let before = first.id();
        let after = hand_over(&cx, &f, how, &name, first, &*c, &mut changes).await?;
        let by = cx.now() + patience(&cx);
        let what = format!("a stream whose connection broke ({how:?})");
        match told(&cx, &mut changes, &before, &after.id(), by)
            .await
            .seen(&what)?
        {
            Told::Ended(kind) => {
                cx.note(format_args!("{what} ended with {kind:?}"));
                ensure!(
                    changes.next().await.is_none(),
                    "{what} goes on after its error, which must be its last item"
                );
                let now = watch_again(&cx, &*f.a, &name, by).await?;
                shows(&now, &[after.id()], "a stream that was opened after the cut")?;
            }
            Told::WentOn => cx.note(format_args!("{what} went on")),
        }
        cx.evidence("cuts_told");
        after.release().await.seen("C releases")?;
    }
    Ok(())
}

/// The watcher's connection breaks, and B hands off to C. A later change might wake a dead stream.
async fn hand_over(
    cx: &Cx,
    f: &Faulty,
    how: Break,
    name: &LockName,
    first: Box<dyn Held>,
    c: &dyn Subject,
    changes: &mut Changes,
) -> Verdict<Box<dyn Held>> {
    let hand_over = async {
        first.release().await.seen("B releases")?;
        c.acquire(name, &cx.ask()).await.seen("C acquires")
    };
    match how {
        Break::Cut(how) => {
            f.cut(how)?;
            hand_over.await
        }
        Break::Away => {
            let away = f.net.begin(Fault::Away);
            let held = hand_over.await?;
            cx.sleep(ms(50)).await;
            away.heal();
            Ok(held)
        }
        Break::InFlight => {
            let hold = f.net.begin(Fault::Hold(Direction::ToClient));
            let held = hand_over.await?;
            // A polling stream sends nothing unless it is polled. Its items are kept.
            {
                let striking = pin!(struck(cx, &hold, "the news is on its way"));
                match select(striking, Pin::new(changes).peek()).await {
                    Either::Left((struck, _)) => struck?,
                    Either::Right((_, striking)) => striking.await?,
                }
            }
            f.cut(Cut::Reset)?;
            drop(hold);
            Ok(held)
        }
    }
}

/// How a stream reports that its connection broke.
enum Told {
    /// By an error.
    Ended(ErrorKind),
    /// By a snapshot in place of what is missing, or by nothing because nothing is.
    WentOn,
}

/// Follows a stream until it has reported the cut, or the hand-off from one holder to another.
async fn told(cx: &Cx, changes: &mut Changes, before: &str, after: &str, by: Timestamp) -> Verdict<Told> {
    let from = cx.now();
    let mut unbroken = false;
    loop {
        let limit = cx.now().until(by);
        let change = match cx.timeout(limit, changes.next()).await {
            None => fail!(
                "silent for {:?}: neither an error nor a snapshot, nor the hand-off after the cut",
                from.until(cx.now())
            ),
            Some(None) => fail!("ended without an error"),
            Some(Some(Err(e))) => return Ok(Told::Ended(e.kind())),
            Some(Some(Ok(change))) => change,
        };
        match change {
            Change::Snapshot { now, skipped } => {
                ensure!(skipped, "a snapshot that does not say that changes are missing");
                unbroken = true;
                if now.holders.iter().any(|h| h.id.to_string() == after) {
                    return Ok(Told::WentOn);
                }
            }
            Change::Granted(holder) if holder.id.to_string() == after => {
                ensure!(
                    unbroken,
                    "went on with the grant after the cut, and reported neither the release before it nor \
                        that it is missing"
                );
                return Ok(Told::WentOn);
            }
            Change::Released { id } if id.to_string() == before => unbroken = true,
            // A kind of change that has no part in this.
            _ => {}
        }
    }
}

/// A new stream, and the state that it begins with.
async fn watch(cx: &Cx, client: &dyn Subject, name: &LockName) -> Verdict<(Changes, Inspection)> {
    let bound = cx.claims().op_bound;
    let what = "beginning to watch";
    let watching = cx.within(bound, what, observer(client)?.watch(name));
    let mut changes = watching.await?.seen(what)?.peekable();
    let first = cx.within(bound, "the first item of a stream", changes.next());
    match first.await? {
        Some(Ok(Change::Snapshot { now, skipped: false })) => Ok((changes, now)),
        other => fail!("the first item of a stream is {other:?}, not a snapshot of the current state"),
    }
}

/// A new stream over a connection that broke: asked for until there is one.
async fn watch_again(cx: &Cx, client: &dyn Subject, name: &LockName, by: Timestamp) -> Verdict<Inspection> {
    loop {
        let mut last = match observer(client)?.watch(name).await {
            Err(e) => format!("{e:?}"),
            Ok(mut changes) => match cx.timeout(cx.claims().op_bound, changes.next()).await {
                Some(Some(Ok(Change::Snapshot { now, skipped: false }))) => return Ok(now),
                Some(Some(Err(e))) => format!("{e:?}"),
                other => fail!(
                    "the first item of a stream is {other:?}, not a snapshot of the current \
                                state"
                ),
            },
        };
        if cx.now() >= by {
            last.truncate(300);
            fail!(
                "watching again is not possible {:?} after the cut: {last}",
                patience(cx)
            );
        }
        cx.sleep(ms(5)).await;
    }
}

fn shows(now: &Inspection, ids: &[String], what: &str) -> Verdict {
    let told: Vec<_> = now.holders.iter().map(|h| h.id.to_string()).collect();
    ensure!(
        told == ids,
        "{what} says that the holders are {told:?}, but they are {ids:?}"
    );
    Ok(())
}

rule! { "12.06" Must phase 2 [Watch, Lock, Wait, Try, Renew] Both P D nothing_is_told_that_never_was,
    evidence ["late_messages" >= 2, "snapshots_after_a_cut" >= 2], bug "watch_phantom", budget 120 s
    "No watcher is shown a hold that does not exist: a late sign of life of a former holder is no grant, and \
        a watcher that reconnects sees the current state and nothing older."
    why "If a former leader is reported once more after its end, followers follow it once more. Then two \
        leaders are at work (CURATOR-604)."
    check "Are changes reported from what the store did, or from what it was asked to do? Is state of a \
        broken connection kept for the next one?"
}
async fn nothing_is_told_that_never_was(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let w = cx.connect().await?;
    for taken in [true, false] {
        a_late_sign_of_life(&cx, &f, &*w, taken).await?;
        back_from_a_cut(&cx, &f, &*w, taken).await?;
    }
    Ok(())
}

/// A renewal of A arrives after A's hold has ended. There is no hold, and no watcher may see one.
async fn a_late_sign_of_life(cx: &Cx, f: &Faulty, w: &dyn Subject, taken: bool) -> Verdict {
    let (name, ask) = (cx.name(format_args!("late-{taken}")), cx.ask());
    let mut watcher = Watching::begin(cx, w, &name, "a watcher").await?;
    let held = f.a_holds(&name, &ask).await?;
    let kept = f.net.begin(Fault::DeliverLate);
    let renewing = cx.renews(&held);
    struck(cx, &kept, "A's renewal is delayed on its way").await?;
    let what = "a renewal whose connection broke";
    // Other rules check its answer.
    let _: Result<()> = cx.within(patience(cx), what, renewing).await?;
    // If the answer to this is lost, the client retries automatically.
    let _: Result<()> = cx.within(patience(cx), "A releases", held.release()).await?;
    let by = cx.now() + patience(cx);
    let next = cx.free_by(&*f.b, &name, &ask, by, "after A has released").await?;
    let mut holders = vec![next.id()];
    if !taken {
        next.release().await.seen("B releases")?;
        holders.clear();
    }
    watcher.until_holders(cx, cx.now() + cx.slack(), &holders).await?;
    kept.heal();
    let until = cx.now() + cx.slack().min(ms(200));
    let when = "a late renewal of a former holder has arrived";
    watcher.follow_until(cx, until).await.seen(when)?;
    ensure!(
        watcher.believes(&holders),
        "{when}, and the last item is {:?}; the holders are {holders:?}",
        watcher.told().last()
    );
    cx.evidence("late_messages");
    if taken {
        next.release().await.seen("B releases")?;
    }
    Ok(())
}

/// A watches, and is cut off while the lock changes hands: it must see the current state, nothing older.
async fn back_from_a_cut(cx: &Cx, f: &Faulty, w: &dyn Subject, taken: bool) -> Verdict {
    let (name, ask) = (cx.name(format_args!("back-{taken}")), cx.ask());
    let first = f.b.acquire(&name, &ask).await.seen("B acquires")?;
    let (mut changes, now) = watch(cx, &*f.a, &name).await?;
    shows(&now, &[first.id()], "the first item of a stream")?;
    let before = first.id();
    let away = f.net.begin(Fault::Away);
    first.release().await.seen("B releases")?;
    let next = w.acquire(&name, &ask).await.seen("W acquires")?;
    let mut holders = vec![next.id()];
    if !taken {
        next.release().await.seen("W releases")?;
        holders.clear();
    }
    away.heal();
    let by = cx.now() + patience(cx);
    let now = watch_again(cx, &*f.a, &name, by).await?;
    shows(&now, &holders, "a stream that was opened after a cut")?;
    cx.evidence("snapshots_after_a_cut");
    // The old stream, if it continues, must not show the old holder again.
    let until = cx.now() + cx.slack().min(ms(100));
    while let Some(Some(Ok(change))) = cx.timeout(cx.now().until(until), changes.next()).await {
        let told_of = match change {
            Change::Snapshot { now, .. } => now.holders,
            Change::Granted(holder) => vec![holder],
            _ => Vec::new(),
        };
        ensure!(
            told_of.iter().all(|h| h.id.to_string() != before),
            "after a cut a stream shows {before} as a holder, which had released in the meantime"
        );
    }
    if taken {
        next.release().await.seen("W releases")?;
    }
    Ok(())
}
