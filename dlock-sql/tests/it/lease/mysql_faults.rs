//! What becomes of leases in MariaDB when something goes wrong there: typed outcomes, and never two who hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dlock_core::spi::{Attempt, Lock, Release, Released, RenewItem, RenewOutcome};
use dlock_core::{Access, Client, ErrorKind, LockName, LockOptions, Mode, Runtime, Token};
use dlock_sql::lease::Config;
use futures::future::join_all;

use super::server::{Kind, Server};
use super::site::*;
use dlock_testkit::MariaDbServer;

fn hands(server: &Server) -> Arc<MariaDbServer> {
    match server {
        Server::MariaDb(hands) => hands.clone(),
        Server::Postgres(_) => panic!(),
    }
}

/// A backend that waits for a locked row for as long as a busy machine takes to end its statement.
async fn patient(server: &Server, runtime: &Arc<dyn Runtime>) -> Arc<dyn Lock> {
    let config = Config::from_url(&server.url()).unwrap();
    config
        .lock_wait(ms(60_000))
        .connect(runtime.clone())
        .await
        .unwrap()
}

/// The connection that waits for a lock of a row.
async fn blocked(server: &Server) -> i64 {
    server.wait_until_blocked(1).await;
    let hands = hands(server);
    blocking(move || {
        hands.number(
            // That view is as old as a tenth of a second.
            "DO SLEEP(0.2); SELECT trx_mysql_thread_id FROM information_schema.innodb_trx WHERE trx_state = \
                'LOCK WAIT'",
        )
    })
    .await
}

const LOCKS_X: &str = "BEGIN; SELECT * FROM dlock_name WHERE name = 'x' FOR UPDATE";

#[test]
fn a_statement_ended_by_an_operator_is_unavailable_and_not_done() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::MariaDb).await;
        let lock = patient(&server, &runtime).await;
        let first = ask("x");
        granted(&*lock, &first).await;
        lock.release(&first.key, Release::Now).await.unwrap();
        // One statement, and a transaction of two texts.
        for a in [ask("x"), ask("x").with_mode(Mode::READER)] {
            let mut hand = server.hand().await;
            hand.run(LOCKS_X).await.unwrap();
            let ending = async {
                let id = blocked(&server).await;
                let hands = hands(&server);
                blocking(move || hands.kill_query(id)).await;
            };
            let (answer, ()) = futures::future::join(lock.attempt(&a), ending).await;
            let e = answer.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
            assert!(e.to_string().contains("cancelled the statement"), "{e}");
            hand.run("ROLLBACK").await.unwrap();
            let seen = lock.watch().unwrap().inspect(&a.key.name).await.unwrap();
            assert_eq!((seen.holders.len(), seen.waiting), (0, 0));
            granted(&*lock, &a).await;
            lock.release(&a.key, Release::Now).await.unwrap();
        }
    });
}

#[test]
fn a_connection_that_an_operator_ends_in_the_midst_grants_once() {
    run(On::Smol, async |runtime| {
        let server = Server::start(Kind::MariaDb).await;
        let (lock, other) = (patient(&server, &runtime).await, server.open(&runtime).await);
        let first = ask("x");
        let token = granted(&*lock, &first).await.token;
        lock.release(&first.key, Release::Now).await.unwrap();
        for a in [ask("x"), ask("x").with_mode(Mode::READER)] {
            let mut hand = server.hand().await;
            hand.run(LOCKS_X).await.unwrap();
            let ending = async {
                let id = blocked(&server).await;
                let hands = hands(&server);
                blocking(move || hands.kill_connection(id)).await;
                hand.run("ROLLBACK").await.unwrap();
            };
            let (answer, ()) = futures::future::join(lock.attempt(&a), ending).await;
            match answer {
                Ok(Attempt::Granted(_)) => {}
                Err(e) => assert!(
                    matches!(e.kind(), ErrorKind::Unknown | ErrorKind::Unavailable),
                    "{e}"
                ),
                other => panic!("{other:?}"),
            }
            let grant = granted(&*lock, &a).await;
            assert!(grant.token > token);
            held(&*other, &ask("x")).await;
            assert_eq!(
                lock.release(&a.key, Release::Now).await.unwrap(),
                Released::Released
            );
            // Nothing of a copy that was on its way.
            let b = ask("x");
            assert!(granted(&*other, &b).await.token > grant.token);
            other.release(&b.key, Release::Now).await.unwrap();
        }
    });
}

#[test]
fn revoked_rights_are_permission_denied_and_nothing_is_done() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::MariaDb).await;
        server.open(&runtime).await.close().await.unwrap();
        server
            .ask(
                "CREATE USER app@'%' IDENTIFIED BY 'app'; GRANT SELECT, UPDATE ON dlock.dlock_meta TO \
                    app@'%'; \
                 GRANT SELECT, INSERT, UPDATE, DELETE ON dlock.dlock_name TO app@'%'; \
                 GRANT SELECT, INSERT, UPDATE, DELETE ON dlock.dlock_entry TO app@'%'; \
                 GRANT SELECT, INSERT, UPDATE ON dlock.dlock_fence TO app@'%'",
            )
            .await;
        let lock = server
            .try_open(&server.url_of("app", "app"), &runtime)
            .await
            .unwrap();
        let (a, reader) = (ask("x"), ask("y").with_mode(Mode::READER));
        granted(&*lock, &a).await;
        server
            .ask("REVOKE INSERT ON dlock.dlock_entry FROM app@'%'")
            .await;
        let e = lock.attempt(&reader).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
        server.ask("REVOKE UPDATE ON dlock.dlock_name FROM app@'%'").await;
        let RenewOutcome::Failed(e) = renew(&*lock, RenewItem::lease(a.key.clone(), TTL)).await else {
            panic!("it was renewed")
        };
        assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
        for a in [&a, &ask("z")] {
            let e = lock.attempt(a).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
        }
        let e = lock.release(&a.key, Release::Now).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
        server
            .ask("GRANT UPDATE ON dlock.dlock_name TO app@'%'; GRANT INSERT ON dlock.dlock_entry TO app@'%'")
            .await;
        let seen = lock.watch().unwrap().inspect(&a.key.name).await.unwrap();
        assert_eq!(seen.holders.len(), 1, "it is held yet");
        lock.release(&a.key, Release::Now).await.unwrap();
        granted(&*lock, &reader).await;
    });
}

#[test]
fn a_row_that_no_dlock_wrote_is_refused_and_left_as_it_is() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::MariaDb).await;
        let lock = server.open(&runtime).await;
        let a = ask("x");
        granted(&*lock, &a).await;
        lock.release(&a.key, Release::Now).await.unwrap();
        server
            .ask("UPDATE dlock_name SET phase = 9, ends = 1, owner = 'somebody' WHERE name = 'x'")
            .await;
        for b in [ask("x"), join("x", Mode::Exclusive), join("x", Mode::READER)] {
            let e = lock.attempt(&b).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::BackendData, "{e}");
        }
        let left = server
            .ask("SELECT phase, owner FROM dlock_name WHERE name = 'x'")
            .await;
        assert_eq!(left, "9\tsomebody");
        granted(&*lock, &ask("y")).await;
    });
}

#[test]
fn a_fenced_value_is_never_read_before_it_was_written() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::MariaDb).await;
        let (lock, other) = (server.open(&runtime).await, server.open(&runtime).await);
        let gate = |lock: &Arc<dyn Lock>| {
            let lock = lock.clone();
            async move |name: &LockName, n: u64| {
                let gate = lock.fencing().unwrap().gate().unwrap();
                gate.write(name, Token::new(n).unwrap(), b"v").await.unwrap()
            }
        };
        let (write, late) = (gate(&lock), gate(&other));
        let reader = other.fencing().unwrap().gate().unwrap();
        for n in 0..100 {
            let name = LockName::new(format!("r{n}")).unwrap();
            let done = AtomicBool::new(false);
            let writing = async {
                let (new, _) = futures::future::join(write(&name, 9), late(&name, 4)).await;
                assert!(new.is_admitted());
                done.store(true, Ordering::Relaxed);
            };
            let reading = async {
                while !done.load(Ordering::Relaxed) {
                    if let Some(seen) = reader.read(&name).await.unwrap() {
                        assert_eq!(seen.value, b"v");
                        assert!(seen.max_any.is_some());
                    }
                }
            };
            futures::future::join(writing, reading).await;
            let seen = reader.read(&name).await.unwrap().unwrap();
            assert_eq!(seen.max_exclusive, Token::new(9));
            let stale = reader.admit(&name, Token::new(8).unwrap(), Access::Shared).await;
            assert!(!stale.unwrap().is_admitted());
        }
    });
}

/// Operators end connections and statements, and the server is restarted, while two clients fight for a name.
#[test]
fn ended_connections_never_make_two_holders() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::MariaDb).await;
        let options = LockOptions::new().ttl(Duration::from_secs(5));
        let mut clients = Vec::new();
        for _ in 0..2 {
            let client = Client::builder(server.open(&runtime).await, runtime.clone());
            clients.push(client.defaults(options.clone()).build().unwrap());
        }
        let over = AtomicBool::new(false);
        let (inside, last, grants) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let contend = async |client: &Client| {
            let lock = client.lock("x").unwrap();
            while !over.load(Ordering::Relaxed) {
                let Ok(guard) = lock.acquire_timeout(Duration::from_secs(5)).await else {
                    continue;
                };
                let token = guard.token().unwrap().get();
                if guard.is_valid() {
                    let before = last.fetch_max(token, Ordering::SeqCst);
                    assert!(before < token, "{token} after {before}");
                    let alone = !inside.swap(true, Ordering::SeqCst);
                    smol::Timer::after(ms(2)).await;
                    assert!(alone || !guard.is_valid(), "two are inside");
                    inside.store(false, Ordering::SeqCst);
                    grants.fetch_add(1, Ordering::Relaxed);
                }
                let _ = guard.release().await;
            }
        };
        let trouble = async {
            let begun = Instant::now();
            for round in 0_u64.. {
                let hands = hands(&server);
                blocking(move || {
                    for (n, id) in (0_u64..).zip(hands.connections()?) {
                        // It may have ended meanwhile.
                        match (n + round) % 3 {
                            0 => drop(hands.kill_query(id)),
                            1 => drop(hands.ask(&format!("KILL {id}"))),
                            _ => {}
                        }
                    }
                    Ok(())
                })
                .await;
                match round {
                    8 => server.restart(false).await,
                    12 => server.restart(true).await,
                    _ => drop(smol::Timer::after(ms(100)).await),
                }
                if begun.elapsed() > Duration::from_secs(8) && round > 14 {
                    break;
                }
            }
            over.store(true, Ordering::Relaxed);
        };
        let all = clients.iter().flat_map(|client| [client; 3]).map(contend);
        futures::future::join(join_all(all), trouble).await;
        let grants = grants.load(Ordering::Relaxed);
        assert!(grants > 20, "only {grants}");
        for client in clients {
            let _ = client.close().await;
        }
    });
}

#[test]
fn a_server_that_logs_statements_is_refused_with_what_to_do() {
    run(On::Tokio, async |runtime| {
        let settings = &[
            ("log_bin", "log"),
            ("server_id", "1"),
            ("binlog_format", "STATEMENT"),
        ];
        let server = Server::with(Kind::MariaDb, settings).await;
        let refused = |e: dlock_core::Error| {
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
            assert!(e.to_string().contains("binlog_format"), "{e}");
        };
        refused(
            server
                .try_open(&server.url(), &runtime)
                .await
                .map(drop)
                .unwrap_err(),
        );
        server.ask("SET GLOBAL binlog_format = MIXED").await;
        let lock = server.open(&runtime).await;
        granted(&*lock, &ask("x")).await;
        // Connections keep what was set when they were made; those of now are ended, and the ones after them
        // refuse.
        server.ask("SET GLOBAL binlog_format = STATEMENT").await;
        server.end_all().await;
        within(ms(10_000), async {
            // Sent on a connection that has ended.
            while lock.attempt(&ask("y")).await.unwrap_err().kind() == ErrorKind::Unknown {}
        })
        .await;
        for a in [ask("y"), join("z", Mode::READER)] {
            refused(lock.attempt(&a).await.unwrap_err());
        }
        server.ask("SET GLOBAL binlog_format = ROW").await;
        granted(&*lock, &ask("y")).await;
    });
}

/// A client whose runtime stands still has opened a transaction: the server ends it after a second.
#[test]
fn a_paused_transaction_delays_others_by_a_second() {
    let server = smol::block_on(Server::start(Kind::MariaDb));
    let tokio = tokio::runtime::Builder::new_current_thread();
    let tokio = { tokio }.enable_all().build().unwrap();
    let lock = tokio.block_on(async {
        let runtime = dlock_core::runtime::Tokio::current().unwrap();
        let lock = server.open(&(runtime as Arc<dyn Runtime>)).await;
        // So that there is a row to be locked.
        granted(&*lock, &ask("x").with_mode(Mode::READER)).await;
        lock
    });
    // Its first half waits for the row, so that no answer lets it go on to the second within one poll.
    let mut hand = smol::block_on(server.hand());
    smol::block_on(hand.run(LOCKS_X)).unwrap();
    let reader = ask("x").with_mode(Mode::READER);
    let mut stopped = lock.attempt(&reader);
    tokio.block_on(async { assert!(futures::poll!(&mut stopped).is_pending()) });
    smol::block_on(server.wait_until_blocked(1));
    smol::block_on(hand.run("ROLLBACK")).unwrap();
    run(On::Smol, async |runtime| {
        // A transaction, which waits for the row: a minute, unless the server ends the other one.
        let other = patient(&server, &runtime).await;
        let began = std::time::Instant::now();
        queued(&*other, &join("x", Mode::Exclusive)).await;
        assert!(began.elapsed() < ms(30_000), "{:?}", began.elapsed());
    });
    // Its other half is refused, and nothing of it was done. Asked again it hears who is in line.
    let answer = tokio.block_on(stopped);
    assert!(matches!(answer, Ok(Attempt::Held(_))), "{answer:?}");
}
