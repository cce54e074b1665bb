//! The tables are made, or brought to a version that there is not yet, while clients of this one are at work.

use dlock_core::spi::{Release, Released};
use dlock_core::{ErrorKind, Mode};

use super::server::{Kind, Server};
use super::site::*;

/// What the next release may do: a column more in each table, filled for the names that there are, and
/// another table.
const NEXT: &str = "ALTER TABLE dlock_name ADD COLUMN tenant TEXT; ALTER TABLE dlock_entry ADD COLUMN tenant \
    TEXT; UPDATE dlock_name SET tenant = 'of before'; CREATE TABLE dlock_tenant (tenant INT); UPDATE \
    dlock_meta SET schema_version = 2";

/// Holders and waiters go on meanwhile.
#[test]
fn a_later_version_takes_over_what_is_held() {
    for kind in [Kind::Postgres, Kind::MariaDb] {
        run(On::Tokio, async |runtime| {
            let server = Server::start(kind).await;
            let old = server.open(&runtime).await;
            let (a, b) = (ask("x"), join("x", Mode::Exclusive));
            let first = granted(&*old, &a).await;
            queued(&*old, &b).await;
            server.ask(NEXT).await;
            let kept = "SELECT count(*) FROM dlock_name WHERE tenant = 'of before' AND phase = 2";
            assert_eq!(server.ask(kept).await.trim(), "1");

            // Who comes now and knows this version alone is told, and changes nothing.
            let e = server.try_open(&server.url(), &runtime).await.err().unwrap();
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
            let text = e.to_string();
            assert!(text.contains("version 2") && text.contains("up to 1"), "{text}");
            assert!(text.contains("update this program"), "{text}");

            // Who was there before knows its lease, hands it on, and makes new ones.
            assert_eq!(granted(&*old, &a).await.token, first.token);
            let released = old.release(&a.key, Release::Now).await.unwrap();
            assert_eq!(released, Released::Released);
            assert!(Some(until_asked(&*old, &b).await) > first.token);
            granted(&*old, &ask("a new name")).await;
            queued(&*old, &join("a new name", Mode::Exclusive)).await;
            granted(&*old, &ask("another").with_mode(Mode::READER)).await;
        });
    }
}

/// PostgreSQL: nobody sees half a version. MariaDB: definitions are no part of a transaction there, so what
/// fails half-way is not called done, and is taken up again.
#[test]
fn a_migration_that_fails_half_way_is_begun_anew() {
    for (kind, foreign) in [
        (Kind::Postgres, "TYPE dlock_step AS (n int)"),
        (Kind::MariaDb, "VIEW dlock_fence AS SELECT 1 AS n"),
    ] {
        run(On::Tokio, async |runtime| {
            let server = Server::start(kind).await;
            // What is of that name already is not what a later statement wants to make.
            server.ask(&format!("CREATE {foreign}")).await;
            let opened = server.try_open(&server.url(), &runtime).await;
            if let Kind::Postgres = kind {
                assert!(opened.is_err());
                let made = "SELECT count(*) FROM pg_class WHERE relname IN ('dlock_meta', 'dlock_name')";
                assert_eq!(server.ask(made).await.trim(), "0");
            }
            let what = foreign.split(" AS").next().unwrap();
            server.ask(&format!("DROP {what}")).await;
            if let Kind::MariaDb = kind {
                server.ask("UPDATE dlock_meta SET schema_version = 0").await;
            }
            let lock = server.open(&runtime).await;
            granted(&*lock, &ask("x")).await;
            assert_eq!(
                server.ask("SELECT schema_version FROM dlock_meta").await.trim(),
                "1"
            );
        });
    }
}

/// A program that loses its connection in the middle has changed nothing.
#[test]
fn a_migration_whose_connection_ends_is_begun_anew() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::Postgres).await;
        // It waits for a name that somebody is about to make.
        let mut other = server.hand().await;
        other
            .run("BEGIN; CREATE TABLE dlock_entry (n int)")
            .await
            .unwrap();
        let ending = async {
            server.wait_until_blocked(1).await;
            let blocked =
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
            server.ask(blocked).await;
        };
        let url = server.url();
        let opened = futures::future::join(server.try_open(&url, &runtime), ending)
            .await
            .0;
        assert_eq!(opened.err().unwrap().kind(), ErrorKind::Unavailable);
        other.run("ROLLBACK").await.unwrap();
        let made = "SELECT count(*) FROM pg_class WHERE relname = 'dlock_meta'";
        assert_eq!(server.ask(made).await.trim(), "0");
        granted(&*server.open(&runtime).await, &ask("x")).await;
    });
}
