//! `GET_LOCK`, of MariaDB: there is no MySQL here.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use dlock_core::{Client, ErrorKind, LossReason};
use dlock_sql::session::Config;
use sqlx::MySqlPool;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};

use super::{LONG, blocking, client, fresh, here, in_the_end, run, take_turns};
use dlock_testkit::{MariaDbServer, until};

/// Shared by the tests that do nothing to it. Never dropped; it ends with the program all the same.
static SERVER: LazyLock<MariaDbServer> = LazyLock::new(|| MariaDbServer::start().unwrap());

/// Of a pool that is used up by one connection: locks do not need it.
pub(super) async fn empty_database(server: &MariaDbServer) -> MySqlPool {
    let (url, name) = blocking(|| {
        let name = fresh();
        server.ask(&format!("CREATE DATABASE {name}"))?;
        Ok((server.url(), name))
    });
    let options: MySqlConnectOptions = url.parse().unwrap();
    MySqlPoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(options.database(&name))
}

fn long(pool: &MySqlPool) -> Config {
    Config::from_mysql_pool(pool).session_ttl(LONG).timeout(LONG)
}

pub(super) async fn open(pool: &MySqlPool) -> Client {
    client(long(pool).connect(here()).await.unwrap())
}

/// Waits until that many sessions wait for a `GET_LOCK`.
pub(super) fn wait_until_blocked(server: &MariaDbServer, count: i64) -> std::io::Result<()> {
    let sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'";
    until(&format!("{count} wait for locks"), LONG, || {
        Ok(server.number(sql)? == count)
    })
}

#[test]
fn handles_of_one_client_and_of_two_exclude_one_another() {
    run(|| async {
        let pool = empty_database(&SERVER).await;
        let (first, second) = (open(&pool).await, open(&pool).await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        for other in [&first, &second] {
            assert!(other.lock("a").unwrap().try_acquire().await.unwrap().is_none());
        }
        // Names that differ in case are two, though the server compares without regard to it.
        let beside = first.lock("A").unwrap().acquire().await.unwrap();
        assert!(beside.token() > guard.token());
        guard.release().await.unwrap();
        let next = second.lock("a").unwrap().try_acquire().await.unwrap().unwrap();
        assert!(next.token() > beside.token());
    });
}

#[test]
fn sixty_tasks_of_three_clients_take_turns() {
    run(|| async {
        let pool = empty_database(&SERVER).await;
        let clients = [open(&pool).await, open(&pool).await, open(&pool).await];
        assert_eq!(take_turns(&clients, 60, 5).await.len(), 300);
    });
}

#[test]
fn a_dropped_waiter_leaves_no_wait_and_no_lock_in_the_server() {
    run(|| async {
        let server = blocking(MariaDbServer::start);
        let pool = empty_database(&server).await;
        let (first, second) = (open(&pool).await, open(&pool).await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let lock = second.lock("a").unwrap();
        for _ in 0..3 {
            let waiting = tokio::spawn({
                let lock = lock.clone();
                async move { lock.acquire().await.map(drop) }
            });
            blocking(|| wait_until_blocked(&server, 1));
            let begun = Instant::now();
            waiting.abort();
            blocking(|| wait_until_blocked(&server, 0));
            // A turn is a third of the ttl: it was cut short.
            assert!(begun.elapsed() < LONG / 4, "{:?}", begun.elapsed());
        }
        // One connection has waited for all of them, and none is the pool's.
        assert!(blocking(|| server.connections()).len() <= 3);
        assert_eq!(pool.size(), 0);
        drop(pool.acquire().await.unwrap());
        guard.release().await.unwrap();
        let third = open(&pool).await;
        let guard = third.lock("a").unwrap().try_acquire().await.unwrap();
        assert!(guard.is_some(), "something of the waiter holds it");
    });
}

#[test]
fn a_holder_that_is_killed_is_told_at_the_next_ping() {
    run(|| async {
        let server = blocking(MariaDbServer::start);
        let pool = empty_database(&server).await;
        let client = open(&pool).await;
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        let token = guard.token();
        for id in blocking(|| server.connections()) {
            // Some are the test's own.
            let _ = tokio::task::block_in_place(|| server.kill_connection(id));
        }
        let reason = tokio::time::timeout(Duration::from_secs(5), guard.lost())
            .await
            .unwrap();
        assert_eq!(reason, LossReason::SessionLost);
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
        let again = in_the_end(&client.lock("a").unwrap(), LONG).await;
        assert!(again.token() > token);
    });
}

#[test]
fn a_restart_of_the_server_ends_locks_and_no_client() {
    run(|| async {
        let server = blocking(MariaDbServer::start);
        let pool = empty_database(&server).await;
        let backend = long(&pool).restart_grace(Duration::from_secs(1)).connect(here());
        let client = client(backend.await.unwrap());
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        let token = guard.token();
        blocking(|| server.restart());
        let reason = tokio::time::timeout(LONG, guard.lost()).await.unwrap();
        assert_eq!(reason, LossReason::SessionLost);
        let again = in_the_end(&client.lock("a").unwrap(), LONG).await;
        assert!(again.token() > token);
    });
}

#[test]
fn databases_of_one_server_have_nothing_to_do_with_one_another() {
    run(|| async {
        let (one, other) = (empty_database(&SERVER).await, empty_database(&SERVER).await);
        let (one, other) = (open(&one).await, open(&other).await);
        let _guard = one.lock("a").unwrap().acquire().await.unwrap();
        assert!(other.lock("a").unwrap().try_acquire().await.unwrap().is_some());
    });
}

#[test]
fn a_lock_is_two_statements() {
    run(|| async {
        let server = blocking(MariaDbServer::start);
        let client = open(&empty_database(&server).await).await;
        let lock = client.lock("a").unwrap();
        lock.acquire().await.unwrap().release().await.unwrap();
        let asked = || blocking(|| server.status("Questions"));
        let (one, two) = (asked(), asked());
        for _ in 0..20 {
            lock.acquire().await.unwrap().release().await.unwrap();
        }
        // Without what it costs to ask.
        assert_eq!(asked() - two - (two - one), 40);
    });
}

#[test]
fn a_hand_off_is_two_statements_however_many_wait() {
    run(|| async {
        let server = blocking(MariaDbServer::start);
        let pool = empty_database(&server).await;
        let clients = [open(&pool).await, open(&pool).await];
        for tasks in [4, 100] {
            let before = blocking(|| server.status("Questions"));
            let turns = 400 / tasks;
            let taken = take_turns(&clients, tasks, turns).await.len();
            let sent = blocking(|| server.status("Questions")) - before;
            let taken = i64::try_from(taken).unwrap();
            assert!(sent <= 2 * taken + 80, "{sent} for {taken} hand-offs to {tasks}");
        }
    });
}
