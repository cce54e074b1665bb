//! §11 Readers, writers and permits: which waiters go first.

use super::prelude::*;
use crate::sweep::{Cut, Sweep, Waking};

rules! {
    write_beside_own_read_ends, nobody_starves, new_readers_wait_behind_a_writer,
    withdrawn_writer_blocks_nobody, mixed_queue_drains,
}

/// For how long one of a storm holds at most.
const GUST: Duration = ms(12);
/// How many tasks a storm is made of.
const STORMERS: u32 = 6;

rule! { "11.06" Should phase 2 [Shared, RwOrder, Wait] Backend A T nobody_starves,
    evidence ["served" >= 2, "storm_grants" >= 20], bug "writer_starved", budget 120 s
    "Under the declared policy a writer is granted while readers come and go without a gap, and a reader \
        while writers do."
    why "A configuration that is read all the time is never written again, and no error shows why."
    check "Do waiting readers overtake a waiting writer when another reader leaves?"
}
async fn nobody_starves(cx: Cx) -> Verdict {
    let policy = cx.claims().rw;
    let (read, write) = (cx.ask().reader(), cx.ask());
    for round in 0..cx.rounds(2, 20) {
        if policy.serves_writers() {
            let name = cx.name(format_args!("readers-{round}"));
            storm(&cx, &name, &read, ("a writer", &write)).await?;
        }
        if policy.serves_readers() {
            let name = cx.name(format_args!("writers-{round}"));
            storm(&cx, &name, &write, ("a reader", &read)).await?;
        }
    }
    Ok(())
}

/// A client acquires while others come and go without a gap.
async fn storm(cx: &Cx, name: &LockName, gust: &Ask, (who, ask): (&str, &Ask)) -> Verdict {
    let (over, inside) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let shared = (name.clone(), gust.clone(), over.clone(), inside.clone());
    let clients = cx.clients(STORMERS as usize).await?;
    let tasks = cx.at_work(clients, &shared, |worker, shared| async move {
        let (cx, lane, mut rng, number) = worker;
        let (client, (name, gust, over, inside)) = (lane.client(), shared);
        cx.sleep(GUST / STORMERS * number as u32).await;
        while !over.load(Ordering::Relaxed) {
            let held = client.acquire(&name, &gust).await.seen("one of the storm")?;
            inside.fetch_add(1, Ordering::SeqCst);
            cx.evidence("storm_grants");
            // Not in step: while one of them goes others stay.
            cx.sleep(rng.duration(GUST / 3, GUST)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            held.release().await.seen("one of the storm releases")?;
        }
        Ok::<(), Failure>(())
    });
    let client = cx.connect().await?;
    cx.sleep(GUST * 4).await;
    // The holders, and all of the others if they came before.
    let bound = (GUST + cx.claims().wake_p99) * STORMERS + cx.slack();
    let answer = client.acquire_timeout(name, ask, bound).await;
    let beside = inside.load(Ordering::SeqCst);
    over.store(true, Ordering::Relaxed);
    match answer {
        Ok(_) if beside > 0 => fail!("{who} was admitted beside {beside} of the others"),
        Ok(held) => held.release().await.seen(format_args!("{who} releases"))?,
        Err(e) if e.kind() == ErrorKind::Timeout => fail!(
            "{who} was not admitted within {bound:?}, while {STORMERS} others came and went, each for \
                {GUST:?} at most"
        ),
        Err(e) => fail!("{who}: {e:?}"),
    }
    cx.evidence("served");
    all(tasks).await?;
    Ok(())
}

rule! { "11.07" Must phase 2 [Shared, WriterPreference, Try, Wait] Backend A D
        new_readers_wait_behind_a_writer,
    evidence ["readers_held_back" >= 6, "writer_grants" >= 3], bug "reader_barges"
    "Where readers may not overtake writers, a reader that arrives while a writer waits is not granted \
        before it, neither by try nor by wait."
    why "If a new reader may always join the others, every writer starves."
    check "Does a new reader check the queue, or only the holders?"
}
async fn new_readers_wait_behind_a_writer(cx: Cx) -> Verdict {
    let (a, w, b) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (read, write) = (cx.ask().reader(), cx.ask());
    let bound = cx.claims().wake_p99 + cx.slack();
    for (round, name) in cx.names(3, 30).enumerate() {
        let reading = a.is_granted(&name, &read, "the first reader").await?;
        let mut writer = cx.waits(&w, &name, &write);
        cx.in_line(&*b, &name, 1).await?;
        for (who, client) in [
            ("another client's reader", &b),
            ("a second reader of the first", &a),
        ] {
            let when = format!("round {round}: {who}, although a writer waits");
            client.is_refused(&name, &read, when).await?;
            cx.evidence("readers_held_back");
        }
        let mut reader = cx.waits(&b, &name, &read);
        if cx.timeout(ms(30), &mut reader).await.is_some() {
            fail!("round {round}: a waiting reader was admitted although a writer waits before it");
        }
        cx.evidence("readers_held_back");
        reading.release().await.seen("the first reader releases")?;
        let what = "admitting the waiting writer, after the reader before it";
        let writing = cx.done(bound, what, &mut writer).await?;
        cx.evidence("writer_grants");
        if cx.timeout(ms(5), &mut reader).await.is_some() {
            fail!("round {round}: the reader behind the writer was admitted beside it");
        }
        writing.release().await.seen("the writer releases")?;
        let what = "admitting the waiting reader, after the writer before it";
        cx.served(bound, what, reader).await?;
    }
    Ok(())
}

/// After that many polls an acquire that neither completed nor timed out is given up.
const MOST_POLLS: usize = 200;

rule! { "11.08" Must phase 2 [Shared, Try, Wait] Both A Z withdrawn_writer_blocks_nobody,
    evidence ["sweeps_completed" >= 3, "readers_let_in" >= 6], bug "cancelled_writer_blocks", budget 120 s
    "A waiting writer that is dropped at any poll, or times out, stops blocking readers within the claimed \
        bound."
    why "A writer that gave up but still counts as waiting blocks every reader until its queue entry lapses."
    check "Is a waiting writer marked by its queue entry, or by a flag that only its grant clears?"
}
async fn withdrawn_writer_blocks_nobody(cx: Cx) -> Verdict {
    let (a, w, b) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (read, write) = (cx.ask().reader(), cx.ask());
    let bound = cx.claims().cancel_prompt + cx.slack();
    let patience = ms(40);
    for waking in Waking::ALL {
        let mut sweep = Sweep::new(waking, MOST_POLLS);
        for k in 0.. {
            let name = cx.name(format_args!("{waking:?}-{k}"));
            let reading = a.is_granted(&name, &read, "the first reader").await?;
            let Some(cut) = sweep.next(w.acquire_timeout(&name, &write, patience)).await else {
                break;
            };
            let how = match cut {
                Cut::Dropped => format!("{waking}, was dropped after poll {k}"),
                Cut::Completed(Err(e)) if e.kind() == ErrorKind::Timeout => "timed out".to_owned(),
                Cut::Completed(Err(e)) => fail!("a writer behind a reader: {e:?}"),
                Cut::Completed(Ok(_)) => fail!("a writer was admitted beside a reader"),
            };
            let by = cx.now() + bound;
            let when = format!("a reader beside a reader, after the waiting writer {how}");
            let second = cx.free_by(&*b, &name, &read, by, &when).await?;
            cx.evidence("readers_let_in");
            reading.must_be_valid(format_args!("{when}: the first reader is not valid any more"))?;
            second.release().await.seen("the second reader releases")?;
            reading.release().await.seen("the first reader releases")?;
        }
        if !sweep.is_complete() {
            inconclusive!("{waking}: neither granted nor timed out after {MOST_POLLS} polls");
        }
        cx.evidence("sweeps_completed");
    }
    // A writer that has been queued for long, with a reader behind it.
    for round in 0..cx.rounds(2, 20) {
        let name = cx.name(format_args!("in-line-{round}"));
        let reading = a.is_granted(&name, &read, "the first reader").await?;
        let writer = cx.waits(&w, &name, &write);
        cx.in_line(&*b, &name, 1).await?;
        ensure!(
            writer.cancel().await.is_none(),
            "a writer was admitted beside a reader"
        );
        let by = cx.now() + bound;
        let when = "a reader beside a reader, after the queued writer was cancelled";
        let second = cx.free_by(&*b, &name, &read, by, when).await?;
        cx.evidence("readers_let_in");
        second.release().await.seen("the second reader releases")?;
        reading.release().await.seen("the first reader releases")?;
    }
    Ok(())
}

rule! { "11.09" Must phase 2 [Shared, Wait] Both A D mixed_queue_drains, evidence ["granted" >= 12],
    bug "rw_cross_wait"
    "A queue of readers and writers in any order behind a writer drains completely, and each of them is \
        granted once."
    why "If a reader waits for the writer behind it, and that writer waits for the reader, they are \
        deadlocked (kazoo 649, etcd 6408)."
    check "Does any waiter wait for an entry behind its own?"
}
async fn mixed_queue_drains(cx: Cx) -> Verdict {
    const HOLD: Duration = ms(2);
    let clients = [cx.connect().await?, cx.connect().await?, cx.connect().await?];
    let (read, write) = (cx.ask().reader(), cx.ask());
    let mut rng = cx.rng();
    let mut orders = vec!["rw".to_owned(), "wr".to_owned(), "rrwrw".to_owned()];
    for _ in 0..cx.rounds(1, 20) {
        orders.push((0..6).map(|_| if rng.one_in(2) { 'r' } else { 'w' }).collect());
    }
    for (n, order) in orders.iter().enumerate() {
        let name = cx.name(format_args!("{n}-{order}"));
        let first = clients[0].is_granted(&name, &write, "the first writer").await?;
        let mut tasks = Vec::new();
        for (i, mode) in order.chars().enumerate() {
            let (task, client) = (cx.clone(), clients[i % clients.len()].clone());
            let (queue, ask) = (name.clone(), if mode == 'r' { &read } else { &write }.clone());
            tasks.push(cx.spawn(async move {
                let held = client.takes(&queue, &ask, "waiting in the queue").await?;
                task.evidence("granted");
                task.sleep(HOLD).await;
                held.release().await.seen("releasing")
            }));
            let in_line = u32::try_from(i + 1).unwrap_or(u32::MAX);
            cx.in_line(&*clients[0], &name, in_line).await?;
        }
        ensure!(
            !tasks.iter().any(Task::is_done),
            "one of the queue {order} did not wait for the first writer"
        );
        first.release().await.seen("the first writer releases")?;
        let length = u32::try_from(order.len()).unwrap_or(u32::MAX);
        let bound = (HOLD + cx.claims().wake_p99) * length + cx.slack();
        let by = cx.now() + bound;
        for (i, task) in tasks.into_iter().enumerate() {
            let what = format!("the queue {order} (readers and writers) behind a writer: number {i} of it");
            cx.within(cx.now().until(by), what, task).await??;
        }
    }
    Ok(())
}

rule! { "11.13" Must phase 2 [Shared, Try, Wait] Both A D write_beside_own_read_ends, evidence ["ended" >= 3],
    bug "self_deadlock_forever"
    "An exclusive acquire of a name that the caller holds shared, without an upgrade, ends by its deadline. \
        It leaves the shared hold and nothing else."
    why "Code that takes the write lock in a function called under the read lock waits for itself. With a \
        deadline it must at least end."
    check "Does the wait limit apply when the client waits for itself?"
}
async fn write_beside_own_read_ends(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (read, write) = (cx.ask().reader(), cx.ask());
    let bound = cx.claims().op_bound;
    for name in cx.names(3, 30) {
        let reading = a.is_granted(&name, &read, "the reader").await?;
        let what = "trying to write beside one's own read";
        let refused = a.is_refused(&name, &write, what);
        cx.within(bound, what, refused).await??;
        let patience = ms(60);
        let what = format!("waiting {patience:?} to write beside one's own read");
        let limit = patience + bound + cx.slack();
        match cx
            .within(limit, &what, a.acquire_timeout(&name, &write, patience))
            .await?
        {
            Err(e) if e.kind() == ErrorKind::Timeout => {}
            // A library that knows its own holds may say so before it waits.
            Err(e) if e.kind() == ErrorKind::InvalidInput => {}
            Err(e) => fail!("{what}: {e:?} rather than Timeout"),
            Ok(_) => fail!("{what}: granted"),
        }
        cx.evidence("ended");
        ensure!(reading.is_valid(), "{what}: the read hold is not valid any more");
        // Nothing of the attempt is left in the way.
        let by = cx.now() + cx.claims().cancel_prompt + cx.slack();
        cx.passes_by(&*b, &name, &read, by, "another reader, after that")
            .await?;
        reading.release().await.seen("the reader releases")?;
        b.passes(&name, &write, "a writer, after every reader").await?;
    }
    Ok(())
}
