//! Migrations, against a real server: from the version of now to one that there is not yet.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::runtime::Tokio;
use dlock_core::spi::{Acquire, Attempt, LeaseKey, Lock as _, Queueing, Release, Released, Watch as _};
use dlock_core::{LockName, RequestId, Runtime};
use sqlx::Row as _;
use sqlx::postgres::PgConnectOptions;

use super::*;
use crate::lease::connection::connect;
use crate::lease::postgres::PostgresLease;
use crate::lease::postgres::connection::{Postgres, connecting};
use crate::servers::PostgresServer;

/// What a later version may do: a column more, which has to be filled for the names that there are, and
/// another table.
const NEXT: &str = "ALTER TABLE {p}name ADD COLUMN tenant text; UPDATE {p}name SET tenant = 'of before'; \
    CREATE TABLE {p}tenant (tenant text PRIMARY KEY)";

/// What is wrong in the middle.
const BROKEN: &str = "CREATE TABLE {p}half (n integer); SELECT 1 / 0";

struct Site {
    _server: PostgresServer,
    runtime: Arc<dyn Runtime>,
    options: PgConnectOptions,
    names: Names,
}

impl Site {
    async fn connect(&self) -> PgConnection {
        let connecting = connecting(&self.options, Warm::default());
        let connected = connect::<Postgres>(connecting, &*self.runtime, "the tests' server");
        connected.await.unwrap()
    }

    async fn migrate(&self, steps: &[&str]) -> Result<()> {
        let mut conn = self.connect().await;
        migrate(&mut conn, Way::Prepared, &self.names, steps, "the tests' server").await
    }

    async fn open(&self) -> Result<PostgresLease> {
        PostgresLease::builder_with(self.options.clone())
            .open(self.runtime.clone())
            .await
    }

    async fn number(&self, sql: &str) -> i64 {
        let text = AssertSqlSafe(format!("SELECT ({sql})::bigint"));
        let row = sqlx::query(text).fetch_one(&mut self.connect().await).await;
        row.unwrap().get(0)
    }
}

fn with_server<F: Future<Output = ()>>(test: impl FnOnce(Site) -> F) {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    tokio.block_on(async {
        let server = tokio::task::spawn_blocking(|| PostgresServer::start().unwrap());
        let server = server.await.unwrap();
        let options = server.url().parse().unwrap();
        let runtime = Tokio::current().unwrap();
        let site = Site {
            _server: server,
            runtime,
            options,
            names: Names::new("public", "dlock_"),
        };
        tokio::time::timeout(Duration::from_secs(120), test(site))
            .await
            .unwrap();
    });
}

fn ask(n: u64) -> Acquire {
    let key = LeaseKey::new(LockName::new("x").unwrap(), RequestId::new(1, n));
    Acquire::new(key, Duration::from_secs(600))
}

#[test]
fn names_are_quoted_and_filled_in() {
    let names = Names::new("my \"own\"", "dlock_");
    assert_eq!(
        names.fill("SELECT 1 FROM {p}name, {n}x"),
        "SELECT 1 FROM \"my \"\"own\"\"\".dlock_name, dlock_x"
    );
    let all = names.fill(MIGRATIONS[0]);
    assert!(!all.contains("{p}") && !all.contains("{n}"));
}

/// Whoever holds something goes on meanwhile, and so does whoever waits; a program of before that begins
/// afterwards is refused.
#[test]
fn a_later_version_takes_over_what_is_held_and_refuses_programs_of_before() {
    with_server(async |site| {
        let before = site.open().await.unwrap();
        let (a, mut b) = (ask(1), ask(2));
        let Attempt::Granted(first) = before.attempt(&a).await.unwrap() else {
            panic!("it is free")
        };
        b.queue = Queueing::Join;
        let waiting = before.attempt(&b).await.unwrap();
        assert!(matches!(waiting, Attempt::Queued(_)), "{waiting:?}");

        let next = [MIGRATIONS[0], NEXT];
        // Several who begin at once do it once.
        let all = (0..4).map(|_| site.migrate(&next));
        for done in futures::future::join_all(all).await {
            done.unwrap();
        }
        assert_eq!(site.number("SELECT schema_version FROM dlock_meta").await, 2);
        let kept = "SELECT count(*) FROM dlock_name WHERE tenant = 'of before' AND phase = 2";
        assert_eq!(site.number(kept).await, 1);

        let e = site.open().await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        let text = e.to_string();
        assert!(text.contains("version 2") && text.contains("up to 1"), "{text}");
        assert!(text.contains("update this program"), "{text}");

        // One that has run since before knows its lease, and hands it on.
        let Attempt::Granted(again) = before.attempt(&a).await.unwrap() else {
            panic!("it was forgotten")
        };
        assert_eq!(again.token, first.token);
        let released = before.release(&a.key, Release::Now).await.unwrap();
        assert_eq!(released, Released::Released);
        let seen = before.inspect(&b.key.name).await.unwrap();
        assert_eq!(seen.holders.len(), 1);
        assert!(seen.holders[0].id == b.key.id && seen.holders[0].token > first.token);
    });
}

#[test]
fn a_migration_that_fails_leaves_the_version_of_before_whole() {
    with_server(async |site| {
        let before = site.open().await.unwrap();
        let a = ask(1);
        assert!(matches!(before.attempt(&a).await.unwrap(), Attempt::Granted(_)));
        let e = site.migrate(&[MIGRATIONS[0], NEXT, BROKEN]).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::BackendData, "{e}");
        assert_eq!(site.number("SELECT schema_version FROM dlock_meta").await, 1);
        let made = "SELECT count(*) FROM pg_class WHERE relname IN ('dlock_half', 'dlock_tenant')";
        assert_eq!(site.number(made).await, 0);
        // And who opens it finds it as it was.
        let after = site.open().await.unwrap();
        assert!(matches!(after.attempt(&ask(2)).await.unwrap(), Attempt::Held(_)));
        let released = before.release(&a.key, Release::Now).await.unwrap();
        assert_eq!(released, Released::Released);
    });
}

/// Nobody sees half of it: a program that is ended in the middle, or loses its connection there, has changed
/// nothing.
#[test]
fn a_migration_whose_connection_is_ended_is_begun_anew_by_the_next() {
    with_server(async |site| {
        drop(site.open().await.unwrap());
        // It waits for the table that somebody reads.
        let mut reads = site.connect().await;
        sqlx::raw_sql("BEGIN; SELECT * FROM dlock_name")
            .execute(&mut reads)
            .await
            .unwrap();
        let next = [MIGRATIONS[0], NEXT];
        let ending = async {
            let blocked = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                           WHERE wait_event_type = 'Lock' AND query LIKE '%tenant%'";
            let mut hand = site.connect().await;
            while sqlx::query(blocked)
                .fetch_optional(&mut hand)
                .await
                .unwrap()
                .is_none()
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let (ended, ()) = futures::future::join(site.migrate(&next), ending).await;
        let e = ended.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        sqlx::raw_sql("COMMIT").execute(&mut reads).await.unwrap();
        assert_eq!(site.number("SELECT schema_version FROM dlock_meta").await, 1);
        site.migrate(&next).await.unwrap();
        assert_eq!(site.number("SELECT schema_version FROM dlock_meta").await, 2);
    });
}
