//! With many at one lock.

use std::time::Duration;

use dlock_benches::figures::Shows;
use dlock_benches::redis::{Effort, Goals, Seen, Spell, crowd, micros, quantile};
use dlock_benches::zookeeper::{Curator, Recipe, Server, client};

/// `tasks` tasks of dlock with one lock, over that many sessions.
async fn ours(server: &Server, sessions: usize, tasks: usize, spell: Spell) -> Seen {
    let mut locks = Vec::new();
    for _ in 0..sessions {
        let client = client(server).await;
        locks.push(client.lock("a-crowd").expect("a good name"));
    }
    let who = (0..tasks).map(|n| locks[n % sessions].clone()).collect();
    crowd(server, who, spell).await
}

/// The same by the driver's recipe.
async fn recipe(server: &Server, sessions: usize, tasks: usize, spell: Spell) -> Seen {
    let mut each = Vec::new();
    for _ in 0..sessions {
        each.push(Recipe::new(server, "/recipe/crowd").await);
    }
    let who = (0..tasks).map(|n| each[n % sessions].clone()).collect();
    crowd(server, who, spell).await
}

/// Requests and events of each grant.
fn each_of(seen: &Seen) -> (f64, f64) {
    let (received, sent) = (seen.counted.of("received"), seen.counted.of("sent"));
    let grants = seen.grants() as f64;
    (
        received as f64 / grants,
        sent.saturating_sub(received) as f64 / grants,
    )
}

fn shown((requests, events): (f64, f64)) -> String {
    format!("{requests:.2} and {events:.2}")
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
    for sessions in [1, 8] {
        let (mut mine, mut others) = (Vec::new(), Vec::new());
        // In turn, so that other changes affect both equally.
        for _ in 0..=SPELLS {
            mine.push(ours(server, sessions, TASKS, spell).await);
            others.push(recipe(server, sessions, TASKS, spell).await);
        }
        // The first of each was for the server's compiler.
        let (mut mine, mut others) = (mine.split_off(1), others.split_off(1));
        let curator = Curator::new(server).crowd("/curator/crowd", TASKS, sessions, effort.times(5));
        let (ours, theirs) = (gap(&mut mine), gap(&mut others));
        table.row(
            &format!("hand-off, {TASKS} tasks over {sessions} sessions: gap p50"),
            format!("{ours:.1} µs"),
            format!(
                "the driver's recipe {theirs:.1} µs, Curator {:.1} µs",
                micros(curator.gap)
            ),
            format!("{:.2}", ours / theirs),
            "≤ 1.0",
        );
        let rate = |seen: &[Seen]| {
            let of = |s: &Seen| s.handoffs as f64 / s.took.as_secs_f64();
            seen.iter().map(of).sum::<f64>() / seen.len() as f64
        };
        table.row(
            "the same: hand-offs",
            format!("{:.0} /s", rate(&mine)),
            format!("the driver's recipe {:.0} /s", rate(&others)),
            format!("{:.2}", rate(&mine) / rate(&others)),
            "≥ 1.0",
        );
        table.row(
            "the same: requests and events of each",
            shown(each_of(&mine[0])),
            format!("the driver's recipe {}", shown(each_of(&others[0]))),
            String::new(),
            "5 and 1",
        );
        let (most, least) = mine[0].turns();
        table.row(
            "the same: turns of a task, most and least",
            format!("{most} and {least}"),
            String::new(),
            format!("{:.2}", most as f64 / least as f64),
            "≤ 1.1",
        );
    }
    for tasks in [2, 100, 1_000] {
        let seen = ours(server, 2, tasks, spell).await;
        let (requests, _) = each_of(&seen);
        table.points.add(
            Shows::Requests,
            "Requests of a hand-off",
            "ZooKeeper",
            tasks,
            requests,
        );
        table.row(
            &format!("hand-off with {tasks} who want it: requests and events of each"),
            shown(each_of(&seen)),
            format!("{} hand-offs", seen.grants()),
            String::new(),
            "5 and 1",
        );
    }
}
