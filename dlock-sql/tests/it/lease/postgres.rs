//! What PostgreSQL alone does: pushes, versions.

use std::time::Duration;

use dlock_core::spi::{Attempt, Lock, Push, Release, Wake};
use dlock_core::{ErrorKind, Mode};
use dlock_sql::lease::postgres::PostgresLease;
use futures::StreamExt as _;
use sqlx::ConnectOptions as _;

use super::site::*;

const SOON: Duration = Duration::from_secs(5);

#[test]
fn whoever_is_next_is_told() {
    run(On::Tokio, async |runtime| {
        let options = postgres().await;
        let lock = PostgresLease::builder_with(options).open(runtime).await.unwrap();
        let a = ask("x");
        let first = granted(&lock, &a).await;
        let b = join("x", Mode::Exclusive);
        let Attempt::Queued(wait) = lock.attempt(&b).await.unwrap() else {
            panic!()
        };
        assert_eq!(wait.ahead, Some(0));
        assert!(wait.recheck_in.is_some_and(|d| d <= TTL));
        let Wake::Push(mut pushes) = wait.wake else {
            panic!("it looks")
        };
        lock.release(&a.key, Release::Now).await.unwrap();
        let push = within(SOON, pushes.next()).await;
        let Some(Push::Granted(grant)) = push else {
            panic!("{push:?}")
        };
        assert!(grant.provisional && grant.token > first.token && grant.key == b.key);
        assert!(grant.expires_in <= TTL + SOON);
        lock.close().await.unwrap();
    });
}

#[test]
fn tables_of_a_newer_dlock_are_refused() {
    run(On::Tokio, async |runtime| {
        let options = postgres().await;
        let lock = PostgresLease::builder_with(options.clone())
            .open(runtime.clone())
            .await
            .unwrap();
        lock.close().await.unwrap();
        let mut conn = options.connect().await.unwrap();
        sqlx::raw_sql("UPDATE dlock_meta SET schema_version = 99")
            .execute(&mut conn)
            .await
            .unwrap();
        let e = PostgresLease::builder_with(options)
            .open(runtime)
            .await
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert!(e.to_string().contains("99"), "{e}");
    });
}

#[test]
fn those_who_open_at_once_make_the_tables_once() {
    run(On::Tokio, async |runtime| {
        let options = postgres().await;
        let all = (0..8).map(|_| PostgresLease::builder_with(options.clone()).open(runtime.clone()));
        for lock in futures::future::join_all(all).await {
            granted(&lock.unwrap(), &ask(&format!("{:?}", key("x").id))).await;
        }
    });
}
