//! Advisory locks of PostgreSQL.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use dlock_core::spi::Lock as _;
use dlock_core::{Client, ErrorKind, LockName, LossReason};
use dlock_sql::session::Config;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use super::{LONG, blocking, client, fresh, here, in_the_end, run, take_turns};
use dlock_testkit::{PgBouncer, PoolMode, PostgresOptions, PostgresServer};

/// Shared by the tests that do nothing to it. Never dropped; it ends with the program all the same.
static SERVER: LazyLock<PostgresServer> = LazyLock::new(|| PostgresServer::start().unwrap());

/// Of a pool that is used up by one connection: locks do not need it.
pub(super) fn pool(url: &str, database: Option<&str>) -> PgPool {
    let mut options: PgConnectOptions = url.parse().unwrap();
    if let Some(database) = database {
        options = options.database(database);
    }
    PgPoolOptions::new().max_connections(1).connect_lazy_with(options)
}

async fn empty_database() -> PgPool {
    let (url, name) = blocking(|| {
        let name = fresh();
        SERVER.ask_in("postgres", &format!("CREATE DATABASE {name}"))?;
        Ok((SERVER.url(), name))
    });
    pool(&url, Some(&name))
}

fn long(pool: &PgPool) -> Config {
    Config::from_postgres_pool(pool).session_ttl(LONG).timeout(LONG)
}

pub(super) async fn open(pool: &PgPool) -> Client {
    client(long(pool).connect(here()).await.unwrap())
}

/// The session that holds the only advisory lock.
fn holder(server: &PostgresServer) -> std::io::Result<i32> {
    let pid = server.number("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted")?;
    i32::try_from(pid).map_err(std::io::Error::other)
}

#[test]
fn handles_of_one_client_and_of_two_exclude_one_another() {
    run(|| async {
        let pool = empty_database().await;
        let (first, second) = (open(&pool).await, open(&pool).await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        for other in [&first, &second] {
            assert!(other.lock("a").unwrap().try_acquire().await.unwrap().is_none());
        }
        let beside = first.lock("b").unwrap().acquire().await.unwrap();
        assert!(beside.token() > guard.token());
        guard.release().await.unwrap();
        let next = second.lock("a").unwrap().try_acquire().await.unwrap().unwrap();
        assert!(next.token() > beside.token());
    });
}

#[test]
fn sixty_tasks_of_three_clients_take_turns() {
    run(|| async {
        let pool = empty_database().await;
        let clients = [open(&pool).await, open(&pool).await, open(&pool).await];
        assert_eq!(take_turns(&clients, 60, 5).await.len(), 300);
    });
}

#[test]
fn clients_without_a_connection_to_wait_on_get_their_turn_too() {
    run(|| async {
        let pool = empty_database().await;
        let backend = long(&pool).most_waiting(0).connect(here()).await.unwrap();
        let clients = [client(backend), open(&pool).await];
        assert_eq!(take_turns(&clients, 6, 3).await.len(), 18);
    });
}

#[test]
fn a_dropped_waiter_leaves_no_wait_and_no_lock_in_the_server() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let pool = pool(&server.url(), None);
        let (first, second) = (open(&pool).await, open(&pool).await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let lock = second.lock("a").unwrap();
        for _ in 0..3 {
            let waiting = tokio::spawn({
                let lock = lock.clone();
                async move { lock.acquire().await.map(drop) }
            });
            blocking(|| server.wait_until_blocked(1, LONG));
            let begun = Instant::now();
            waiting.abort();
            blocking(|| server.wait_until_blocked(0, LONG));
            // A turn is a third of the ttl: it was cut short.
            assert!(begun.elapsed() < LONG / 4, "{:?}", begun.elapsed());
        }
        // One connection has waited for all of them, and none is the pool's.
        assert!(blocking(|| server.backends()).len() <= 3);
        assert_eq!(pool.size(), 0);
        drop(pool.acquire().await.unwrap());
        guard.release().await.unwrap();
        let third = open(&pool).await;
        let guard = third.lock("a").unwrap().try_acquire().await.unwrap();
        assert!(guard.is_some(), "something of the waiter holds it");
    });
}

#[test]
fn a_wait_limit_takes_the_waiter_out() {
    run(|| async {
        let pool = empty_database().await;
        let (first, second) = (open(&pool).await, open(&pool).await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let late = second
            .lock("a")
            .unwrap()
            .acquire_timeout(Duration::from_millis(300))
            .await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Timeout);
        guard.release().await.unwrap();
        assert!(first.lock("a").unwrap().try_acquire().await.unwrap().is_some());
    });
}

#[test]
fn waits_go_on_over_many_turns() {
    run(|| async {
        let pool = empty_database().await;
        let quick = Config::from_postgres_pool(&pool)
            .session_ttl(Duration::from_secs(1))
            .timeout(LONG);
        let first = client(quick.clone().connect(here()).await.unwrap());
        let second = client(quick.connect(here()).await.unwrap());
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let lock = second.lock("a").unwrap();
        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
        // Three ttls: the session is kept alive, and the wait is sent anew nine times.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(guard.is_valid() && !waiting.is_finished());
        let token = guard.token();
        guard.release().await.unwrap();
        let next = waiting.await.unwrap();
        assert!(next.token() > token && next.is_valid());
    });
}

#[test]
fn a_holder_whose_backend_is_terminated_is_told_at_once() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let pool = pool(&server.url(), None);
        let (first, second) = (open(&pool).await, open(&pool).await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let token = guard.token();
        let lock = second.lock("a").unwrap();
        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
        blocking(|| server.wait_until_blocked(1, LONG));
        blocking(|| server.terminate(holder(&server)?));
        let reason = tokio::time::timeout(Duration::from_secs(5), guard.lost())
            .await
            .unwrap();
        assert_eq!(reason, LossReason::SessionLost);
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
        let next = waiting.await.unwrap();
        assert!(next.token() > token);
        // The same client goes on.
        let token = next.token();
        next.release().await.unwrap();
        let again = in_the_end(&first.lock("a").unwrap(), LONG).await;
        assert!(again.token() > token);
    });
}

#[test]
fn a_holder_that_waited_is_told_as_well() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let pool = pool(&server.url(), None);
        let (first, second) = (open(&pool).await, open(&pool).await);
        let before = first.lock("a").unwrap().acquire().await.unwrap();
        let lock = second.lock("a").unwrap();
        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
        blocking(|| server.wait_until_blocked(1, LONG));
        before.release().await.unwrap();
        let guard = waiting.await.unwrap();
        let other = second.lock("b").unwrap().acquire().await.unwrap();
        let of_a = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted ORDER BY pid";
        let pids = blocking(|| server.ask(of_a));
        assert_eq!(pids.lines().count(), 2, "one for each of the two: {pids}");
        // Which of them it is shows by who is lost.
        let pid = pids.lines().last().unwrap().parse().unwrap();
        blocking(|| server.terminate(pid));
        let lost = async {
            tokio::select! {
                reason = guard.lost() => (reason, other.is_valid()),
                reason = other.lost() => (reason, guard.is_valid()),
            }
        };
        let (reason, the_other) = tokio::time::timeout(Duration::from_secs(5), lost).await.unwrap();
        assert_eq!(reason, LossReason::SessionLost);
        assert!(the_other, "it hangs on another connection");
    });
}

#[test]
fn a_restart_of_the_server_ends_locks_and_no_client() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let pool = pool(&server.url(), None);
        let backend = long(&pool).restart_grace(Duration::from_secs(1)).connect(here());
        let client = client(backend.await.unwrap());
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        let token = guard.token();
        blocking(|| server.restart());
        let reason = tokio::time::timeout(Duration::from_secs(5), guard.lost())
            .await
            .unwrap();
        assert_eq!(reason, LossReason::SessionLost);
        let again = in_the_end(&client.lock("a").unwrap(), LONG).await;
        assert!(again.token() > token);
    });
}

#[test]
fn a_server_that_stands_still_costs_the_lock_in_time() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let pool = pool(&server.url(), None);
        let ttl = Duration::from_secs(2);
        let backend = Config::from_postgres_pool(&pool)
            .session_ttl(ttl)
            .connect(here())
            .await
            .unwrap();
        let client = client(backend);
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        let begun = Instant::now();
        blocking(|| server.pause());
        let reason = tokio::time::timeout(LONG, guard.lost()).await.unwrap();
        assert!(begun.elapsed() < 2 * ttl, "{:?}", begun.elapsed());
        assert!(
            matches!(reason, LossReason::Expired | LossReason::SessionLost),
            "{reason:?}"
        );
        blocking(|| server.go_on());
        in_the_end(&client.lock("a").unwrap(), LONG).await;
    });
}

#[test]
fn a_pooler_is_refused() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        // One that refuses to know the settings of a session, and one that drops them.
        for mode in [PoolMode::Transaction, PoolMode::Session] {
            let pooler = blocking(|| PgBouncer::start(&server, mode, 2));
            for deaf in [false, true] {
                if deaf {
                    blocking(|| pooler.restart_deaf_to_options());
                }
                let refused = long(&pool(&pooler.url(), None))
                    .connect(here())
                    .await
                    .unwrap_err();
                assert_eq!(
                    refused.kind(),
                    ErrorKind::Unsupported,
                    "{mode:?} {deaf}: {refused:?}"
                );
                assert!(refused.to_string().contains("pooler"), "{refused}");
            }
        }
    });
}

#[test]
fn locks_of_transactions_work_behind_a_pooler() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let pooler = blocking(|| PgBouncer::start(&server, PoolMode::Transaction, 2));
        let direct = open(&pool(&server.url(), None)).await;
        let options: PgConnectOptions = pooler.url().parse().unwrap();
        // Statements of one transaction are all of one session, but none is remembered for another.
        let shared = PgPoolOptions::new()
            .max_connections(2)
            .connect_lazy_with(options.statement_cache_capacity(0));
        let locks = long(&shared).transaction_locks(here()).await.unwrap();
        let name = LockName::new("a").unwrap();
        for _ in 0..5 {
            let (mut one, mut other) = (shared.begin().await.unwrap(), shared.begin().await.unwrap());
            let token = locks.lock(&mut one, &name).await.unwrap();
            assert_eq!(locks.try_lock(&mut other, &name).await.unwrap(), None);
            assert!(direct.lock("a").unwrap().try_acquire().await.unwrap().is_none());
            one.commit().await.unwrap();
            assert!(locks.try_lock(&mut other, &name).await.unwrap() > Some(token));
            other.rollback().await.unwrap();
        }
        let guard = direct.lock("a").unwrap().try_acquire().await.unwrap();
        assert!(guard.is_some(), "something is left of them");
    });
}

#[test]
fn a_transaction_and_a_session_exclude_one_another() {
    run(|| async {
        let pool = empty_database().await;
        let client = open(&pool).await;
        let in_transactions = long(&pool).transaction_locks(here()).await.unwrap();
        let name = LockName::new("a").unwrap();
        let mut tx = pool.begin().await.unwrap();
        let token = in_transactions.lock(&mut tx, &name).await.unwrap();
        assert!(client.lock("a").unwrap().try_acquire().await.unwrap().is_none());
        tx.commit().await.unwrap();
        let guard = client.lock("a").unwrap().try_acquire().await.unwrap().unwrap();
        assert!(guard.token() > Some(token));
        let mut tx = pool.begin().await.unwrap();
        assert_eq!(in_transactions.try_lock(&mut tx, &name).await.unwrap(), None);
    });
}

#[test]
fn a_sequence_that_sessions_cache_is_refused() {
    run(|| async {
        let pool = empty_database().await;
        let made = sqlx::query("CREATE SEQUENCE dlock_session_token CACHE 10");
        made.execute(&pool).await.unwrap();
        let refused = long(&pool).connect(here()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BackendData, "{refused:?}");
    });
}

#[test]
fn what_is_claimed_is_what_the_server_knows() {
    run(|| async {
        let pool = empty_database().await;
        let backend = long(&pool).connect(here()).await.unwrap();
        let claims = backend.capabilities();
        assert_eq!((claims.name_hash_bits, claims.min_ttl), (Some(64), LONG));
        let client = client(backend);
        for refused in [
            client.inspect("a").await.map(drop),
            client.force_release("a").await.map(drop),
        ] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
        }
    });
}

/// How many statements were carried out, but for those of `psql`.
fn statements(server: &PostgresServer) -> usize {
    let log = server.log();
    log.lines().filter(|line| line.contains("execute ")).count()
}

#[test]
fn a_lock_is_two_statements() {
    run(|| async {
        let options = PostgresOptions::new().setting("log_statement", "all");
        let server = blocking(|| PostgresServer::with(options));
        let pool = pool(&server.url(), None);
        let client = open(&pool).await;
        let lock = client.lock("a").unwrap();
        lock.acquire().await.unwrap().release().await.unwrap();
        let before = statements(&server);
        for _ in 0..20 {
            lock.acquire().await.unwrap().release().await.unwrap();
        }
        assert_eq!(statements(&server) - before, 40);
    });
}

#[test]
fn a_hand_off_is_two_statements_however_many_wait() {
    run(|| async {
        let options = PostgresOptions::new().setting("log_statement", "all");
        let server = blocking(|| PostgresServer::with(options));
        let pool = pool(&server.url(), None);
        let clients = [open(&pool).await, open(&pool).await];
        for tasks in [4, 100] {
            let before = statements(&server);
            let turns = 400 / tasks;
            let taken = take_turns(&clients, tasks, turns).await.len();
            let sent = statements(&server) - before;
            // Who is the first of its client to come also finds out that the lock is taken, and each
            // connection is greeted.
            assert!(sent <= 2 * taken + 60, "{sent} for {taken} hand-offs to {tasks}");
        }
    });
}
