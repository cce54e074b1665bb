//! §12 Watch: what a stream of changes costs.

use super::prelude::*;
use super::s12_watch::Comer;
use super::watching::{Grants, Watching, all_believe, beside_and_elsewhere, observer};
use crate::policy::Merging;

rules! {
    slow_consumer_is_told, watching_slows_nobody,
}

/// How many changes may be in flight besides the unread ones.
const ON_THE_WAY: usize = 64;

rule! { "12.07" Must phase 3 [Watch, Wait] Backend A D slow_consumer_is_told,
    evidence ["slow_consumers" >= 2, "changes_not_taken" >= 100], bug "watch_unbounded", budget 120 s
    "A reader that does not read costs a bounded number of changes, no more than the declared backlog. A \
        snapshot then says that changes are missing."
    why "One dashboard that hangs fills the memory of the server that feeds it."
    check "Is the buffer of a stream bounded, and does a snapshot replace what did not fit?"
}
async fn slow_consumer_is_told(cx: Cx) -> Verdict {
    let (a, w) = (cx.connect().await?, cx.connect().await?);
    let (name, grants) = (cx.name("slow"), Grants::default());
    let mut streams = beside_and_elsewhere(&cx, &name, (&*a, &*w), "a slow reader").await?;
    let most = cx.claims().watch_backlog as usize + ON_THE_WAY;
    // Two changes each.
    let cycles = most / 2 + 20;
    let comer = Comer::new(&cx, &a, &name, &grants);
    comer.come_and_go(cycles, Duration::ZERO).await?;
    cx.evidence_by("changes_not_taken", 2 * cycles as u64);
    let asked = cx.now();
    let last = a.acquire(&name, &cx.ask()).await.seen("the last holder")?;
    grants.note(last.id(), asked);
    let (bound, ids) = (cx.prompt(), [last.id()]);
    for stream in &mut streams {
        while !stream.believes(&ids) && stream.items() <= most + 1 {
            if !stream.next(&cx, bound).await? {
                fail!("a slow reader waits for {bound:?} and does not see the current holder");
            }
        }
        let items = stream.items() - 1;
        ensure!(
            items <= most,
            "more than {most} changes waited for a reader that took none of {}; the declared backlog is {}",
            2 * cycles,
            cx.claims().watch_backlog
        );
        // That a snapshot stands for those that are missing.
        stream.is_unbroken(&grants, cx.claims().merging)?;
        ensure!(
            stream.skips > 0 || cx.claims().merging == Merging::Silent,
            "{} of {} changes were reported, and nothing says that the others are missing",
            items,
            2 * cycles
        );
        cx.evidence("slow_consumers");
    }
    // Once it knows what it missed, it goes on like any other stream.
    last.release().await.seen("the last holder releases")?;
    let by = cx.now() + cx.slack();
    all_believe(&cx, &mut streams, by, &[]).await
}

/// How long so many cycles take.
async fn cycles(cx: &Cx, client: &dyn Subject, name: &LockName, n: u32) -> Verdict<Duration> {
    let (from, ask) = (cx.now(), cx.ask());
    for cycle in 0..n {
        let what = format!("cycle {cycle} of an uncontended acquire and release");
        cx.done(cx.claims().op_bound, &what, async {
            client.acquire(name, &ask).await?.release().await
        })
        .await?;
    }
    Ok(from.until(cx.now()))
}

rule! { "12.08" Must phase 2 [Watch, Try, Wait] Backend A D watching_slows_nobody,
    evidence ["watchers" >= 20, "cycles_watched" >= 30], bug "watch_enqueues", budget 120 s
    "Watchers of a name, however many, neither hold it nor stand in its queue, and do not slow its users \
        down."
    why "A dashboard that queues for the lock that it shows will one day hold it."
    check "Does a watcher have an entry among the holders or waiters?"
}
async fn watching_slows_nobody(cx: Cx) -> Verdict {
    const CYCLES: u32 = 30;
    let (a, b, w) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("watched"), cx.ask());
    let alone = cycles(&cx, &*a, &name, CYCLES).await?;
    let over = Arc::new(AtomicBool::new(false));
    let (mut readers, mut idle) = (Vec::new(), Vec::new());
    for n in 0..24 {
        let client = if n % 2 == 0 { &a } else { &w };
        let mut stream = Watching::begin(&cx, &**client, &name, format!("watcher {n}")).await?;
        cx.evidence("watchers");
        if n % 6 > 0 {
            idle.push(stream);
            continue;
        }
        let (task, over) = (cx.clone(), over.clone());
        readers.push(cx.spawn(async move {
            while !over.load(Ordering::SeqCst) {
                stream.next(&task, ms(20)).await?;
            }
            Ok::<(), Failure>(())
        }));
    }
    if cx.has(Need::Inspect) {
        let seen = observer(&*b)?.inspect(&name).await.seen("inspect")?;
        ensure!(
            seen.holders.is_empty() && seen.waiting == 0,
            "with watchers only, {} hold and {} wait",
            seen.holders.len(),
            seen.waiting
        );
    }
    let held = b.is_granted(&name, &ask, "a try, with watchers only").await?;
    let waiting = cx.waits(&a, &name, &ask);
    cx.in_line(&*b, &name, 1).await?;
    held.release().await.seen("B releases")?;
    let bound = cx.claims().wake_p99 + cx.slack();
    let what = "the hand-off to the only waiter, with watchers there";
    let next = cx.within(bound, what, waiting);
    next.await?.seen("A waits")?.release().await.seen("A releases")?;
    let watched = cycles(&cx, &*a, &name, CYCLES).await?;
    cx.evidence_by("cycles_watched", CYCLES.into());
    cx.note(format_args!(
        "{CYCLES} cycles took {alone:?} alone, and {watched:?} with 24 watchers"
    ));
    let most = alone * 10 + cx.slack() * 4;
    ensure!(
        watched <= most,
        "{CYCLES} cycles took {watched:?} with watchers, and {alone:?} without"
    );
    over.store(true, Ordering::SeqCst);
    all(readers).await?;
    drop(idle);
    b.passes(&name, &ask, "a try, after the watchers have gone").await
}
