//! The rights that `docs/sql.md` names are enough.

use std::time::Duration;

use dlock_core::{Client, ErrorKind};
use dlock_sql::session::{Config, SessionLock};

use super::{LONG, blocking, client, here, run};
use dlock_testkit::{MariaDbServer, PostgresServer};

async fn connect(url: &str) -> SessionLock {
    let config = Config::from_url(url).unwrap().session_ttl(LONG).timeout(LONG);
    config.connect(here()).await.unwrap()
}

/// All that a client asks of its server: a try, a wait that is given up, one that comes to its turn, and the
/// end of each.
async fn can_do_its_work(first: &Client, second: &Client) {
    let guard = first.lock("a").unwrap().acquire().await.unwrap();
    let lock = second.lock("a").unwrap();
    let late = lock.acquire_timeout(Duration::from_millis(300)).await;
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Timeout);
    let waiting = tokio::spawn(async move { lock.acquire_timeout(LONG).await.unwrap() });
    let token = guard.token();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[test]
fn what_postgres_grants_is_enough() {
    run(|| async {
        let server = blocking(PostgresServer::start);
        connect(&server.url()).await;
        blocking(|| {
            server.ask(
                "CREATE ROLE app LOGIN PASSWORD 'of-the-app'; GRANT USAGE ON SCHEMA public TO app; \
                 GRANT USAGE ON SEQUENCE dlock_session_token TO app",
            )
        });
        let url = server.url_of("app", "of-the-app");
        let first = client(connect(&url).await);
        let second = client(connect(&url).await);
        can_do_its_work(&first, &second).await;
    });
}

#[test]
fn what_mariadb_grants_is_enough() {
    run(|| async {
        let server = blocking(MariaDbServer::start);
        connect(&server.url()).await;
        blocking(|| {
            server.ask(
                "CREATE USER app@'%' IDENTIFIED BY 'of-the-app'; \
                 GRANT SELECT, INSERT ON dlock_session_token TO app@'%'",
            )
        });
        let url = server.url_of("app", "of-the-app");
        let first = client(connect(&url).await);
        let second = client(connect(&url).await);
        can_do_its_work(&first, &second).await;
    });
}
