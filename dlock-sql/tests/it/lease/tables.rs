//! The tables: who may use them, whose they are, and what is left in them.

use dlock_core::spi::Release;
use dlock_core::{Access, Admission, ErrorKind, LockName, Mode, Token};

use super::server::{BOTH, Kind, Server};
use super::site::*;

#[test]
fn the_listed_rights_are_enough_for_all_but_making_the_tables() {
    for kind in BOTH {
        run(On::Tokio, async |runtime| {
            let server = Server::start(kind).await;
            let make = match kind {
                Kind::Postgres => "CREATE ROLE app LOGIN PASSWORD 'secret-of-app'",
                Kind::MariaDb => {
                    "CREATE USER app@'%' IDENTIFIED BY 'secret-of-app'; GRANT USAGE ON *.* TO app@'%'"
                }
            };
            server.ask(make).await;
            let url = server.url_of("app", "secret-of-app");
            let e = server.try_open(&url, &runtime).await.err().unwrap();
            assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{kind:?} {e}");
            let e = server
                .try_open(&server.url_of("app", "wrong-secret"), &runtime)
                .await
                .err()
                .unwrap();
            assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{kind:?} {e}");
            assert!(!format!("{e:?}").contains("wrong-secret"), "{e:?}");

            server.open(&runtime).await.close().await.unwrap();
            if let Kind::Postgres = kind {
                let e = server.try_open(&url, &runtime).await.err().unwrap();
                assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{kind:?} {e}");
            }
            let grant = match kind {
                Kind::Postgres => {
                    "GRANT USAGE ON SCHEMA public TO app; \
                     GRANT SELECT, INSERT, UPDATE, DELETE ON dlock_name, dlock_entry, dlock_fence TO app; \
                     GRANT SELECT, UPDATE ON dlock_meta TO app; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA \
                     public TO app"
                }
                Kind::MariaDb => "GRANT SELECT, INSERT, UPDATE, DELETE ON dlock.* TO app@'%'",
            };
            server.ask(grant).await;
            let lock = server.try_open(&url, &runtime).await.unwrap();
            let (a, b) = (ask("x"), join("x", Mode::READER));
            granted(&*lock, &a).await;
            queued(&*lock, &b).await;
            lock.release(&a.key, Release::Now).await.unwrap();
            assert!(asked(&*lock, &b).await.is_some());
            let watch = lock.watch().unwrap();
            drop(watch.watch(&a.key.name).await.unwrap());
            assert_eq!(watch.force_release(&a.key.name).await.unwrap(), 1);
            let gate = lock.fencing().unwrap().gate().unwrap();
            let (stock, token) = (LockName::new("stock").unwrap(), Token::new(3).unwrap());
            assert!(gate.write(&stock, token, b"v").await.unwrap().is_admitted());
            lock.abandon(&[b.key]).await.remove(0).unwrap();
        });
    }
}

#[test]
fn newer_and_foreign_tables_are_refused() {
    for kind in BOTH {
        run(On::Tokio, async |runtime| {
            let server = Server::start(kind).await;
            server.open(&runtime).await.close().await.unwrap();
            let url = server.url();
            server.ask("UPDATE dlock_meta SET schema_version = 99").await;
            let e = server.try_open(&url, &runtime).await.err().unwrap();
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
            assert!(e.to_string().contains("99"), "{e}");
            server.ask("DROP TABLE dlock_meta").await;
            server.ask("CREATE TABLE dlock_meta (mine INT)").await;
            server.ask("INSERT INTO dlock_meta VALUES (1)").await;
            let e = server.try_open(&url, &runtime).await.err().unwrap();
            assert_eq!(e.kind(), ErrorKind::BackendData, "{kind:?} {e}");
        });
    }
}

#[test]
fn a_missing_table_is_reported_as_such() {
    for kind in BOTH {
        run(On::Tokio, async |runtime| {
            let server = Server::start(kind).await;
            let lock = server.open(&runtime).await;
            server.ask("ALTER TABLE dlock_name RENAME TO elsewhere").await;
            let e = lock.attempt(&ask("x")).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::BackendData, "{kind:?} {e}");
            server.ask("ALTER TABLE elsewhere RENAME TO dlock_name").await;
            granted(&*lock, &ask("x")).await;
        });
    }
}

#[test]
fn a_fence_that_no_dlock_wrote_is_told_of_and_left_as_it_is() {
    for kind in BOTH {
        run(On::Tokio, async |runtime| {
            let server = Server::start(kind).await;
            let lock = server.open(&runtime).await;
            let gate = lock.fencing().unwrap().gate().unwrap();
            let (stock, token) = (LockName::new("stock").unwrap(), Token::new(7).unwrap());
            let first = gate.write(&stock, Token::new(1).unwrap(), b"as it was").await;
            assert!(first.unwrap().is_admitted());
            for spoilt in [
                "10, max_any = 5",
                "1, max_any = NULL",
                "NULL, max_any = -5",
                "0, max_any = 3",
            ] {
                server
                    .ask(&format!("UPDATE dlock_fence SET max_exclusive = {spoilt}"))
                    .await;
                let e = gate.write(&stock, token, b"another").await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::BackendData, "{kind:?} {spoilt} {e}");
                let kept = server
                    .ask("SELECT count(*) FROM dlock_fence WHERE max_any = 7 OR length(value) = 7")
                    .await;
                assert_eq!(kept.trim(), "0", "{kind:?} {spoilt}");
            }
        });
    }
}

#[test]
fn what_dead_waiters_leave_is_swept_and_tokens_go_on() {
    for kind in BOTH {
        run(On::Tokio, async |runtime| {
            let server = Server::start(kind).await;
            let lock = server.open_sweeping(&runtime).await;
            let a = ask("dead");
            let token = granted(&*lock, &a).await.token;
            for _ in 0..3 {
                queued(&*lock, &join("dead", Mode::Exclusive)).await;
            }
            queued(&*lock, &join("dead", Mode::READER)).await;
            lock.abandon(&[ask("buried").key]).await.remove(0).unwrap();
            // All of them died an hour ago. A raised token is larger than the clock will be.
            let fencing = lock.fencing().unwrap();
            let high = Token::new(1 << 60).unwrap();
            fencing.raise(&a.key, high).await.unwrap();
            let ago = match kind {
                Kind::Postgres => {
                    "UPDATE dlock_name SET ends = ends - interval '1 hour', earliest = earliest - interval \
                        '1 hour'; \
                     UPDATE dlock_entry SET ends = ends - interval '1 hour'; UPDATE dlock_meta SET swept = \
                     swept - interval '1 hour'"
                }
                Kind::MariaDb => {
                    "UPDATE dlock_name SET ends = ends - 3600000000; UPDATE dlock_entry SET ends = ends - \
                        3600000000; \
                     UPDATE dlock_meta SET swept = swept - 3600000000"
                }
            };
            server.ask(ago).await;
            // A client that releases something sweeps now and then.
            let left = "SELECT (SELECT count(*) FROM dlock_entry) + (SELECT count(*) FROM dlock_name WHERE \
                name <> 'other')";
            within(ms(30_000), async {
                loop {
                    let b = ask("other");
                    granted(&*lock, &b).await;
                    lock.release(&b.key, Release::Now).await.unwrap();
                    if server.ask(left).await == "0" {
                        break;
                    }
                    // What is settled now was in use until now.
                    server.ask(ago).await;
                    smol::Timer::after(ms(50)).await;
                }
            })
            .await;
            let next = granted(&*lock, &ask("dead")).await.token;
            assert!(next > token && next > Some(high), "{kind:?}: {next:?}");
        });
    }
}

#[test]
fn a_gate_in_a_transaction_is_the_same_gate() {
    use dlock_sql::direct::{Tables, gate};
    use dlock_sql::lease::Config;
    let t = |n| Token::new(n).unwrap();
    macro_rules! check {
        ($lock:expr, $pool:expr) => {{
            let (lock, pool) = ($lock, $pool);
            let stock = LockName::new("stock").unwrap();
            let theirs = lock.fencing().unwrap().gate().unwrap();
            assert!(theirs.write(&stock, t(5), b"v").await.unwrap().is_admitted());
            let tables = Tables::default();
            let mut tx = pool.begin().await.unwrap();
            let late = gate::admit_in(&mut tx, &tables, &stock, t(4), Access::Exclusive)
                .await
                .unwrap();
            assert_eq!(late, Admission::Refused { highest: t(5) });
            tx.rollback().await.unwrap();
            // What is rolled back was not admitted.
            let mut tx = pool.begin().await.unwrap();
            assert!(
                gate::admit_in(&mut tx, &tables, &stock, t(9), Access::Exclusive)
                    .await
                    .unwrap()
                    .is_admitted()
            );
            tx.rollback().await.unwrap();
            let mut tx = pool.begin().await.unwrap();
            assert!(
                gate::admit_in(&mut tx, &tables, &stock, t(7), Access::Shared)
                    .await
                    .unwrap()
                    .is_admitted()
            );
            // Another one waits for our row, and then sees our token.
            let older = theirs.write(&stock, t(6), b"late");
            let (older, committed) = futures::future::join(older, async {
                smol::Timer::after(ms(200)).await;
                tx.commit().await
            })
            .await;
            committed.unwrap();
            assert_eq!(older.unwrap(), Admission::Refused { highest: t(7) });
            let seen = theirs.read(&stock).await.unwrap().unwrap();
            assert_eq!(
                (seen.value.as_slice(), seen.max_exclusive, seen.max_any),
                (&b"v"[..], Some(t(5)), Some(t(7)))
            );
            let mut tx = pool.begin().await.unwrap();
            let e = gate::admit_in(&mut tx, &tables, &stock, t(u64::MAX), Access::Shared).await;
            assert_eq!(e.unwrap_err().kind(), ErrorKind::InvalidInput);
            drop(tx);
            pool.close().await;
        }};
    }
    run(On::Tokio, async |runtime| {
        let pool = sqlx::PgPool::connect_with(postgres().await).await.unwrap();
        check!(
            Config::from_postgres_pool(&pool).connect(runtime).await.unwrap(),
            pool
        );
    });
    run(On::Tokio, async |runtime| {
        let pool = sqlx::MySqlPool::connect_with(mysql().await).await.unwrap();
        check!(
            Config::from_mysql_pool(&pool).connect(runtime).await.unwrap(),
            pool
        );
    });
}
