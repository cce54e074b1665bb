//! With many at one lock.

use std::time::{Duration, Instant};

use dlock_benches::figures::Shows;
use dlock_benches::redis::{Effort, Goals, Seen, Spell, crowd, micros, quantile};
use dlock_benches::sql::{Kind, Maria, Postgres, Server, Strategy, client, notify_floor};

/// `tasks` tasks of dlock with one lock, over that many clients.
async fn ours(server: &Server, strategy: Strategy, clients: usize, tasks: usize, spell: Spell) -> Seen {
    let mut all = Vec::new();
    for _ in 0..clients {
        all.push(client(server, strategy).await);
    }
    let who = (0..tasks)
        .map(|n| all[n % clients].lock("a-crowd").expect("a good name"))
        .collect();
    let seen = crowd(server, who, spell).await;
    for client in all {
        client.close().await.expect("it answers");
    }
    seen
}

/// They let go at once, and want it again at once.
fn at_once(effort: Effort) -> Spell {
    Spell {
        hold: Duration::ZERO,
        think: Duration::ZERO,
        length: effort.times(5),
    }
}

/// How much of the time it is held where many want it for 2 ms each.
async fn busy(server: &Server, effort: Effort, table: &mut Goals, goal: &str) {
    let spell = Spell {
        hold: Duration::from_millis(2),
        think: Duration::from_millis(20),
        length: effort.times(5),
    };
    for clients in [1, 8] {
        let seen = ours(server, Strategy::Lease, clients, 64, spell).await;
        table.row(
            &format!(
                "{}, lease: 64 tasks of {clients} clients, 2 ms holds: held",
                server.name()
            ),
            format!("{:.1} %", 100.0 * seen.busy()),
            format!(
                "{} holds, statements of each {:.2}",
                seen.grants(),
                each_of(&seen)
            ),
            String::new(),
            goal,
        );
    }
}

fn each_of(seen: &Seen) -> f64 {
    seen.counted.of("statement") as f64 / seen.grants().max(1) as f64
}

/// Statements do not grow with those who wait.
async fn counts(server: &Server, strategy: Strategy, effort: Effort, table: &mut Goals, goal: &str) {
    let what = match strategy {
        Strategy::Lease => "lease",
        Strategy::Session => "session",
    };
    for (clients, tasks) in [(2, 2), (2, 100), (2, 1_000)] {
        let seen = ours(server, strategy, clients, tasks, at_once(effort)).await;
        let (series, each) = (format!("{}, {what}s", server.name()), each_of(&seen));
        table
            .points
            .add(Shows::Requests, "Requests of a hand-off", &series, tasks, each);
        table.row(
            &format!(
                "{}, {what}: {tasks} of {clients} clients: statements of each hand-off",
                server.name()
            ),
            format!("{each:.2}"),
            format!("{} grants, {} of them to another", seen.grants(), seen.handoffs),
            String::new(),
            goal,
        );
    }
}

async fn crowd_gap(server: &Server, strategy: Strategy, clients: usize, effort: Effort) -> (f64, Seen) {
    let mut seen = ours(server, strategy, clients, 64, at_once(effort)).await;
    (micros(quantile(&mut seen.gaps, 0.5)), seen)
}

/// One lets go while one other waits, who has it then.
async fn wake(server: &Server, strategy: Strategy, length: Duration, before: Before) -> f64 {
    let clients = [client(server, strategy).await, client(server, strategy).await];
    let locks = clients.each_ref().map(|c| c.lock("a-wake").expect("a good name"));
    let mut gaps = Vec::new();
    let until = Instant::now() + length;
    let mut held = locks[0].acquire().await.expect("it is free");
    for turn in 1.. {
        let begun = std::cell::Cell::new(Instant::now());
        let next = locks[turn % 2].acquire();
        let release = async {
            match before {
                Before::Quiet => tokio::time::sleep(WAITS).await,
                // Until the other is in line; nothing rests meanwhile.
                Before::Busy => while clients[0].inspect("a-wake").await.expect("it answers").waiting == 0 {},
            }
            begun.set(Instant::now());
            held.release().await.expect("it answers");
        };
        let ((), next) = futures::join!(release, async {
            let next = next.await.expect("it is handed over");
            gaps.push(begun.get().elapsed());
            next
        });
        held = next;
        if Instant::now() >= until {
            break;
        }
    }
    held.release().await.expect("it answers");
    for client in clients {
        client.close().await.expect("it answers");
    }
    micros(quantile(&mut gaps, 0.5))
}

/// What goes before a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// Servers and program are at work: what is measured is what a hand-over takes.
    Busy,
    /// Two milliseconds in which nothing happens but that the other comes: the core has slept, and others
    /// have been in its caches.
    Quiet,
}

impl Before {
    fn pause(self) -> Duration {
        match self {
            Self::Busy => Duration::ZERO,
            Self::Quiet => WAITS,
        }
    }
}

/// Long enough that the other waits in the server.
const WAITS: Duration = Duration::from_millis(2);

fn tell_wake(table: &mut Goals, what: &str, gap: f64, floor: f64, least: &str, goal: &str) {
    table.row(
        &format!("{what}: one waits, gap p50"),
        format!("{gap:.1} µs"),
        format!("{least} {floor:.1} µs"),
        format!("{:.2}", gap / floor),
        goal,
    );
}

fn tell(table: &mut Goals, what: &str, (gap, seen): (f64, Seen), floor: f64, least: &str) {
    table.row(
        what,
        format!("{gap:.1} µs"),
        format!(
            "{least} {floor:.1} µs; {} hand-offs, statements of each {:.2}",
            seen.handoffs,
            each_of(&seen)
        ),
        format!("{:.2}", gap / floor),
        "",
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

/// Leases in rows.
pub(crate) async fn rows(server: &Server, effort: Effort, table: &mut Goals) {
    if server.kind() == Kind::Postgres {
        let least = "row deleted, told, made by another";
        let conditions = [
            (Before::Quiet, "PostgreSQL, lease after 2 ms of quiet"),
            (Before::Busy, "PostgreSQL, lease, all at work"),
        ];
        let mut floor = 0.0;
        for (before, what) in conditions {
            floor = micros(notify_floor(server, effort.times(3), before.pause()).await);
            let gap = wake(server, Strategy::Lease, effort.times(5), before).await;
            tell_wake(table, what, gap, floor, least, "≤ 1.4");
        }
        for clients in [1, 8] {
            let what = format!("PostgreSQL, lease: 64 tasks of {clients} clients, gap p50");
            let seen = crowd_gap(server, Strategy::Lease, clients, effort).await;
            tell(table, &what, seen, floor, least);
        }
    }
    let (held, counted) = match server.kind() {
        Kind::Postgres => ("≥ 93 %", "the same for all"),
        Kind::Maria => ("≥ 90 %", "≤ 5, the same for all"),
    };
    busy(server, effort, table, held).await;
    counts(server, Strategy::Lease, effort, table, counted).await;
}

/// Session locks: waiters wait in the server.
pub(crate) async fn sessions(server: &Server, effort: Effort, table: &mut Goals) {
    let least = "the same by the bare driver";
    let floor = micros(native_floor(server, effort.times(3)).await);
    let gap = wake(server, Strategy::Session, effort.times(5), Before::Quiet).await;
    let what = format!("{}, session", server.name());
    tell_wake(table, &what, gap, floor, least, "≤ 1.15");
    let seen = crowd_gap(server, Strategy::Session, 8, effort).await;
    tell(
        table,
        &format!("{what}: 64 tasks of 8 clients, gap p50"),
        seen,
        floor,
        least,
    );
    counts(server, Strategy::Session, effort, table, "2").await;
}

/// One gives the server's own lock back while another waits for it there.
async fn native_floor(server: &Server, length: Duration) -> Duration {
    let mut gaps = Vec::new();
    let until = Instant::now() + length;
    macro_rules! go_round {
        ($one:ident, $two:ident, $key:expr) => {
            while Instant::now() < until {
                $one.lock($key).await;
                let begun = std::cell::Cell::new(Instant::now());
                futures::join!(
                    async {
                        tokio::time::sleep(WAITS).await;
                        begun.set(Instant::now());
                        $one.unlock($key).await;
                    },
                    async {
                        $two.lock($key).await;
                        gaps.push(begun.get().elapsed());
                    }
                );
                $two.unlock($key).await;
            }
        };
    }
    match server.kind() {
        Kind::Postgres => {
            let (mut one, mut two) = (Postgres::new(server).await, Postgres::new(server).await);
            go_round!(one, two, 9);
        }
        Kind::Maria => {
            let (mut one, mut two) = (Maria::new(server).await, Maria::new(server).await);
            go_round!(one, two, "floor");
        }
    }
    quantile(&mut gaps, 0.5)
}
