//! §1 Mutual exclusion and ownership.

use std::collections::HashMap;

use futures::FutureExt;
use futures::channel::oneshot;

use super::prelude::*;
use crate::agent::Child;
use crate::checker::lost_update::LostUpdates;

rules! {
    one_holder_at_a_time, one_winner_of_a_race, no_lost_update, handles_of_one_client_exclude_each_other,
    one_holder_over_processes, grant_ids_are_unique,
}

/// Tasks on half as many clients, so that tasks of one client compete as well as tasks of several.
async fn clients(cx: &Cx, tasks: usize) -> Verdict<Vec<Client>> {
    let clients = cx.clients(tasks / 2).await?;
    Ok(clients
        .into_iter()
        .flat_map(|client| [client.clone(), client])
        .collect())
}

rule! { "1.01" Must phase 1 [Lock, Wait] Both A X one_holder_at_a_time,
    evidence ["grants" >= 80, "contended" >= 20], bug "grant_without_check" stochastic, budget 120 s
    "At any instant at most one live exclusive grant of a name exists."
    why "This is what a lock is for. Two holders at once oversell the stock."
    check "Does one step in the store both check that the name is free and take it?"
}
async fn one_holder_at_a_time(cx: Cx) -> Verdict {
    let hold = (ms(3), ms(6));
    // Some end their hold by a drop. The history then only shows that it ended at some later time.
    compete(&cx, clients(&cx, 8).await?, cx.rounds(30, 200), hold, |rng| {
        rng.one_in(4)
    })
    .await
}

/// Each of them repeatedly acquires, holds for a while and releases.
async fn compete(
    cx: &Cx,
    clients: Vec<Client>,
    rounds: usize,
    (least, most): (Duration, Duration),
    drops: fn(&mut Rng) -> bool,
) -> Verdict {
    let shared = (cx.name("one"), Arc::new(AtomicU64::new(0)));
    let tasks = cx.at_work(clients, &shared, move |worker, (name, asking)| async move {
        let (cx, lane, mut rng, ..) = worker;
        let ask = cx.ask();
        for _ in 0..rounds {
            asking.fetch_add(1, Ordering::SeqCst);
            let held = lane.acquire(&name, &ask).await.seen("one of them acquires")?;
            cx.evidence("grants");
            // Granted while others try: a race was won.
            if asking.fetch_sub(1, Ordering::SeqCst) > 1 {
                cx.evidence("contended");
            }
            cx.sleep(rng.duration(least, most)).await;
            match drops(&mut rng) && cx.has(Need::DropFrees) {
                true => lane.drop_guard(held),
                false => lane.release(&held).await.seen("the holder releases")?,
            }
        }
        Ok::<(), Failure>(())
    });
    let ended = every(tasks).await;
    // The history is checked first: it explains why a release failed.
    cx.check_history()?;
    ended
}

rule! { "1.03" Must phase 1 [Lock, Try] Backend A D one_winner_of_a_race,
    evidence ["rounds" >= 5, "losers" >= 300], bug "check_then_set", budget 120 s
    "When any number of clients acquire a free name at the same time, exactly one is granted."
    why "Reading first and writing afterwards works in every demo. It grants two clients the first time that \
        two arrive at once."
    check "Is the lock taken by one conditional write, or by a read followed by a write?"
}
async fn one_winner_of_a_race(cx: Cx) -> Verdict {
    const RACERS: usize = 64;
    let clients = cx.clients(8).await?.into_iter();
    let racers: Vec<_> = clients.flat_map(|client| vec![client; RACERS / 8]).collect();
    for round in 0..cx.rounds(6, 200) {
        let name = cx.name(format!("race-{round}"));
        let (fire, start) = oneshot::channel::<()>();
        let shared = (name, start.shared());
        let tasks = cx.at_work(racers.clone(), &shared, |worker, (name, start)| async move {
            // A barrier: no task tries before all are ready.
            let _ = start.await;
            let (cx, lane, ..) = worker;
            let tried = lane.client().try_acquire(&name, &cx.ask()).await;
            tried.seen(format_args!("round {round}: one of {RACERS} tries"))
        });
        drop(fire);
        let mut won = Vec::new();
        for tried in all(tasks).await? {
            match tried {
                Some(held) => won.push(held),
                None => cx.evidence("losers"),
            }
        }
        ensure!(
            won.len() == 1,
            "round {round}: {} of {RACERS} simultaneous acquires of a free name were granted",
            won.len()
        );
        for held in won {
            let released = held.release().await;
            released.seen(format_args!("round {round}: the winner releases"))?;
        }
        cx.evidence("rounds");
    }
    Ok(())
}

rule! { "1.04" Must phase 1 [Lock, Wait] Both A X no_lost_update,
    evidence ["updates" >= 60, "contended" >= 20], bug "early_unlock" stochastic, budget 120 s
    "Read-modify-write of unsynchronised data under the lock loses no element while no lease lapses."
    why "This answers the question that users ask first: how much data is lost under this lock?"
    check "Is the lock released when the guard ends, or at an earlier end of scope?"
}
async fn no_lost_update(cx: Cx) -> Verdict {
    let rounds = cx.rounds(10, 100) as u64;
    let set: Arc<Mutex<Vec<u64>>> = Arc::default();
    let shared = (cx.name("set"), Arc::clone(&set), Arc::new(AtomicU64::new(0)));
    let eight = clients(&cx, 8).await?;
    let tasks = cx.at_work(eight, &shared, move |worker, (name, set, asking)| async move {
        let (cx, lane, mut rng, number) = worker;
        let (client, ask) = (lane.client(), cx.ask());
        let mut added = Vec::new();
        for round in 0..rounds {
            asking.fetch_add(1, Ordering::SeqCst);
            let held = client.acquire(&name, &ask).await.seen("one of eight acquires")?;
            // Granted while others try: a race was won.
            if asking.fetch_sub(1, Ordering::SeqCst) > 1 {
                cx.evidence("contended");
            }
            // Read, compute, write. The mutex does not span the three, only the lock under test does.
            let mut copy = lock(&set).clone();
            cx.sleep(rng.duration(ms(1), ms(4))).await;
            let element = number as u64 * 1_000_000 + round;
            copy.push(element);
            *lock(&set) = copy;
            added.push(element);
            cx.evidence("updates");
            held.release().await.seen("the holder releases")?;
        }
        Ok(added)
    });
    let added = all(tasks).await?.concat();
    let found = lock(&set).clone();
    let lost = LostUpdates::count(added, found);
    cx.note(format_args!("lost updates: {:.1} %", lost.percentage()));
    ensure!(
        lost.is_none(),
        "{} of {} elements that were added under the lock are lost ({:.1} %)",
        lost.lost.len(),
        lost.expected,
        lost.percentage()
    );
    Ok(())
}

rule! { "1.07" Must phase 1 [Lock, Try, Wait] Both A D handles_of_one_client_exclude_each_other,
    evidence ["refusals" >= 10, "hand_overs" >= 5], bug "owner_is_client"
    "Without re-entrancy, two handles of one client exclude each other exactly like two clients."
    why "A lock that identifies clients instead of acquisitions lets two tasks of one process in together."
    check "Is ownership kept per acquisition, or per client, session or connection?"
}
async fn handles_of_one_client_exclude_each_other(cx: Cx) -> Verdict {
    let client = cx.connect().await?;
    let ask = cx.ask();
    for name in cx.names(5, 50) {
        let first = client.acquire(&name, &ask).await;
        let first = first.seen("one handle acquires a free name")?;
        let when = "another handle of the same client, while the first holds";
        client.is_refused(&name, &ask, when).await?;
        cx.evidence("refusals");
        let when = "a second handle of the same client waits while the first holds";
        cx.expect_timeout(&*client, &name, &ask, ms(20), when).await?;
        cx.evidence("refusals");
        first.must_be_valid("the first handle lost its lock to the other handle's attempts")?;
        let waiting = cx.waits(&client, &name, &ask);
        cx.sleep(ms(10)).await;
        first.release().await.seen("the first handle releases")?;
        let what = "a waiting handle, after the release by its neighbour";
        cx.served(cx.prompt(), what, waiting).await?;
        cx.evidence("hand_overs");
    }
    Ok(())
}

/// Starts `n` processes at once.
async fn children(cx: &Cx, n: usize) -> Verdict<Vec<Arc<Child>>> {
    // The first alone, because it reports if no process can be started.
    let mut all = vec![cx.child().await?];
    all.extend(try_join_all((1..n).map(|_| cx.child())).await?);
    Ok(all)
}

rule! { "1.02" Must phase 1 [Lock, Wait] Backend C X one_holder_over_processes,
    evidence ["processes" >= 4, "grants" >= 60, "contended" >= 20], bug "process_local_lock", budget 120 s
    "At any instant at most one live exclusive grant of a name exists, over all processes."
    why "A lock that lives in the memory of one process passes every test within that process."
    check "Can a grant be made without asking the store, or between a request that looks and one that takes?"
}
async fn one_holder_over_processes(cx: Cx) -> Verdict {
    let mut clients: Vec<Client> = Vec::new();
    for child in children(&cx, 4).await? {
        cx.evidence("processes");
        let client: Client = child;
        // Two tasks of one process compete with each other as well.
        clients.extend([Arc::clone(&client), client]);
    }
    clients.push(cx.connect().await?);
    compete(&cx, clients, cx.rounds(8, 100), (ms(1), ms(4)), |_| false).await
}

/// Names for the clients of a process, and for the holds of each client.
fn names(cx: &Cx, process: usize, clients: usize, holds: usize) -> Vec<Vec<LockName>> {
    let of_client = |client| (0..holds).map(move |n| cx.name(format_args!("{process}-{client}-{n}")));
    (0..clients).map(|client| of_client(client).collect()).collect()
}

rule! { "1.06" Must phase 1 [Lock, Wait] Both C D grant_ids_are_unique,
    evidence ["ids" >= 130, "processes" >= 8], bug "owner_from_pid_time", budget 120 s
    "No two grants have the same id, across clients, processes and restarts."
    why "The store cannot tell two holders with the same id apart. Each releases and renews the other's lock."
    check "Is the id built from something that two processes can share, such as a process id and a time?"
}
async fn grant_ids_are_unique(cx: Cx) -> Verdict {
    const CLIENTS: usize = 3;
    let (of_each_start, holds) = (cx.rounds(4, 8), cx.rounds(5, 4_200));
    let mut seen: HashMap<String, String> = HashMap::new();
    let mut note = |ids: Vec<String>, whose: String| {
        for id in ids {
            cx.evidence("ids");
            if let Some(before) = seen.insert(id.clone(), whose.clone()) {
                return Err(Failure::Broken(format!(
                    "two holds have the id {id}: one of {before} and one of {whose}"
                )));
            }
        }
        Ok(())
    };
    // Clients of this process first, since that needs no other process.
    for client in 0..CLIENTS {
        let subject = cx.connect().await?;
        let mut ids = Vec::new();
        for n in 0..5 {
            let name = cx.name(format_args!("here-{client}-{n}"));
            let held = subject.takes(&name, &cx.ask(), "a client acquires").await?;
            ids.push(held.id());
            held.release().await.seen("it releases")?;
        }
        note(ids, format!("client {client} of this process"))?;
    }
    // The second time stands for the same processes after a restart.
    for start in ["first", "second"] {
        let processes = children(&cx, of_each_start).await?;
        let asked = processes
            .iter()
            .enumerate()
            .map(|(n, child)| child.ids(&names(&cx, n, CLIENTS, holds), &cx.ask()));
        let asked: Vec<_> = asked.collect();
        for (child, ids) in processes.iter().zip(asked) {
            let ids = ids.await.seen("a process acquires and releases")?.value;
            cx.evidence("processes");
            note(ids, format!("process {} of the {start} start", child.pid()))?;
        }
    }
    ensure!(!seen.contains_key(""), "a hold has no id");
    Ok(())
}
