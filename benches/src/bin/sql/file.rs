//! SQLite, which has no server: what it waits for, and how a lock gets from one process to another.

use std::path::Path;
use std::time::Duration;

use dlock_benches::api_pair;
use dlock_benches::redis::{Counted, Effort, Goals, Meter, Spell, crowd, micros, quantile};
use dlock_benches::sql::{BareFile, Place, file_client, gaps_between_processes, syncs, take_turns};
use sqlx::sqlite::SqliteSynchronous;

use crate::pair::{FEW, MANY, tell_waits, time, turns};

/// By this word the program knows that it is the second process.
pub(crate) const PEER: &str = "the-second-process";

/// What the second process does: the file, how long it holds, how often.
pub(crate) async fn peer(words: &[String]) {
    let [file, hold, rounds] = words else {
        panic!("a file and two numbers")
    };
    let hold = Duration::from_millis(hold.parse().expect("a number"));
    let turns = take_turns(Path::new(file), hold, rounds.parse().expect("a number")).await;
    for (from, to) in turns {
        println!("{from} {to}");
    }
}

/// Nobody else at the lock.
pub(crate) async fn pair(effort: Effort, table: &mut Goals) {
    let place = Place::new();
    let client = file_client(&place.file("locks")).await;
    let lock = client.lock("a-name-of-twenty-one-b").expect("a good name");
    let mut normal = BareFile::new(&place.file("normal"), SqliteSynchronous::Normal).await;
    let mut times = turns(effort, async || {
        [time(normal.pair()).await, time(api_pair(&lock)).await]
    })
    .await;
    let series = ["raw: a row inserted and deleted", "dlock"];
    let [raw, api] = table.points.spreads("SQLite", series, &mut times);
    table.row(
        "SQLite: acquire + release, p50",
        format!("{api:.1} µs"),
        format!("a row inserted and deleted by the bare driver {raw:.1} µs, neither waits for the disk"),
        format!("{:.2}", api / raw),
        "≤ 1.4",
    );
    let own = std::process::id();
    let mut waits = Vec::new();
    for cycles in [FEW, MANY] {
        waits.push(
            syncs(own, async || {
                for _ in 0..cycles {
                    api_pair(&lock).await;
                }
            })
            .await,
        );
    }
    tell_waits("SQLite: fdatasync of a pair", waits[0], waits[1], "≤ 2", table);
    let mut full = BareFile::new(&place.file("full"), SqliteSynchronous::Full).await;
    waits.clear();
    for cycles in [FEW, MANY] {
        waits.push(
            syncs(own, async || {
                for _ in 0..cycles {
                    full.pair().await;
                }
            })
            .await,
        );
    }
    tell_waits(
        "the same by the bare driver, where each commit waits for the disk",
        waits[0],
        waits[1],
        "",
        table,
    );
    client.close().await.expect("it answers");
}

struct Nothing;

impl Meter for Nothing {
    fn counted(&self) -> Counted {
        Counted::default()
    }
}

/// From one to another.
pub(crate) async fn handoff(effort: Effort, table: &mut Goals) {
    let place = Place::new();
    for (hold, goal) in [(0, "≤ 0.5 ms"), (300, "≤ 0.5 ms")] {
        let file = place.file(&format!("{hold}"));
        let rounds = u32::try_from(effort.rounds).expect("few") * if hold == 0 { 40 } else { 4 };
        let hold = Duration::from_millis(hold);
        let mut gaps = gaps_between_processes(&file, &[PEER], hold, rounds).await;
        let count = gaps.len();
        let [half, most] = [0.5, 0.99].map(|q| micros(quantile(&mut gaps, q)) / 1e3);
        table.row(
            &format!(
                "SQLite: two processes, holds of {} ms: gap p50 and p99",
                hold.as_millis()
            ),
            format!("{half:.2} ms and {most:.2} ms"),
            format!("{count} hand-offs"),
            String::new(),
            goal,
        );
    }
    let client = file_client(&place.file("crowd")).await;
    let who = (0..64)
        .map(|_| client.lock("a-crowd").expect("a good name"))
        .collect();
    let spell = Spell {
        hold: Duration::ZERO,
        think: Duration::ZERO,
        length: effort.times(5),
    };
    let mut seen = crowd(&Nothing, who, spell).await;
    table.row(
        "SQLite: 64 tasks of a client, gap p50",
        format!("{:.3} ms", micros(quantile(&mut seen.gaps, 0.5)) / 1e3),
        format!("{} hand-offs", seen.handoffs),
        String::new(),
        "no look: well below 1 ms",
    );
    client.close().await.expect("it answers");
}
