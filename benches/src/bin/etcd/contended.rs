//! With many at one lock.

use std::time::Duration;

use dlock_benches::etcd::{Api, Server, client};
use dlock_benches::figures::Shows;
use dlock_benches::redis::{Effort, Goals, Seen, Spell, crowd, micros, quantile};

/// `tasks` tasks of dlock with one lock, over that many clients.
async fn ours(server: &Server, clients: usize, tasks: usize, spell: Spell) -> Seen {
    let mut locks = Vec::new();
    for _ in 0..clients {
        let client = client(server).await;
        locks.push(client.lock("a-crowd").expect("a good name"));
    }
    let who = (0..tasks).map(|n| locks[n % clients].clone()).collect();
    crowd(server, who, spell).await
}

/// The same by etcd's lock API, each with a lease of its own.
async fn theirs(server: &Server, tasks: usize, spell: Spell) -> Seen {
    let mut each = Vec::new();
    for _ in 0..tasks {
        each.push(Api::new(server, "their-crowd").await);
    }
    crowd(server, each, spell).await
}

/// Proposals and events of each grant.
fn each_of(seen: &Seen) -> (f64, f64) {
    let of = |what| seen.counted.of(what) as f64 / seen.grants() as f64;
    (of("proposals"), of("events"))
}

fn shown((proposals, events): (f64, f64)) -> String {
    format!("{proposals:.2} and {events:.2}")
}

/// The lock goes round.
pub(crate) async fn handoff(server: &Server, effort: Effort, table: &mut Goals) {
    const TASKS: usize = 64;
    const SPELLS: usize = 4;
    let spell = Spell {
        hold: Duration::ZERO,
        think: Duration::ZERO,
        length: effort.times(5),
    };
    let gap = |seen: &mut [Seen]| {
        let mut gaps: Vec<Duration> = seen.iter_mut().flat_map(|s| s.gaps.drain(..)).collect();
        micros(quantile(&mut gaps, 0.5))
    };
    let (mut mine, mut others) = (Vec::new(), Vec::new());
    // In turn, so that other changes affect both equally.
    for _ in 0..SPELLS {
        mine.push(ours(server, 8, TASKS, spell).await);
        others.push(theirs(server, TASKS, spell).await);
    }
    let (ours_gap, their_gap) = (gap(&mut mine), gap(&mut others));
    table.row(
        &format!("hand-off, {TASKS} tasks over 8 clients: gap p50"),
        format!("{ours_gap:.0} µs"),
        format!("etcd's lock API {their_gap:.0} µs"),
        format!("{:.2}", ours_gap / their_gap),
        "≤ 1.0",
    );
    let rate = |seen: &[Seen]| {
        let of = |s: &Seen| s.handoffs as f64 / s.took.as_secs_f64();
        seen.iter().map(of).sum::<f64>() / seen.len() as f64
    };
    table.row(
        "the same: hand-offs",
        format!("{:.0} /s", rate(&mine)),
        format!("etcd's lock API {:.0} /s", rate(&others)),
        format!("{:.2}", rate(&mine) / rate(&others)),
        "≥ 1.0",
    );
    table.row(
        "the same: proposals and events of each",
        shown(each_of(&mine[0])),
        format!("etcd's lock API {}", shown(each_of(&others[0]))),
        String::new(),
        "2 and 1",
    );
    let (most, least) = mine[0].turns();
    table.row(
        "the same: turns of a task, most and least",
        format!("{most} and {least}"),
        String::new(),
        format!("{:.2}", most as f64 / least as f64),
        "≤ 1.1",
    );
    for tasks in [2, 100, 1_000] {
        let seen = ours(server, 2, tasks, spell).await;
        let (proposals, _) = each_of(&seen);
        let plot = "Requests of a hand-off";
        table.points.add(Shows::Requests, plot, "etcd", tasks, proposals);
        table.row(
            &format!("hand-off with {tasks} who want it: proposals and events of each"),
            shown(each_of(&seen)),
            format!("{} hand-offs", seen.grants()),
            String::new(),
            "2 and 1",
        );
    }
}
