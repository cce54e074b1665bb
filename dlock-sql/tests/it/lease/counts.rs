//! How many statements the servers are asked.

use std::sync::Arc;

use dlock_core::spi::{Attempt, Lock, News, Push, Release, RenewItem, RenewOutcome, Wake};
use futures::StreamExt as _;

use super::server::{Kind, Server};
use super::site::*;

const CYCLES: i64 = 50;

/// What was asked meanwhile.
pub(crate) async fn asked_meanwhile(server: &Server, work: impl AsyncFnOnce()) -> i64 {
    let count = async || match server {
        Server::Postgres(_) => {
            let sql = "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements s JOIN pg_roles r ON r.oid = \
                s.userid \
                       WHERE query LIKE '%dlock_%'";
            server.ask(sql).await.parse::<i64>().unwrap()
        }
        Server::MariaDb(server) => {
            let server = Arc::clone(server);
            blocking(move || server.status("Questions")).await
        }
    };
    let (before, own) = (count().await, count().await);
    work().await;
    // Who counts is counted too.
    count().await - own - (own - before)
}

pub(crate) async fn start(kind: Kind, runtime: &Arc<dyn dlock_core::Runtime>) -> (Server, Arc<dyn Lock>) {
    let settings: &[_] = match kind {
        Kind::Postgres => &[("shared_preload_libraries", "pg_stat_statements")],
        Kind::MariaDb => &[],
    };
    let server = Server::with(kind, settings).await;
    if let Kind::Postgres = kind {
        server.ask("CREATE EXTENSION pg_stat_statements").await;
    }
    let lock = server.open(runtime).await;
    (server, lock)
}

#[test]
fn an_uncontended_lock_is_one_statement_to_take_and_one_to_free() {
    for kind in [Kind::Postgres, Kind::MariaDb] {
        run(On::Tokio, async |runtime| {
            let (server, lock) = start(kind, &runtime).await;
            // The row of the name is made once, and statements are prepared.
            for _ in 0..2 {
                let a = ask("x");
                granted(&*lock, &a).await;
                lock.release(&a.key, Release::Now).await.unwrap();
            }
            let written = written(&server).await;
            let asked = asked_meanwhile(&server, async || {
                for _ in 0..CYCLES {
                    let a = ask("x");
                    granted(&*lock, &a).await;
                    lock.release(&a.key, Release::Now).await.unwrap();
                }
            });
            assert_eq!(asked.await, 2 * CYCLES, "{kind:?}");
            let written = self::written(&server).await - written;
            // The server may write a few of its own accord.
            assert_eq!(written / CYCLES, 2, "commits, {kind:?}");
        });
    }
}

/// How many transactions have written something so far: each is a commit.
async fn written(server: &Server) -> i64 {
    match server {
        Server::Postgres(_) => {
            let next = server.ask("SELECT pg_snapshot_xmax(pg_current_snapshot())").await;
            next.parse().unwrap()
        }
        Server::MariaDb(server) => {
            let server = Arc::clone(server);
            blocking(move || server.status("Handler_commit")).await
        }
    }
}

#[test]
fn an_unused_name_costs_no_more() {
    for kind in [Kind::Postgres, Kind::MariaDb] {
        run(On::Tokio, async |runtime| {
            let (server, lock) = start(kind, &runtime).await;
            let asked = asked_meanwhile(&server, async || {
                for n in 0..CYCLES {
                    let a = ask(&format!("new-{n}"));
                    granted(&*lock, &a).await;
                    lock.release(&a.key, Release::Now).await.unwrap();
                }
            });
            assert_eq!(asked.await, 2 * CYCLES, "{kind:?}");
        });
    }
}

#[test]
fn five_hundred_leases_are_renewed_by_one_statement() {
    for kind in [Kind::Postgres, Kind::MariaDb] {
        run(On::Tokio, async |runtime| {
            let (server, lock) = start(kind, &runtime).await;
            let mut items = Vec::new();
            for n in 0..500 {
                let a = ask(&format!("n{n}"));
                granted(&*lock, &a).await;
                items.push(RenewItem::lease(a.key, TTL));
            }
            let asked = asked_meanwhile(&server, async || {
                let outcomes = lock.renew().unwrap().renew(&items).await;
                assert!(outcomes.iter().all(|o| matches!(o, RenewOutcome::Renewed(_))));
            });
            assert_eq!(asked.await, 1, "{kind:?}");
        });
    }
}

/// Hands a name on along a queue; answers what that took for each.
async fn hand_on(server: &Server, lock: &dyn Lock, many: usize) -> f64 {
    // However slow the machine is, nobody's time is up before its turn.
    let mut first = ask("queue");
    first.ttl = ms(600_000);
    granted(lock, &first).await;
    let mut waiting = Vec::new();
    for _ in 0..many {
        let a = ask("queue").with_queue(ms(600_000));
        let Attempt::Queued(wait) = lock.attempt(&a).await.unwrap() else {
            panic!()
        };
        waiting.push((a, wait));
    }
    let asked = asked_meanwhile(server, async || {
        lock.release(&first.key, Release::Now).await.unwrap();
        for (a, wait) in waiting {
            match wait.wake {
                Wake::Push(mut pushes) => {
                    let push = within(ms(10_000), pushes.next()).await;
                    assert!(matches!(push, Some(Push::Granted(_))), "{push:?}");
                }
                Wake::Poll { probe, .. } => {
                    // A client's first look may reuse an earlier one, which costs nothing and shows the state
                    // of then.
                    let mut looks = 0;
                    let id = a.key.id;
                    while !matches!(probe.look().await.unwrap(), News::Admitted(all) if all.contains(&id)) {
                        looks += 1;
                        assert!(looks < 2, "it was not admitted");
                    }
                    assert!(asked(lock, &a).await.is_some());
                }
                _ => panic!("there is another way to wake"),
            }
            lock.release(&a.key, Release::Now).await.unwrap();
        }
    });
    asked.await as f64 / (many + 1) as f64
}

/// On PostgreSQL the release is all: the next waiter is notified. (It had asked once.) On MariaDB it polls
/// (one statement) and claims (two in one round trip); and the release is six in two.
#[test]
fn a_hand_over_costs_the_same_however_many_wait() {
    for (kind, most, queues) in [
        (Kind::Postgres, 1.0, [2, 100, 1_000]),
        (Kind::MariaDb, 9.5, [2, 20, 100]),
    ] {
        run(On::Tokio, async |runtime| {
            let (server, lock) = start(kind, &runtime).await;
            let mut each = Vec::new();
            for many in queues {
                each.push(hand_on(&server, &*lock, many).await);
            }
            assert!(each.iter().all(|n| *n <= most), "{kind:?}: {each:?}");
            // The last of a queue finds nobody behind it, which is cheaper, and counts for less in a long
            // one.
            assert!((each[1] - each[2]).abs() < 1.0, "{kind:?}: {each:?}");
        });
    }
}
