//! What goes wrong with PostgreSQL, its sessions and its clients.

use std::time::{Duration, Instant};

use dlock_core::LossReason;
use dlock_sql::session::Config;

use super::postgres::{open, pool};
use super::{LONG, blocking, client, freeze, here, in_the_end, run, run_once};
use dlock_testkit::{PostgresServer, Proxy};

/// Long enough for a busy machine: who stands still for longer by accident has lost its session.
const TTL: Duration = Duration::from_secs(3);

#[test]
fn a_client_that_stands_still_is_out_before_the_next_one_is_in() {
    run_once(async {
        let server = blocking(PostgresServer::start);
        let pool = pool(&server.url(), None);
        let (ttl, too) = (TTL, pool.clone());
        let frozen = freeze(async move {
            let runtime = dlock_core::runtime::Tokio::current().unwrap();
            Config::from_postgres_pool(&too)
                .session_ttl(ttl)
                .connect(runtime)
                .await
        });
        let next = open(&pool).await;
        let guard = next.lock("a").unwrap().acquire_timeout(LONG).await.unwrap();
        assert!(!frozen.guard.is_valid(), "two believe to hold it");
        assert!(guard.is_valid() && guard.token() > frozen.guard.token());
        let late = frozen.guard;
        drop(frozen._go_on);
        let reason = tokio::time::timeout(LONG, late.lost()).await.unwrap();
        assert!(
            matches!(reason, LossReason::Expired | LossReason::SessionLost),
            "{reason:?}"
        );
    });
}

#[test]
fn a_waiter_dropped_while_the_server_stands_still_is_taken_out() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let pool = pool(&server.url(), None);
        let (first, second) = (open(&pool).await, open(&pool).await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let lock = second.lock("a").unwrap();
        let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
        blocking(|| server.wait_until_blocked(1, LONG));
        blocking(|| server.pause());
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        blocking(|| server.go_on());
        let begun = Instant::now();
        blocking(|| server.wait_until_blocked(0, LONG));
        assert!(begun.elapsed() < LONG / 4, "{:?}", begun.elapsed());
        guard.release().await.unwrap();
        let third = open(&pool).await;
        let guard = third.lock("a").unwrap().try_acquire().await.unwrap();
        assert!(guard.is_some(), "something of the waiter holds it");
    });
}

#[test]
fn a_client_that_is_closed_waits_no_more_in_the_server() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let pool = pool(&server.url(), None);
        let (first, second) = (open(&pool).await, open(&pool).await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let lock = second.lock("a").unwrap();
        let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
        blocking(|| server.wait_until_blocked(1, LONG));
        let begun = Instant::now();
        second.close().await.unwrap();
        assert!(waiting.await.unwrap().is_err());
        blocking(|| server.wait_until_blocked(0, LONG));
        assert!(begun.elapsed() < LONG / 4, "{:?}", begun.elapsed());
        assert!(guard.is_valid());
    });
}

#[test]
fn a_waiter_whose_backend_is_terminated_waits_on_another_one() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let pool = pool(&server.url(), None);
        let (first, second) = (open(&pool).await, open(&pool).await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let lock = second.lock("a").unwrap();
        let waiting = tokio::spawn(async move { in_the_end(&lock, LONG).await });
        blocking(|| server.wait_until_blocked(1, LONG));
        let of_waiter = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        let pid = blocking(|| server.number(of_waiter));
        blocking(|| server.terminate(i32::try_from(pid).unwrap()));
        blocking(|| server.wait_until_blocked(1, LONG));
        assert!(guard.is_valid() && !waiting.is_finished());
        let token = guard.token();
        guard.release().await.unwrap();
        assert!(waiting.await.unwrap().token() > token);
    });
}

#[test]
fn a_wait_is_given_up_though_the_shared_connection_has_ended() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let pool = pool(&server.url(), None);
        let (first, second) = (open(&pool).await, open(&pool).await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let of_holder = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted";
        let holder = blocking(|| server.number(of_holder));
        let lock = second.lock("a").unwrap();
        let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
        blocking(|| server.wait_until_blocked(1, LONG));
        let of_waiter = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        let waiter = blocking(|| server.number(of_waiter));
        for pid in blocking(|| server.backends()) {
            if i64::from(pid) != holder && i64::from(pid) != waiter {
                blocking(|| server.terminate(pid));
            }
        }
        waiting.abort();
        guard.release().await.unwrap();
        // Cancelled, or let in, found to be nobody's and given back.
        let third = open(&pool).await;
        drop(in_the_end(&third.lock("a").unwrap(), LONG / 2).await);
    });
}

#[test]
fn a_runtime_that_is_dropped_leaves_no_lock_behind() {
    run_once(async {
        let server = blocking(PostgresServer::start);
        let pool = pool(&server.url(), None);
        let guard = blocking(|| {
            let tokio = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()?;
            let too = pool.clone();
            let held = std::thread::spawn(move || {
                let guard = tokio.block_on(async {
                    let client = open(&too).await;
                    client.lock("a").unwrap().acquire().await.unwrap()
                });
                drop(tokio);
                guard
            });
            held.join().map_err(|_| std::io::Error::other("it has panicked"))
        });
        let begun = Instant::now();
        drop(in_the_end(&open(&pool).await.lock("a").unwrap(), LONG).await);
        // Its connection has ended: nobody waited for the ttl.
        assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
        drop(guard);
    });
}

#[test]
fn a_shorter_limit_of_the_role_is_not_the_limit_of_the_session() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        blocking(|| server.ask("ALTER ROLE keeper SET idle_session_timeout = '100ms'"));
        let pool = pool(&server.url(), None);
        let backend = Config::from_postgres_pool(&pool)
            .session_ttl(LONG)
            .connect(here())
            .await
            .unwrap();
        let client = client(backend);
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        let lost = tokio::time::timeout(Duration::from_secs(1), guard.lost()).await;
        assert!(lost.is_err() && guard.is_valid(), "{lost:?}");
        guard.release().await.unwrap();
    });
}

#[test]
fn a_client_that_is_cut_off_is_out_before_the_next_one_is_in() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let proxy = blocking(|| Proxy::start(server.address()));
        let there = server.address().to_string();
        let direct = pool(&server.url(), None);
        let cut_off = pool(&server.url().replace(&there, &proxy.address().to_string()), None);
        let short = Config::from_postgres_pool(&cut_off).session_ttl(TTL);
        let backend = short.connect(here()).await.unwrap();
        let (first, second) = (client(backend), open(&direct).await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let lock = second.lock("a").unwrap();
        let waiting = tokio::spawn(async move { lock.acquire_timeout(LONG).await.unwrap() });
        blocking(|| server.wait_until_blocked(1, LONG));
        proxy.mute();
        let next = waiting.await.unwrap();
        assert!(!guard.is_valid(), "two believe to hold it");
        let reason = tokio::time::timeout(LONG, guard.lost()).await.unwrap();
        assert!(
            matches!(reason, LossReason::Expired | LossReason::SessionLost),
            "{reason:?}"
        );
        // It finds its way back.
        let token = next.token();
        next.release().await.unwrap();
        assert!(in_the_end(&first.lock("a").unwrap(), LONG).await.token() > token);
    });
}
