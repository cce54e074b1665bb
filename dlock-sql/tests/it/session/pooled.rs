//! A pooler that comes to light after the client was opened: another session answers.

use dlock_core::{ErrorKind, LossReason};
use dlock_sql::session::Config;
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use super::postgres::pool;
use super::{LONG, blocking, client, here, run};
use dlock_testkit::{PgBouncer, PoolMode, PostgresServer};

/// A pooler that drops the settings of sessions, before a server whose role happens to have the very limit
/// that would have been set.
async fn unnoticed(server: &PostgresServer) -> (PgBouncer, dlock_core::Client) {
    let limit = LONG.as_millis();
    let pooler = blocking(|| {
        server.ask(&format!("ALTER ROLE keeper SET idle_session_timeout = {limit}"))?;
        let pooler = PgBouncer::start(server, PoolMode::Transaction, 2)?;
        pooler.restart_deaf_to_options()?;
        Ok(pooler)
    });
    let config = Config::from_postgres_pool(&pool(&pooler.url(), None));
    let backend = config.session_ttl(LONG).timeout(LONG).connect(here()).await;
    (pooler, client(backend.unwrap()))
}

/// Somebody whose transaction has the session that was used last.
async fn occupy(pooler: &PgBouncer) -> PgConnection {
    let options: PgConnectOptions = pooler.url().parse().unwrap();
    let mut other = PgConnection::connect_with(&options.statement_cache_capacity(0))
        .await
        .unwrap();
    sqlx::raw_sql("BEGIN; SELECT 1")
        .execute(&mut other)
        .await
        .unwrap();
    other
}

#[test]
fn another_session_that_answers_a_lock_is_a_loss_and_says_why() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let (pooler, client) = unnoticed(&server).await;
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        let _other = occupy(&pooler).await;
        let refused = client.lock("b").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused:?}");
        assert!(refused.to_string().contains("pooler"), "{refused}");
        let reason = tokio::time::timeout(LONG, guard.lost()).await.unwrap();
        assert_eq!(reason, LossReason::SessionLost);
        // And it stays so: nothing is asked any more.
        let again = client.lock("c").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Unsupported, "{again:?}");
    });
}

#[test]
fn a_renewal_answered_by_another_session_is_a_loss_and_says_why() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        let (pooler, client) = unnoticed(&server).await;
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        let _other = occupy(&pooler).await;
        let begun = std::time::Instant::now();
        let _ = guard.renew().await;
        let reason = tokio::time::timeout(LONG, guard.lost()).await.unwrap();
        // The renewal that finds it gone and the signal that says so race.
        assert!(
            matches!(reason, LossReason::SessionLost | LossReason::Refused),
            "{reason:?}"
        );
        assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
        let again = client.lock("c").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Unsupported, "{again:?}");
        assert!(again.to_string().contains("pooler"), "{again}");
    });
}
