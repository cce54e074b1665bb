//! With many at one lock.

use std::time::Duration;

use dlock_benches::figures::Shows;
use dlock_benches::redis::{
    Direct, Effort, Goals, Seen, Server, Spell, client, crowd, floor, micros, quantile,
};

/// `tasks` of ours at one lock, over `clients` clients.
async fn ours(server: &Server, clients: usize, tasks: usize, spell: Spell) -> Seen {
    let mut locks = Vec::new();
    for _ in 0..clients {
        let client = client(server).await;
        locks.push(client.lock("a-crowd").expect("a good name"));
    }
    let who = (0..tasks).map(|n| locks[n % clients].clone()).collect();
    crowd(server, who, spell).await
}

/// The lock goes round.
pub(crate) async fn handoff(server: &Server, effort: Effort, table: &mut Goals) {
    let spell = Spell {
        hold: Duration::ZERO,
        think: Duration::ZERO,
        length: effort.times(3),
    };
    for clients in [1, 8, 64] {
        let floor = micros(floor(server, effort.times(2)).await);
        let mut direct = crowd(server, Direct::many(server, clients, 64).await, spell).await;
        let direct = micros(quantile(&mut direct.gaps, 0.5));
        let mut seen = ours(server, clients, 64, spell).await;
        let gap = micros(quantile(&mut seen.gaps, 0.5));
        let grants = seen.grants() as f64;
        table.row(
            &format!("hand-off, 64 tasks of {clients} clients: gap p50"),
            format!("{gap:.1} µs"),
            format!("the bare driver hands it over {direct:.1} µs; release, publish, push {floor:.1} µs"),
            format!("{:.2}", gap / direct),
            "≤ 1.15",
        );
        table.row(
            &format!(
                "the same: scripts and pushes for each, {:.0} a second",
                grants / seen.took.as_secs_f64()
            ),
            each_of(&seen),
            String::new(),
            String::new(),
            "≤ 3 and 1",
        );
        let (most, least) = seen.turns();
        table.row(
            "the same: turns of a task, most and least",
            format!("{most} and {least}"),
            String::new(),
            format!("{:.2}", most as f64 / least as f64),
            "≤ 1.1",
        );
    }
    for waiters in [2, 100, 1_000] {
        let seen = ours(server, 2.min(waiters), waiters, spell).await;
        let each = seen.counted.scripts() as f64 / seen.grants() as f64;
        table
            .points
            .add(Shows::Requests, "Requests of a hand-off", "Redis", waiters, each);
        table.row(
            &format!("hand-off with {waiters} who want it: scripts and pushes for each"),
            each_of(&seen),
            format!("{} hand-offs", seen.grants()),
            String::new(),
            "≤ 3 and 1",
        );
    }
}

/// Scripts and pushes for each grant.
fn each_of(seen: &Seen) -> String {
    let grants = seen.grants() as f64;
    format!(
        "{:.2} and {:.2}",
        seen.counted.scripts() as f64 / grants,
        seen.counted.pushes() as f64 / grants
    )
}

/// How much of the time it is held where many want it for 2 ms each.
pub(crate) async fn busy(server: &Server, effort: Effort, table: &mut Goals) {
    let spell = Spell {
        hold: Duration::from_millis(2),
        think: Duration::from_millis(20),
        length: effort.times(5),
    };
    for clients in [1, 8, 64] {
        let seen = ours(server, clients, 64, spell).await;
        table.row(
            &format!("64 tasks of {clients} clients, 2 ms holds: held"),
            format!("{:.1} %", 100.0 * seen.busy()),
            format!("{} holds", seen.grants()),
            String::new(),
            "≥ 95 %",
        );
    }
}
