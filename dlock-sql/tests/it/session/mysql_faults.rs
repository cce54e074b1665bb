//! What goes wrong with MariaDB, its sessions and its clients.

use std::time::{Duration, Instant};

use dlock_core::{ErrorKind, LossReason};
use dlock_sql::session::Config;
use sqlx::mysql::MySqlPoolOptions;

use super::mysql::{empty_database, open, wait_until_blocked};
use super::{LONG, blocking, client, freeze, here, in_the_end, run, run_once};
use dlock_testkit::{MariaDbOptions, MariaDbServer, Proxy};

/// The shortest.
const TTL: Duration = Duration::from_secs(3);

#[test]
fn a_client_that_stands_still_is_out_before_the_next_one_is_in() {
    run_once(async {
        let server = blocking(MariaDbServer::start);
        let pool = empty_database(&server).await;
        let too = pool.clone();
        let frozen = freeze(async move {
            let runtime = dlock_core::runtime::Tokio::current().unwrap();
            Config::from_mysql_pool(&too)
                .session_ttl(TTL)
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
fn a_server_that_stands_still_costs_the_lock_in_time() {
    run(|| async {
        let server = blocking(MariaDbServer::start);
        let pool = empty_database(&server).await;
        let backend = Config::from_mysql_pool(&pool)
            .session_ttl(TTL)
            .connect(here())
            .await
            .unwrap();
        let client = client(backend);
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        let begun = Instant::now();
        blocking(|| server.pause());
        let reason = tokio::time::timeout(LONG, guard.lost()).await.unwrap();
        assert!(begun.elapsed() < 2 * TTL, "{:?}", begun.elapsed());
        assert!(
            matches!(reason, LossReason::Expired | LossReason::SessionLost),
            "{reason:?}"
        );
        blocking(|| server.go_on());
        in_the_end(&client.lock("a").unwrap(), LONG).await;
    });
}

#[test]
fn a_waiter_dropped_while_the_server_stands_still_is_taken_out() {
    run(|| async {
        let server = blocking(MariaDbServer::start);
        let pool = empty_database(&server).await;
        let (first, second) = (open(&pool).await, open(&pool).await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let lock = second.lock("a").unwrap();
        let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
        blocking(|| wait_until_blocked(&server, 1));
        blocking(|| server.pause());
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        blocking(|| server.go_on());
        let begun = Instant::now();
        blocking(|| wait_until_blocked(&server, 0));
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
        let server = blocking(MariaDbServer::start);
        let pool = empty_database(&server).await;
        let (first, second) = (open(&pool).await, open(&pool).await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let lock = second.lock("a").unwrap();
        let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
        blocking(|| wait_until_blocked(&server, 1));
        let begun = Instant::now();
        second.close().await.unwrap();
        assert!(waiting.await.unwrap().is_err());
        blocking(|| wait_until_blocked(&server, 0));
        assert!(begun.elapsed() < LONG / 4, "{:?}", begun.elapsed());
        assert!(guard.is_valid());
    });
}

#[test]
fn a_waiter_whose_connection_is_killed_waits_on_another_one() {
    run(|| async {
        let server = blocking(MariaDbServer::start);
        let pool = empty_database(&server).await;
        let (first, second) = (open(&pool).await, open(&pool).await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let lock = second.lock("a").unwrap();
        let waiting = tokio::spawn(async move { in_the_end(&lock, LONG).await });
        blocking(|| wait_until_blocked(&server, 1));
        let of_waiter = "SELECT id FROM information_schema.processlist WHERE state = 'User lock'";
        let id = blocking(|| server.number(of_waiter));
        blocking(|| server.kill_connection(id));
        blocking(|| wait_until_blocked(&server, 1));
        assert!(guard.is_valid() && !waiting.is_finished());
        let token = guard.token();
        guard.release().await.unwrap();
        assert!(waiting.await.unwrap().token() > token);
    });
}

#[test]
fn a_killed_holder_is_told_soon_after_the_next_is_granted() {
    run(|| async {
        let server = blocking(MariaDbServer::start);
        let pool = empty_database(&server).await;
        let first = open(&pool).await;
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let of_first = blocking(|| server.connections());
        let second = open(&pool).await;
        let lock = second.lock("a").unwrap();
        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
        blocking(|| wait_until_blocked(&server, 1));
        let begun = Instant::now();
        for id in of_first {
            // Some are the test's own.
            let _ = tokio::task::block_in_place(|| server.kill_connection(id));
        }
        let next = waiting.await.unwrap();
        // It is asked each second whether it is there, and has a deadline in any case.
        let reason = tokio::time::timeout(LONG / 2, guard.lost()).await.unwrap();
        assert_eq!(reason, LossReason::SessionLost);
        assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
        assert!(next.is_valid() && next.token() > guard.token());
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
        // Which does the next one no harm.
        assert!(first.lock("a").unwrap().try_acquire().await.unwrap().is_none());
    });
}

#[test]
fn a_shorter_timeout_of_the_server_does_not_limit_the_session() {
    run(|| async {
        let server = blocking(MariaDbServer::start);
        blocking(|| server.ask("SET GLOBAL wait_timeout = 1, GLOBAL interactive_timeout = 1"));
        let client = open(&empty_database(&server).await).await;
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        let lost = tokio::time::timeout(Duration::from_millis(2500), guard.lost()).await;
        assert!(lost.is_err() && guard.is_valid(), "{lost:?}");
        guard.release().await.unwrap();
    });
}

#[test]
fn a_waiter_does_not_delay_a_backup() {
    run(|| async {
        let server = blocking(MariaDbServer::start);
        let pool = empty_database(&server).await;
        let (first, second) = (open(&pool).await, open(&pool).await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let lock = second.lock("a").unwrap();
        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
        blocking(|| wait_until_blocked(&server, 1));
        let begun = Instant::now();
        blocking(|| server.ask("FLUSH TABLES WITH READ LOCK; UNLOCK TABLES"));
        // Less than what is left of the turn, which is a third of the ttl.
        assert!(begun.elapsed() < LONG / 6, "{:?}", begun.elapsed());
        let token = guard.token();
        guard.release().await.unwrap();
        assert!(waiting.await.unwrap().token() > token);
    });
}

#[test]
fn a_client_that_is_cut_off_is_out_before_the_next_one_is_in() {
    run(|| async {
        let server = blocking(MariaDbServer::start);
        let proxy = blocking(|| Proxy::start(server.address()));
        let direct = empty_database(&server).await;
        let options = direct.connect_options().as_ref().clone();
        let cut_off = MySqlPoolOptions::new().connect_lazy_with(options.port(proxy.address().port()));
        let short = Config::from_mysql_pool(&cut_off).session_ttl(TTL);
        let backend = short.connect(here()).await.unwrap();
        let (first, second) = (client(backend), open(&direct).await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let lock = second.lock("a").unwrap();
        let waiting = tokio::spawn(async move { lock.acquire_timeout(LONG).await.unwrap() });
        blocking(|| wait_until_blocked(&server, 1));
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

#[test]
fn a_server_that_logs_statements_is_refused_with_what_to_do() {
    run(|| async {
        let options = MariaDbOptions::new()
            .setting("log_bin", "log")
            .setting("server_id", "1")
            .setting("binlog_format", "STATEMENT");
        let server = blocking(|| MariaDbServer::with(options.clone()));
        let pool = MySqlPoolOptions::new().connect_lazy(&server.url()).unwrap();
        let open = async || {
            let backend = Config::from_mysql_pool(&pool).timeout(LONG).connect(here()).await;
            client(backend.unwrap())
        };
        let refused = open().await.lock("a").unwrap().try_acquire().await;
        let e = refused.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert!(e.to_string().contains("binlog_format"), "{e}");
        blocking(|| server.ask("SET GLOBAL binlog_format = MIXED"));
        let taken = open().await.lock("a").unwrap().try_acquire().await;
        assert!(taken.unwrap().is_some());
    });
}
