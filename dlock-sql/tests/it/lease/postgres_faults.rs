//! What becomes of locks in PostgreSQL when something goes wrong that other servers do not have, or have in
//! another way.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use dlock_core::spi::{Acquire, Attempt, Lock, Release, Released, RenewItem, RenewOutcome};
use dlock_core::{Access, ErrorKind, LockName, LossReason, Mode, Runtime, Token};
use dlock_sql::direct::{Failure, Tables, gate};
use dlock_sql::lease::Config;
use futures::FutureExt as _;
use futures::future;
use rustix::process::{Pid, Signal, kill_process};

use super::server::{Kind, Server};
use super::site::*;
use dlock_testkit::{PostgresServer, Proxy};

async fn start(settings: &'static [(&str, &str)]) -> (Server, Arc<PostgresServer>) {
    let server = Server::with(Kind::Postgres, settings).await;
    let Server::Postgres(hands) = &server else {
        panic!()
    };
    let hands = Arc::clone(hands);
    (server, hands)
}

/// One whose statements wait for a locked row longer than a test takes.
async fn patient(url: &str, runtime: &Arc<dyn Runtime>) -> Arc<dyn Lock> {
    let config = Config::from_url(url).unwrap().lock_wait(ms(60_000));
    config.connections(1).connect(runtime.clone()).await.unwrap()
}

/// Whether something was sent to the server that it has not read.
fn is_unread(hands: &PostgresServer) -> bool {
    let port = format!(":{:04X}", hands.address().port());
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    sockets.lines().any(|line| {
        let of: Vec<_> = line.split_whitespace().collect();
        let unread = of.get(4).and_then(|queues| queues.split(':').nth(1));
        of.get(1).is_some_and(|local| local.ends_with(&port)) && unread.is_some_and(|n| n != "00000000")
    })
}

async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    within(ms(60_000), async {
        while !is_so().await {
            smol::Timer::after(ms(10)).await;
        }
    })
    .await;
}

/// The server's processes for connections of programs, stopped as one is that has no share of a processor.
pub(crate) async fn stop_all(hands: &Arc<PostgresServer>) -> Vec<i32> {
    let of = Arc::clone(hands);
    let all = blocking(move || of.backends()).await;
    for pid in &all {
        kill_process(Pid::from_raw(*pid).unwrap(), Signal::STOP).unwrap();
    }
    all
}

/// A connection that had stood idle breaks with a try on it; the next copy of the try hears that the name is
/// held. The first one arrives when nobody holds it any more.
#[test]
fn a_copy_of_a_try_that_comes_after_the_answer_is_not_heard() {
    run(On::Tokio, async |runtime| {
        let (server, hands) = start(&[]).await;
        let other = server.open(&runtime).await;
        let (b, tries) = (ask("x"), ask("x"));
        granted(&*other, &b).await;

        let proxy = Proxy::start(hands.address()).unwrap();
        let before = Arc::clone(&hands);
        let strangers = blocking(move || before.backends()).await;
        let url = server
            .url()
            .replace(&hands.address().to_string(), &proxy.address().to_string());
        let lock = patient(&url, &runtime).await;
        let ours: Vec<_> = stop_all(&hands).await;
        for pid in &strangers {
            kill_process(Pid::from_raw(*pid).unwrap(), Signal::CONT).unwrap();
        }
        let cutting = async {
            until(async || is_unread(&hands)).await;
            proxy.cut();
        };
        let (answer, ()) = future::join(lock.attempt(&tries), cutting).await;
        assert!(matches!(answer, Ok(Attempt::Held(_))), "{answer:?}");
        let released = other.release(&b.key, Release::Now).await.unwrap();
        assert_eq!(released, Released::Released);

        let late: Vec<_> = ours.into_iter().filter(|pid| !strangers.contains(pid)).collect();
        for pid in &late {
            kill_process(Pid::from_raw(*pid).unwrap(), Signal::CONT).unwrap();
        }
        // They read what was sent, answer nobody, and end.
        until(async || {
            let hands = Arc::clone(&hands);
            let left = blocking(move || hands.backends()).await;
            !late.iter().any(|pid| left.contains(pid))
        })
        .await;
        granted(&*other, &ask("x")).await;
    });
}

/// The minimum hold of a reader expires, and so does the tombstone against a copy of its acquire.
#[test]
fn a_late_copy_of_an_acquire_is_refused_after_a_minimum_hold() {
    run(On::Tokio, async |runtime| {
        for mode in [Mode::READER, Mode::Exclusive] {
            let config = Config::from_postgres_options(postgres().await);
            let lock = config.connect(runtime.clone()).await.unwrap();
            // Sent, and not heard of. A server may answer in no time.
            let a = loop {
                let a = ask("x").with_mode(mode);
                if lock.attempt(&a).now_or_never().is_none() {
                    break a;
                }
                lock.release(&a.key, Release::Now).await.unwrap();
            };
            granted(&*lock, &a).await;
            let kept = lock.release(&a.key, Release::KeepFor(ms(50))).await.unwrap();
            assert_eq!(kept, Released::Released);
            let mut last = ask("x");
            until(async || {
                last = ask("x");
                matches!(lock.attempt(&last).await.unwrap(), Attempt::Granted(_))
            })
            .await;
            lock.release(&last.key, Release::Now).await.unwrap();
            let late = lock.attempt(&a).await.unwrap_err();
            assert_eq!(late.kind(), ErrorKind::Lost, "{mode:?} {late}");
            assert_eq!(late.loss_reason(), Some(LossReason::Refused), "{mode:?} {late}");
            granted(&*lock, &ask("x")).await;
        }
    });
}

/// Our statement waits for a name that another has locked, and then for a second name, whose holder waits for
/// the first.
#[test]
fn a_deadlock_is_unavailable_and_passes() {
    run(On::Tokio, async |runtime| {
        let (server, _) = start(&[("deadlock_timeout", "100ms")]).await;
        let lock: Arc<dyn Lock> = patient(&server.url(), &runtime).await;
        let all = ["a", "b"].map(ask);
        for a in &all {
            granted(&*lock, a).await;
        }
        let (mut first, mut second) = (server.hand().await, server.hand().await);
        let locks = |name: &str| format!("SELECT * FROM dlock_name WHERE name = '{name}' FOR UPDATE");
        first.run(&format!("BEGIN; {}", locks("a"))).await.unwrap();
        // The server ends the statement that detects the deadlock first.
        let patient = format!("SET deadlock_timeout = '1min'; BEGIN; {}", locks("b"));
        second.run(&patient).await.unwrap();
        let items = all.each_ref().map(|a| RenewItem::lease(a.key.clone(), TTL));
        let renewing = lock.renew().unwrap();
        let crossing = async {
            server.wait_until_blocked(1).await;
            let both = format!("{}; COMMIT", locks("a"));
            let opening = async {
                server.wait_until_blocked(2).await;
                first.run("COMMIT").await.unwrap();
            };
            future::join(second.run(&both), opening).await.0.unwrap();
        };
        let (outcomes, ()) = future::join(renewing.renew(&items), crossing).await;
        for outcome in &outcomes {
            let RenewOutcome::Failed(e) = outcome else {
                panic!("{outcome:?}")
            };
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
            assert!(e.to_string().contains("conflict with another"), "{e}");
        }
        for outcome in renewing.renew(&items).await {
            assert!(matches!(outcome, RenewOutcome::Renewed(_)), "{outcome:?}");
        }
    });
}

/// A transaction of the caller's that goes by an old snapshot is not let past the gate; begun anew it is.
#[test]
fn a_serialization_failure_at_the_gate_passes_when_begun_anew() {
    run(On::Tokio, async |runtime| {
        let pool = sqlx::PgPool::connect_with(postgres().await).await.unwrap();
        let lock = Config::from_postgres_pool(&pool).connect(runtime).await.unwrap();
        let (stock, t) = (LockName::new("stock").unwrap(), |n| Token::new(n).unwrap());
        let own = lock.fencing().unwrap().gate().unwrap();
        assert!(own.write(&stock, t(1), b"v").await.unwrap().is_admitted());
        let tables = Tables::default();
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ";
        let mut old = pool.begin_with(begin).await.unwrap();
        sqlx::raw_sql("SELECT 1 FROM dlock_fence")
            .execute(&mut *old)
            .await
            .unwrap();
        assert!(own.write(&stock, t(2), b"w").await.unwrap().is_admitted());
        let e = gate::admit_in(&mut old, &tables, &stock, t(3), Access::Exclusive)
            .await
            .unwrap_err();
        assert_eq!(e.failure(), Failure::Serialization, "{e}");
        old.rollback().await.unwrap();
        let mut new = pool.begin_with(begin).await.unwrap();
        let admitted = gate::admit_in(&mut new, &tables, &stock, t(3), Access::Exclusive).await;
        assert!(admitted.unwrap().is_admitted());
        new.commit().await.unwrap();
        pool.close().await;
    });
}

/// The rule reads in later statements than the one that locks, so it needs to see what was committed between
/// them.
#[test]
fn a_server_of_another_isolation_level_is_refused() {
    run(On::Tokio, async |runtime| {
        let (server, hands) = start(&[]).await;
        let config = Config::from_url(&server.url()).unwrap();
        let lock = config.behind_pooler().connect(runtime.clone()).await.unwrap();
        let a = ask("x").with_mode(Mode::READER);
        for level in ["repeatable read", "serializable"] {
            let of = Arc::clone(&hands);
            blocking(move || of.set("default_transaction_isolation", level)).await;
            // A connection hears of it when the server has told its process.
            let mut refused = None;
            until(async || {
                refused = lock.attempt(&a).await.err();
                refused.is_some()
            })
            .await;
            let e = refused.unwrap();
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
            assert!(e.to_string().contains("read committed"), "{e}");
            let config = Config::from_url(&server.url()).unwrap();
            let opened = config.behind_pooler().connect(runtime.clone());
            let e = opened.await.err().unwrap();
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
            assert!(e.to_string().contains("read committed"), "{e}");
            let of = Arc::clone(&hands);
            blocking(move || of.set("default_transaction_isolation", "read committed")).await;
            until(async || lock.attempt(&a).await.is_ok()).await;
            lock.release(&a.key, Release::Now).await.unwrap();
        }
    });
}

/// Rights that are taken away while something is held: it says so, nobody else gets in, and all goes on when
/// they are back.
#[test]
fn a_right_that_is_taken_away_is_told_as_such() {
    run(On::Tokio, async |runtime| {
        let (server, _) = start(&[]).await;
        let owner = server.open(&runtime).await;
        server
            .ask(
                "CREATE ROLE app LOGIN PASSWORD 'secret-of-app'; GRANT SELECT ON ALL TABLES IN SCHEMA \
                    public TO app; \
                 GRANT INSERT, UPDATE, DELETE ON dlock_name, dlock_entry, dlock_fence TO app; GRANT UPDATE \
                 ON dlock_meta TO app",
            )
            .await;
        let url = server.url_of("app", "secret-of-app");
        let lock = server.try_open(&url, &runtime).await.unwrap();
        let a = ask("x");
        granted(&*lock, &a).await;
        server.ask("REVOKE UPDATE ON dlock_name FROM app").await;
        let refused = |e: dlock_core::Error| {
            assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
            assert!(!format!("{e:?}").contains("secret-of-app"), "{e:?}");
        };
        refused(lock.attempt(&ask("x")).await.unwrap_err());
        refused(lock.attempt(&join_of("x")).await.unwrap_err());
        match renew(&*lock, RenewItem::lease(a.key.clone(), TTL)).await {
            RenewOutcome::Failed(e) => refused(e),
            other => panic!("{other:?}"),
        }
        refused(lock.release(&a.key, Release::Now).await.unwrap_err());
        refused(
            lock.abandon(std::slice::from_ref(&a.key))
                .await
                .remove(0)
                .unwrap_err(),
        );
        held(&*owner, &ask("x")).await;
        server.ask("GRANT UPDATE ON dlock_name TO app").await;
        let released = lock.release(&a.key, Release::Now).await.unwrap();
        assert_eq!(released, Released::Released);
        granted(&*owner, &ask("x")).await;
    });
}

fn join_of(name: &str) -> Acquire {
    join(name, Mode::READER)
}

/// The file of a table on a disk that takes nothing more: `/dev/full` reads as empty, and every write to it
/// fails as one to a full disk does.
#[test]
fn a_full_disk_is_unavailable_and_what_is_held_stays_so() {
    run(On::Tokio, async |runtime| {
        let (server, hands) = start(&[]).await;
        server.open(&runtime).await.close().await.unwrap();
        let file = server
            .ask("SELECT current_setting('data_directory') || '/' || pg_relation_filepath('dlock_entry')")
            .await;
        let file = file.trim().to_owned();
        let exchange = async |full: bool| {
            let (hands, file) = (Arc::clone(&hands), file.clone());
            blocking(move || {
                let (file, aside) = (Path::new(&file), format!("{file}.aside"));
                hands.stop_in_order()?;
                if full {
                    assert_eq!(std::fs::metadata(file)?.len(), 0, "the queue is empty");
                    std::fs::rename(file, &aside)?;
                    symlink("/dev/full", file)?;
                } else {
                    std::fs::remove_file(file)?;
                    std::fs::rename(&aside, file)?;
                }
                hands.start_again()
            })
            .await;
        };
        exchange(true).await;
        let lock = server.open(&runtime).await;
        let a = ask("x");
        let token = granted(&*lock, &a).await.token;
        for b in [join_of("x"), join("x", Mode::Exclusive), join_of("y")] {
            let e = lock.attempt(&b).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
            assert!(e.to_string().contains("no disk space"), "{e}");
        }
        held(&*lock, &ask("x")).await;
        assert_eq!(granted(&*lock, &a).await.token, token);
        assert!(matches!(
            renew(&*lock, RenewItem::lease(a.key.clone(), TTL)).await,
            RenewOutcome::Renewed(_)
        ));
        exchange(false).await;
        let b = join_of("x");
        until(async || match lock.attempt(&b).await {
            Ok(attempt) => matches!(attempt, Attempt::Queued(_)),
            Err(e) => {
                assert!(e.is_retryable() || e.kind() == ErrorKind::Unknown, "{e}");
                false
            }
        })
        .await;
        let released = lock.release(&a.key, Release::Now).await.unwrap();
        assert_eq!(released, Released::Released);
        assert!(until_asked(&*lock, &b).await > token.unwrap());
    });
}
