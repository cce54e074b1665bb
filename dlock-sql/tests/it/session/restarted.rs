//! Servers that are restarted while a client that believes in its lock hears nothing: nobody is let in before
//! its deadline.

use std::io;
use std::time::Duration;

use dlock_core::{Client, LockName};
use dlock_sql::session::Config;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::postgres::PgPool;

use super::postgres::pool;
use super::{LONG, blocking, client, here, in_the_end, run};
use dlock_testkit::{MariaDbServer, PostgresServer, Proxy};

/// Longer than a restart takes on a machine that has much else to do: else nobody would believe any more when
/// it is over.
const TTL: Duration = Duration::from_secs(8);

async fn on_postgres(pool: &PgPool, ttl: Duration) -> Client {
    let config = Config::from_postgres_pool(pool).session_ttl(ttl).timeout(LONG);
    client(config.connect(here()).await.unwrap())
}

async fn on_mariadb(pool: &MySqlPool, ttl: Duration) -> Client {
    let config = Config::from_mysql_pool(pool).session_ttl(ttl).timeout(LONG);
    client(config.connect(here()).await.unwrap())
}

fn mariadb_pool(url: &str, port: u16) -> MySqlPool {
    let options: MySqlConnectOptions = url.parse().unwrap();
    MySqlPoolOptions::new().connect_lazy_with(options.port(port))
}

/// The holder is cut off, the server goes through that, and another client is let in when the holder believes
/// no more.
async fn out_before_the_next_one(
    first: &Client,
    proxy: &Proxy,
    through: impl FnOnce() -> io::Result<()>,
    second: impl Future<Output = Client>,
) {
    let guard = first.lock("a").unwrap().acquire().await.unwrap();
    proxy.mute();
    blocking(through);
    let second = second.await;
    let lock = second.lock("a").unwrap();
    while guard.is_valid() {
        let taken = lock.try_acquire().await;
        // The first tries may meet a connection that has just ended.
        let was_let_in = taken.is_ok_and(|taken| taken.is_some());
        assert!(!was_let_in || !guard.is_valid(), "two believe to hold it");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let next = in_the_end(&lock, LONG).await;
    assert!(next.is_valid() && next.token() > guard.token());
    // And who was let in after it began keeps it.
    let lost = tokio::time::timeout(Duration::from_millis(300), next.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
}

#[test]
fn the_holder_is_out_before_the_next_when_postgres_crashes() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let proxy = blocking(|| Proxy::start(server.address()));
        let there = server.address().to_string();
        let by_proxy = pool(&server.url().replace(&there, &proxy.address().to_string()), None);
        let direct = pool(&server.url(), None);
        let first = on_postgres(&by_proxy, TTL).await;
        let crash = || server.crash().and_then(|()| server.start_again());
        out_before_the_next_one(&first, &proxy, crash, on_postgres(&direct, TTL)).await;
    });
}

#[test]
fn the_holder_is_out_before_the_next_when_a_backend_crashes() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let proxy = blocking(|| Proxy::start(server.address()));
        let there = server.address().to_string();
        let by_proxy = pool(&server.url().replace(&there, &proxy.address().to_string()), None);
        let direct = pool(&server.url(), None);
        let first = on_postgres(&by_proxy, TTL).await;
        // As the system does where memory runs out.
        let kill_one = || {
            use rustix::process::{Pid, Signal, kill_process};
            let holder = server.number("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted")?;
            let holder = i32::try_from(holder).ok().and_then(Pid::from_raw);
            kill_process(holder.unwrap(), Signal::KILL)?;
            dlock_testkit::until("the server answers again", LONG, || {
                let held = server.number("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")?;
                Ok(held == 0)
            })
        };
        out_before_the_next_one(&first, &proxy, kill_one, on_postgres(&direct, TTL)).await;
    });
}

#[test]
fn the_holder_is_out_before_the_next_when_mariadb_crashes() {
    run(|| async {
        let server = blocking(MariaDbServer::start);
        let proxy = blocking(|| Proxy::start(server.address()));
        let by_proxy = mariadb_pool(&server.url(), proxy.address().port());
        let direct = mariadb_pool(&server.url(), server.address().port());
        let first = on_mariadb(&by_proxy, TTL).await;
        let crash = || server.crash().and_then(|()| server.start_again());
        out_before_the_next_one(&first, &proxy, crash, on_mariadb(&direct, TTL)).await;
    });
}

/// Its runs are called by the second in which they began, and it is back from a crash in less.
#[test]
fn mariadb_tokens_are_not_made_in_the_second_of_its_start() {
    run(|| async {
        let server = blocking(MariaDbServer::start);
        let direct = mariadb_pool(&server.url(), server.address().port());
        drop(on_mariadb(&direct, TTL).await);
        let age =
            "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'UPTIME'";
        let made_after = blocking(|| server.number(age));
        assert!(made_after >= 1, "made in the second in which the server started");
    });
}

#[test]
fn transactions_wait_for_holders_from_before_a_restart() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let pool = pool(&server.url(), None);
        let client = on_postgres(&pool, LONG).await;
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        blocking(|| server.restart());
        let name = LockName::new("a").unwrap();
        let config = Config::from_postgres_pool(&pool).session_ttl(LONG).timeout(LONG);
        let locks = config.transaction_locks(here()).await.unwrap();
        let mut tx = pool.begin().await.unwrap();
        assert_eq!(locks.try_lock(&mut tx, &name).await.unwrap(), None);
        tx.rollback().await.unwrap();
        // A short one, of which something is left or not.
        let config = Config::from_postgres_pool(&pool).session_ttl(LONG).timeout(LONG);
        let config = config.restart_grace(Duration::from_secs(3));
        let locks = config.transaction_locks(here()).await.unwrap();
        let mut tx = pool.begin().await.unwrap();
        let token = locks.lock(&mut tx, &name).await.unwrap();
        let age = "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::int";
        assert!(blocking(|| server.number(age)) >= 3);
        assert!(Some(token) > guard.token());
        tx.commit().await.unwrap();
    });
}

#[test]
fn without_a_grace_locks_are_granted_at_once() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let pool = pool(&server.url(), None);
        let first = on_postgres(&pool, LONG).await;
        let token = first.lock("a").unwrap().acquire().await.unwrap().token();
        blocking(|| server.restart());
        let config = Config::from_postgres_pool(&pool).session_ttl(LONG).timeout(LONG);
        let config = config.restart_grace(Duration::ZERO);
        let second = client(config.connect(here()).await.unwrap());
        let next = second.lock("a").unwrap().try_acquire().await.unwrap().unwrap();
        assert!(next.token() > token);
    });
}
