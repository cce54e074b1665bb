//! Requests that go out as one statement because others were on their way: each is as good as alone.

use std::sync::Arc;

use dlock_core::spi::{Acquire, Attempt, Lock, Release, Released};
use dlock_core::{ErrorKind, Result, Runtime};
use dlock_sql::lease::Config;
use futures::FutureExt as _;
use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process};

use dlock_testkit::PoolMode;

use super::counts::{asked_meanwhile, start};
use super::pooler;
use super::postgres_faults::stop_all;
use super::server::{Hand, Kind, Server};
use super::site::*;

const MANY: i64 = 200;
const CONNECTIONS: usize = 8;

fn all() -> Vec<Acquire> {
    (0..MANY).map(|n| ask(&format!("name-{n}"))).collect()
}

async fn acquire_all(lock: &dyn Lock, all: &[Acquire]) -> Vec<Result<Attempt>> {
    join_all(all.iter().map(|a| lock.attempt(a))).await
}

async fn release_all(lock: &dyn Lock, all: &[Acquire]) -> Vec<Result<Released>> {
    join_all(all.iter().map(|a| lock.release(&a.key, Release::Now))).await
}

/// Makes the rows of the names.
async fn used(lock: &dyn Lock) {
    let all = all();
    assert!(acquire_all(lock, &all).await.iter().all(is_granted));
    let released = release_all(lock, &all).await;
    assert!(released.into_iter().all(|r| r.unwrap() == Released::Released));
}

fn is_granted(answer: &Result<Attempt>) -> bool {
    matches!(answer, Ok(Attempt::Granted(_)))
}

#[test]
fn two_hundred_requests_are_a_few_statements() {
    run(On::Tokio, async |runtime| {
        let (server, _) = start(Kind::Postgres, &runtime).await;
        let lock = patient(&server, runtime).await;
        used(&*lock).await;
        let (all, mut hand) = (all(), hand_in_the_way(&server).await);
        let asked = asked_meanwhile(&server, async || {
            hand.run(HELD_UP).await.unwrap();
            let asking = {
                let (lock, all) = (lock.clone(), all.clone());
                tokio::spawn(async move { acquire_all(&*lock, &all).await })
            };
            // Those that went alone. The others come meanwhile, and some have left together.
            until_held_up(&server, 4).await;
            tokio::time::sleep(ms(100)).await;
            hand.run("ROLLBACK").await.unwrap();
            assert!(asking.await.unwrap().iter().all(is_granted));
        });
        let asked = asked.await;
        assert!(asked <= 4 + 2 * (MANY / 64 + 1), "{asked}");
    });
}

/// In one statement are those of names that are held, free and just being changed, and two of one name.
#[test]
fn each_is_answered_as_it_would_be_alone() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::Postgres).await;
        let other = server.open(&runtime).await;
        let lock = patient(&server, runtime).await;
        used(&*lock).await;
        granted(&*other, &ask("name-5")).await;
        let mut hand = server.hand().await;
        hand.run("BEGIN; SELECT * FROM dlock_name WHERE name = 'name-6' FOR UPDATE")
            .await
            .unwrap();
        let mut all = all();
        all[9] = ask("name-8");
        let mut asking: Vec<_> = all
            .iter()
            .map(|a| {
                let (lock, a) = (lock.clone(), a.clone());
                tokio::spawn(async move { lock.attempt(&a).await })
            })
            .collect();
        let waiting = asking.remove(6);
        let mut held = Vec::new();
        for (a, answer) in all.iter().filter(|a| a.key != all[6].key).zip(asking) {
            match within(ms(30_000), answer).await.unwrap().unwrap() {
                Attempt::Granted(_) => {}
                Attempt::Held(_) => held.push(a.key.name.to_string()),
                other => panic!("{}: {other:?}", a.key.name),
            }
        }
        assert_eq!(held, ["name-5", "name-8"]);
        assert!(!waiting.is_finished());
        hand.run("ROLLBACK").await.unwrap();
        assert!(is_granted(&waiting.await.unwrap()));
        let released = release_all(&*lock, &all).await;
        let not_held = released
            .into_iter()
            .filter(|r| *r.as_ref().unwrap() == Released::NotHeld);
        assert_eq!(not_held.count(), 2);
    });
}

#[test]
fn one_that_fails_costs_the_others_nothing() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::Postgres).await;
        let lock = server.open(&runtime).await;
        used(&*lock).await;
        server
            .ask("UPDATE dlock_name SET phase = 77 WHERE name = 'name-7'")
            .await;
        let all = all();
        for (n, answer) in acquire_all(&*lock, &all).await.into_iter().enumerate() {
            match (n, answer) {
                (7, answer) => assert_eq!(answer.unwrap_err().kind(), ErrorKind::BackendData),
                (_, answer) => assert!(is_granted(&answer), "{n}: {answer:?}"),
            }
        }
        for (n, answer) in release_all(&*lock, &all).await.into_iter().enumerate() {
            assert!(n == 7 || answer.unwrap() == Released::Released, "{n}");
        }
    });
}

/// Those that are dropped before they went out are not sent; either way the others have their answers.
#[test]
fn one_that_is_dropped_costs_the_others_nothing() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::Postgres).await;
        let lock = server.open(&runtime).await;
        used(&*lock).await;
        for sent in [false, true] {
            let stopped = stop_all(postgres(&server)).await;
            let all = all();
            let mut asked: Vec<_> = all.iter().map(|a| Some(lock.attempt(a))).collect();
            for one in asked.iter_mut().flatten() {
                assert!(one.as_mut().now_or_never().is_none());
            }
            if sent {
                tokio::time::sleep(ms(50)).await;
            }
            // The first one among them, on whose account the others travel.
            asked.iter_mut().step_by(3).for_each(|one| *one = None);
            go_on(&stopped);
            for (n, one) in asked.into_iter().enumerate() {
                if let Some(one) = one {
                    assert!(is_granted(&one.await), "{n}");
                }
            }
            let dropped: Vec<_> = all.iter().step_by(3).map(|a| a.key.clone()).collect();
            assert!(lock.abandon(&dropped).await.iter().all(Result::is_ok));
            release_all(&*lock, &all).await;
            assert_eq!(
                server
                    .ask("SELECT count(*) FROM dlock_name WHERE phase <> 0")
                    .await,
                "0"
            );
        }
    });
}

/// A server that is silent for ever is waited for by those who asked, as long as they do.
#[test]
fn abandoned_requests_delay_no_other() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::Postgres).await;
        let lock = patient(&server, runtime).await;
        used(&*lock).await;
        let (all, others) = (
            all(),
            (0..MANY).map(|n| ask(&format!("other-{n}"))).collect::<Vec<_>>(),
        );
        for _ in 0..2 {
            assert!(acquire_all(&*lock, &others).await.iter().all(is_granted));
            release_all(&*lock, &others).await;
        }
        let stopped = stop_all(postgres(&server)).await;
        let asking = acquire_all(&*lock, &all);
        assert!(tokio::time::timeout(ms(300), asking).await.is_err());
        // One connection after the other turns out to be no good.
        let asking = async {
            while tokio::time::timeout(ms(300), acquire_all(&*lock, &others))
                .await
                .is_err()
            {}
        };
        within(ms(30_000), asking).await;
        go_on(&stopped);
    });
}

#[test]
fn an_answer_that_is_lost_leaves_each_of_them_unknown() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::Postgres).await;
        let lock = patient(&server, runtime).await;
        let mut hand = hand_in_the_way(&server).await;
        used(&*lock).await;
        hand.run(HELD_UP).await.unwrap();
        let asking = {
            let lock = lock.clone();
            tokio::spawn(async move { acquire_all(&*lock, &all()).await })
        };
        // Four that went alone, and some that left together.
        until_held_up(&server, 5).await;
        server.restart(true).await;
        let mut unknown = 0;
        for (n, answer) in asking.await.unwrap().into_iter().enumerate() {
            match answer.unwrap_err().kind() {
                ErrorKind::Unknown => unknown += 1,
                // It was to leave with the next ones.
                kind => assert_eq!(kind, ErrorKind::Unavailable, "{n}"),
            }
        }
        assert!(unknown > 4, "{unknown}");
    });
}

#[test]
fn a_statement_that_takes_long_keeps_the_next_waiting_no_longer() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::Postgres).await;
        let lock = patient(&server, runtime).await;
        used(&*lock).await;
        let mut hand = hand_in_the_way(&server).await;
        hand.run(HELD_UP).await.unwrap();
        let asking = tokio::spawn(async move { acquire_all(&*lock, &all()).await });
        // Four that went alone, and one statement after the other.
        until_held_up(&server, CONNECTIONS).await;
        hand.run("ROLLBACK").await.unwrap();
        assert!(asking.await.unwrap().iter().all(is_granted));
    });
}

#[test]
fn what_is_on_its_way_at_the_close_goes_on_to_its_end() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::Postgres).await;
        let lock = patient(&server, runtime).await;
        used(&*lock).await;
        let all = all();
        assert!(acquire_all(&*lock, &all).await.iter().all(is_granted));
        let mut hand = hand_in_the_way(&server).await;
        hand.run(HELD_UP).await.unwrap();
        let releasing = {
            let lock = lock.clone();
            tokio::spawn(async move { release_all(&*lock, &all).await })
        };
        // Four that went alone, and some that left together.
        until_held_up(&server, 5).await;
        lock.close().await.unwrap();
        hand.run("ROLLBACK").await.unwrap();
        let mut kept = 0;
        for answer in releasing.await.unwrap() {
            match answer {
                Ok(released) => assert_eq!(released, Released::Released),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
                    kept += 1;
                }
            }
        }
        let held = server
            .ask("SELECT count(*) FROM dlock_name WHERE phase <> 0")
            .await;
        assert_eq!(held, kept.to_string());
        assert!(kept < MANY - 4, "{kept}");
    });
}

/// Values are written into the text, and bytes may come in another form than usual.
#[test]
fn behind_a_pooler_they_travel_together_as_well() {
    run(On::Tokio, async |runtime| {
        let (server, pooler) = pooler::start(PoolMode::Transaction).await;
        let escape = "ALTER ROLE CURRENT_USER SET bytea_output = escape";
        let server = blocking(move || server.ask(escape).map(|_| Arc::new(server))).await;
        let lock = pooler::open(&pooler, &runtime).await;
        let mut all = all();
        for (n, a) in all.iter_mut().enumerate().step_by(3) {
            a.owner = Some(format!("it's \\ {n}").into());
        }
        for _ in 0..3 {
            assert!(acquire_all(&*lock, &all).await.iter().all(is_granted));
            let owner = "SELECT convert_from(name, 'UTF8'), owner FROM dlock_name WHERE name = 'name-3'";
            let at = server.clone();
            assert_eq!(blocking(move || at.ask(owner)).await, r"name-3|it's \ 3");
            assert!(
                acquire_all(&*lock, &self::all())
                    .await
                    .iter()
                    .all(|a| matches!(a, Ok(Attempt::Held(_))))
            );
            let released = release_all(&*lock, &all).await;
            assert!(released.into_iter().all(|r| r.unwrap() == Released::Released));
        }
    });
}

/// From here on, and until `ROLLBACK`, statements that change rows of names wait.
const HELD_UP: &str = "BEGIN; SELECT pg_advisory_xact_lock(1)";

/// A hand that can hold changes of rows up. A table that is locked would hold a new connection up as well,
/// which has its statements prepared and tried: that one had sent nothing for a caller.
async fn hand_in_the_way(server: &Server) -> Hand {
    let mut hand = server.hand().await;
    let trigger = "CREATE FUNCTION held_up() RETURNS trigger LANGUAGE plpgsql AS \
        'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END'; \
        CREATE TRIGGER held_up BEFORE UPDATE ON dlock_name FOR EACH ROW EXECUTE FUNCTION held_up()";
    hand.run(trigger).await.unwrap();
    hand
}

/// Until so many statements are held up, whatever else waits for a moment.
async fn until_held_up(server: &Server, many: usize) {
    let held_up = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'";
    within(ms(10_000), async {
        while server.ask(held_up).await.parse::<usize>().unwrap() < many {}
    })
    .await;
}

/// One whose statements wait for a locked row longer than a test takes.
async fn patient(server: &Server, runtime: Arc<dyn Runtime>) -> Arc<dyn Lock> {
    let config = Config::from_url(&server.url()).unwrap().lock_wait(ms(60_000));
    config.connections(CONNECTIONS).connect(runtime).await.unwrap()
}

fn postgres(server: &Server) -> &Arc<dlock_testkit::PostgresServer> {
    let Server::Postgres(server) = server else {
        panic!()
    };
    server
}

fn go_on(stopped: &[i32]) {
    for pid in stopped {
        kill_process(Pid::from_raw(*pid).unwrap(), Signal::CONT).unwrap();
    }
}
