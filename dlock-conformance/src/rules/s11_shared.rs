//! §11 Readers, writers and permits.

use super::prelude::*;
use crate::subject::Observe;

rules! {
    readers_share, writers_exclude_everybody, last_reader_admits_the_writer, expiry_frees_one_share,
    readers_release_their_own,
}

rule! { "11.01" Must phase 1 [Shared, Try] Both A D readers_share, evidence ["shared_grants" >= 10],
    bug "readers_exclusive"
    "Any number of readers, of one client and of several, hold a name at the same time."
    why "A read lock that excludes readers is a slow exclusive lock. Programs that read twice deadlock."
    check "Is the reader's mode stored and compared, or is the name just taken?"
}
async fn readers_share(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("shared"), cx.ask().reader());
    let mut held = Vec::new();
    for round in 0..4 {
        for (who, client) in [("A", &a), ("B", &b), ("C", &c)] {
            let when = format!("round {round}: {who} reads beside {} readers", held.len());
            held.push(client.is_granted(&name, &ask, when).await?);
            cx.evidence("shared_grants");
        }
    }
    ensure!(
        held.iter().all(|h| h.is_valid()),
        "a reader is not valid beside the others"
    );
    a.is_refused(&name, &cx.ask(), "a writer, while readers hold")
        .await?;
    for (i, reader) in held.iter().enumerate() {
        reader.release().await.seen(format_args!("reader {i} releases"))?;
    }
    Ok(())
}

rule! { "11.02" Must phase 1 [Shared, Wait] Both A X writers_exclude_everybody,
    evidence ["reader_grants" >= 10, "writer_grants" >= 5], bug "reader_during_write" stochastic
    "A writer excludes readers and writers, and readers exclude writers."
    why "A reader beside a writer sees half of a change. A read-write lock exists to prevent that."
    check "Is the check for a writer and the entry of the reader one step in the store?"
}
async fn writers_exclude_everybody(cx: Cx) -> Verdict {
    let (rounds, clients) = (cx.rounds(12, 120), cx.clients(6).await?);
    let tasks = cx.at_work(clients, &cx.name("rw"), move |worker, name| async move {
        let (cx, lane, mut rng, ..) = worker;
        for _ in 0..rounds {
            let writes = rng.one_in(3);
            let ask = if writes { cx.ask() } else { cx.ask().reader() };
            let held = lane.acquire(&name, &ask).await.seen("acquiring")?;
            cx.evidence(if writes { "writer_grants" } else { "reader_grants" });
            cx.sleep(rng.duration(Duration::ZERO, ms(4))).await;
            if rng.one_in(4) && cx.has(Need::DropFrees) {
                lane.drop_guard(held);
            } else {
                lane.release(&held).await.seen("releasing")?;
            }
        }
        Ok::<(), Failure>(())
    });
    all(tasks).await?;
    cx.check_history()
}

async fn readers(cx: &Cx, name: &LockName, clients: &[&dyn Subject]) -> Verdict<Vec<Box<dyn Held>>> {
    let mut held = Vec::new();
    for client in clients {
        let when = format!("reader {}", held.len());
        held.push(client.is_granted(name, &cx.ask().reader(), when).await?);
    }
    Ok(held)
}

rule! { "11.03" Must phase 1 [Shared, Try, Wait] Both A D last_reader_admits_the_writer,
    evidence ["refusals_with_readers_left" >= 6, "writer_grants" >= 2], bug "writer_after_first_reader"
    "Only the release of the last reader admits a writer."
    why "If the count of readers is only a flag, the first reader that leaves lets the writer in."
    check "Does a reader's release remove its own entry, or the record of all readers?"
}
async fn last_reader_admits_the_writer(cx: Cx) -> Verdict {
    let (a, b, w) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let write = cx.ask();
    for order in [[0, 1, 2, 3], [3, 1, 0, 2]] {
        let name = cx.name(format!("tried-{order:?}"));
        let held = readers(&cx, &name, &[&*a, &*b, &*a, &*b]).await?;
        for (gone, i) in order.into_iter().enumerate() {
            let when = format!("a writer, with {} of 4 readers left", 4 - gone);
            w.is_refused(&name, &write, when).await?;
            cx.evidence("refusals_with_readers_left");
            held[i].released(format!("reader {i} releases")).await?;
        }
        w.passes(&name, &write, "a writer, after the last reader").await?;
        cx.evidence("writer_grants");
    }
    // The same for a writer that waits.
    let name = cx.name("waited");
    let held = readers(&cx, &name, &[&*a, &*b]).await?;
    let mut waits = cx.waits(&w, &name, &write);
    cx.sleep(ms(20)).await;
    held[0].release().await.seen("the first reader releases")?;
    ensure!(
        cx.timeout(ms(50), &mut waits).await.is_none(),
        "the waiting writer was admitted when the first of two readers left"
    );
    held[1].release().await.seen("the last reader releases")?;
    let bound = cx.claims().wake_p99 + cx.slack();
    let what = "admitting the waiting writer after the last reader";
    cx.evidence("writer_grants");
    cx.served(bound, what, waits).await
}

rule! { "11.04" Must phase 1 [Shared, Lease, PerGrantTtl, Try] Both A T expiry_frees_one_share,
    evidence ["refusals_after_expiry" >= 1], bug "reader_expiry_frees_all"
    "When one reader's lease lapses, only its own share is freed: the other readers keep theirs, and writers \
        stay out."
    why "If all readers share one ttl, every hold ends when the shortest lease ends."
    check "Does every reader's lease have its own expiry in the store?"
}
/// Lapsing first, or last: a store with one expiry for all readers is wrong in one of the two.
async fn expiry_frees_one_share(cx: Cx) -> Verdict {
    for lapsing_first in [false, true] {
        one_share_lapses(&cx, lapsing_first).await?;
    }
    Ok(())
}

async fn one_share_lapses(cx: &Cx, lapsing_first: bool) -> Verdict {
    let (a, b, w) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let name = cx.name(if lapsing_first { "first" } else { "last" });
    let short = cx.ask().ttl(cx.short_ttl()).reader();
    let long = cx.ask().reader();
    let before = if lapsing_first {
        None
    } else {
        Some(b.is_granted(&name, &long, "the reader that stays").await?)
    };
    let lapsing = a.is_granted(&name, &short, "the reader that leaves").await?;
    let granted = cx.now();
    let staying = match before {
        Some(staying) => staying,
        None => b.is_granted(&name, &long, "the reader that stays").await?,
    };
    // It renews nothing and releases nothing. If it cannot be stopped, its guard is left alone.
    a.vanish();
    // Once without a renewal, which would repair what the second reader's lease did to the first one's.
    if lapsing_first && cx.has(Need::Renew) {
        // A client that renews every entry keeps a dead reader alive.
        cx.sleep_until(granted + short.ttl / 2).await;
        let renewed = staying.renew().await;
        renewed.seen("the reader that stays renews beside the other one")?;
    }
    cx.sleep_until(granted + short.ttl + cx.skew(short.ttl) + cx.slack())
        .await;
    for _ in 0..3 {
        let when = "a writer, after the expiry of one of two readers";
        w.is_refused(&name, &cx.ask(), when).await?;
        cx.evidence("refusals_after_expiry");
        cx.sleep(ms(10)).await;
    }
    lapsing.must_be_over("the reader that left is valid after the end of its lease")?;
    staying.must_be_valid("the reader that stays is lost although its lease runs on")?;
    if cx.has(Need::Renew) {
        let renewed = staying.renew().await;
        renewed.seen("the reader that stays renews after the other one's expiry")?;
    }
    staying.release().await.seen("the reader that stays releases")?;
    let then = "a writer, after the expiry of one reader and the release of the other";
    w.passes(&name, &cx.ask(), then).await
}

rule! { "11.05" Must phase 1 [Shared, Try] Both A D readers_release_their_own, evidence ["own_releases" >= 3],
    bug "reader_releases_other"
    "A reader's release ends only its own grant, however many grants the same client has. A second or a late \
        release ends no other hold."
    why "A release that decrements a count, or removes any entry of the client, lets a writer in beside a \
        reader."
    check "Does the release name the grant, or only the client or the name?"
}
async fn readers_release_their_own(cx: Cx) -> Verdict {
    let (a, b, w) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let name = cx.name("own");
    let held = readers(&cx, &name, &[&*a, &*a, &*b, &*b]).await?;
    // The youngest first: a release that ends another entry ends an older one.
    for (i, reader) in held.iter().enumerate().rev() {
        let released = reader.release().await;
        released.seen(format_args!("reader {i} releases its own grant"))?;
        cx.evidence("own_releases");
        let answer = reader.release().await;
        is_lost(answer, format_args!("the second release of reader {i}"))?;
        if i == 0 {
            break;
        }
        w.is_refused(&name, &cx.ask(), format!("a writer, with {i} readers left"))
            .await?;
        if cx.has(Need::Renew) {
            let renewed = held[0].renew().await;
            renewed.seen(format_args!("reader 0 renews after the release of reader {i}"))?;
        }
    }
    w.passes(&name, &cx.ask(), "a writer, after every reader").await?;
    match b.observe() {
        Some(operator) if cx.has(Need::ForceRelease) => late_release(&cx, &*a, &*w, operator).await,
        _ => Ok(()),
    }
}

/// A reader whose share an operator has ended does not know it, so that its release does reach the store.
async fn late_release(cx: &Cx, a: &dyn Subject, w: &dyn Subject, operator: &dyn Observe) -> Verdict {
    let name = cx.name("late");
    let reader = a.is_granted(&name, &cx.ask().reader(), "a reader").await?;
    let ended = operator.force_release(&name).await;
    ended.seen("an operator ends the reader's share")?;
    let when = "a writer, after an operator ended the reader's share";
    let writer = w.is_granted(&name, &cx.ask(), when).await?;
    let answer = reader.release().await;
    let when = "after a reader's late release, while a writer holds";
    a.is_refused(&name, &cx.ask(), when).await?;
    is_lost(answer, "the release of a share that an operator had ended")?;
    writer.release().await.seen("the writer releases")
}
