//! The primary dies, and its standby takes its place and address: if it is in step it has the tokens, and it
//! has no sessions.

use std::time::Duration;

use dlock_core::{Client, ErrorKind, LossReason};
use dlock_sql::session::Config;
use sqlx::mysql::MySqlPoolOptions;

use super::mysql::wait_until_blocked;
use super::postgres::pool;
use super::{LONG, blocking, client, here, in_the_end, run};
use dlock_testkit::{Following, MariaDbPair, PostgresPair};

/// Longer than a busy machine stands still: a session that ends by that says nothing of the fail-over.
const TTL: Duration = Duration::from_secs(8);

/// One holds, another waits, and another server has their address.
async fn takes_over(
    [first, second]: [Client; 2],
    until_it_waits: impl FnOnce() -> std::io::Result<()>,
    fail_over: impl FnOnce() -> std::io::Result<()>,
    told: &[LossReason],
) {
    let guard = first.lock("a").unwrap().acquire().await.unwrap();
    let lock = second.lock("a").unwrap();
    let waiting = tokio::spawn(async move { in_the_end(&lock, LONG).await });
    blocking(until_it_waits);
    blocking(fail_over);
    let reason = tokio::time::timeout(LONG, guard.lost()).await.unwrap();
    assert!(told.contains(&reason), "{reason:?}");
    assert!(!guard.is_valid());
    let next = waiting.await.unwrap();
    assert!(next.is_valid() && next.token() > guard.token());
    let again = first.lock("a").unwrap().acquire_timeout(TTL / 10).await;
    assert!(again.is_err(), "two hold it");
}

#[test]
fn postgres_reports_the_loss_and_the_token_grows() {
    run(|| async {
        let pair = blocking(|| PostgresPair::start(Following::InStep));
        let pool = pool(&pair.url(), None);
        let open = async || {
            let config = Config::from_postgres_pool(&pool).session_ttl(TTL).timeout(LONG);
            client(config.connect(here()).await.unwrap())
        };
        let both = [open().await, open().await];
        let waits = || pair.first().wait_until_blocked(1, LONG);
        takes_over(both, waits, || pair.fail_over(), &[LossReason::SessionLost]).await;
    });
}

#[test]
fn mariadb_reports_the_loss_and_the_token_grows() {
    run(|| async {
        let pair = blocking(|| MariaDbPair::start(Following::InStep));
        let pool = MySqlPoolOptions::new().connect_lazy(&pair.url()).unwrap();
        let open = async || {
            let config = Config::from_mysql_pool(&pool).session_ttl(TTL).timeout(LONG);
            client(config.connect(here()).await.unwrap())
        };
        let both = [open().await, open().await];
        let waits = || wait_until_blocked(pair.first(), 1);
        // The driver does not read while nothing is asked: it may be found out by a renewal.
        let told = [LossReason::SessionLost, LossReason::Refused];
        takes_over(both, waits, || pair.fail_over(), &told).await;
    });
}

#[test]
fn a_standby_of_postgres_is_refused() {
    run(|| async {
        let pair = blocking(|| PostgresPair::start(Following::InStep));
        let at_primary = pool(&pair.url(), None);
        let opened = Config::from_postgres_pool(&at_primary)
            .timeout(LONG)
            .connect(here())
            .await;
        client(opened.unwrap()).close().await.unwrap();
        let at_standby = pool(&pair.second().url(), None);
        let e = Config::from_postgres_pool(&at_standby)
            .timeout(LONG)
            .connect(here())
            .await
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        assert!(e.to_string().contains("standby"), "{e}");
    });
}
