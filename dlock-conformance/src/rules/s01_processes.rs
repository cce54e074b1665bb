//! §1 Mutual exclusion and ownership, the part about processes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::try_join_all;

use super::prelude::*;
use crate::agent::Child;

rules! {
    one_holder_over_processes, grant_ids_are_unique,
}

/// That many processes, started at once.
async fn children(cx: &Cx, n: usize) -> Verdict<Vec<Arc<Child>>> {
    // The first alone: where there can be none, it says so.
    let mut all = vec![cx.child().await?];
    all.extend(try_join_all((1..n).map(|_| cx.child())).await?);
    Ok(all)
}

rule! { "1.02" Must phase 1 [Lock, Wait] Backend C X one_holder_over_processes,
    evidence ["processes" >= 4, "grants" >= 60, "contended" >= 20], bug "process_local_lock", budget 120 s
    "At any instant at most one live exclusive grant of a name exists, over all processes."
    why "A lock that lives in the memory of a process passes every test of that process."
    check "Is there any way to a grant that does not pass the store?"
}
async fn one_holder_over_processes(cx: Cx) -> Verdict {
    let name = cx.name("one");
    let rounds = cx.rounds(8, 100);
    let mut clients: Vec<Arc<dyn Subject>> = Vec::new();
    for child in children(&cx, 4).await? {
        cx.evidence("processes");
        let client: Arc<dyn Subject> = child;
        // Two tasks of one process compete with each other as well.
        clients.extend([Arc::clone(&client), client]);
    }
    clients.push(cx.connect().await?);
    let asking = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for client in clients {
        let (task, name, asking, mut rng) = (cx.clone(), name.clone(), Arc::clone(&asking), cx.rng());
        tasks.push(cx.spawn(async move {
            let cx = task;
            let (ask, lane) = (cx.ask(), cx.lane(&client));
            for _ in 0..rounds {
                asking.fetch_add(1, Ordering::SeqCst);
                let held = lane.acquire(&name, &ask).await;
                let held = held.seen("one of the processes acquires")?;
                cx.evidence("grants");
                if asking.fetch_sub(1, Ordering::SeqCst) > 1 {
                    cx.evidence("contended");
                }
                cx.sleep(rng.duration(ms(1), ms(4))).await;
                lane.release(&held).await.seen("the holder releases")?;
            }
            Ok::<(), Failure>(())
        }));
    }
    let mut ended = Ok(());
    for task in tasks {
        ended = ended.and(task.await);
    }
    // What the history shows comes first: it explains why a release went wrong.
    cx.check_history()?;
    ended
}

/// Names for that many clients of a process, and that many holds of each.
fn names(cx: &Cx, process: usize, clients: usize, holds: usize) -> Vec<Vec<LockName>> {
    let of_client = |client| (0..holds).map(move |n| cx.name(format_args!("{process}-{client}-{n}")));
    (0..clients).map(|client| of_client(client).collect()).collect()
}

rule! { "1.06" Must phase 1 [Lock, Wait] Both C D grant_ids_are_unique,
    evidence ["ids" >= 130, "processes" >= 8], bug "owner_from_pid_time", budget 120 s
    "No two grants have the same id, over clients, processes and restarts."
    why "Two holders with one id are one to the store: each releases and renews the other's lock."
    check "Is the id made of something that two processes can share, such as a process number and a time?"
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
                    "the id {id} is that of a hold of {before} and of one of {whose}"
                )));
            }
        }
        Ok(())
    };
    // Clients of this process first: that needs no other.
    for client in 0..CLIENTS {
        let subject = cx.connect().await?;
        let mut ids = Vec::new();
        for n in 0..5 {
            let name = cx.name(format_args!("here-{client}-{n}"));
            let held = subject.acquire(&name, &cx.ask()).await;
            let held = held.seen("a client acquires")?;
            ids.push(held.id());
            held.release().await.seen("it releases")?;
        }
        note(ids, format!("client {client} of this process"))?;
    }
    // The second time they are the same processes after a restart.
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
