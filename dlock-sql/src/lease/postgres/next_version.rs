//! Tests: the tables are brought to a version that does not exist yet, while clients of this one are at work.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{Acquire, Attempt, LeaseKey, Lock as _, Release, Released, RequestId};
use dlock_core::{ErrorKind, LockName, Result, runtime};
use sqlx::{Connection as _, PgConnection};

use super::PostgresLease;
use super::call::Way;
use super::schema::{MIGRATIONS, Names, migrate};
use crate::servers::PostgresServer;

/// What the next release might add.
const NEXT: &str =
    "ALTER TABLE {p}name ADD COLUMN hypothetical text; CREATE TABLE {p}hypothetical (n integer)";
/// One that fails half-way.
const BROKEN: &str = "ALTER TABLE {p}name ADD COLUMN broken text; SELECT 1 / 0";

async fn bring_up(url: &str, steps: &[&str]) -> Result<()> {
    let mut conn = PgConnection::connect(url).await.unwrap();
    migrate(
        &mut conn,
        Way::Prepared,
        &Names::new("public", "dlock_"),
        steps,
        "here",
    )
    .await
}

fn ask(name: &str, sequence: u64) -> Acquire {
    let key = LeaseKey::new(LockName::new(name).unwrap(), RequestId::new(5, sequence));
    Acquire::new(key, Duration::from_secs(600))
}

#[test]
fn a_next_version_is_reached_once_with_what_is_held_and_refused_by_this_one() {
    let server = Arc::new(PostgresServer::start().unwrap());
    let url = server.url();
    let count = |what: &str| {
        server
            .number(&format!(
                "SELECT count(*) FROM information_schema.columns WHERE {what}"
            ))
            .unwrap()
    };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let here = runtime::detect().unwrap();
        let old = PostgresLease::open(&url, here.clone()).await.unwrap();
        let held = ask("x", 1);
        let granted = old.attempt(&held).await.unwrap();
        let Attempt::Granted(granted) = granted else {
            panic!("{granted:?}")
        };

        // What fails half-way has not been.
        let steps = [MIGRATIONS, &[BROKEN]].concat();
        bring_up(&url, &steps).await.unwrap_err();
        assert_eq!(count("column_name = 'broken'"), 0);
        assert_eq!(server.number("SELECT schema_version FROM dlock_meta").unwrap(), 1);

        // Of those who come at once one takes the step, or it would fail for being there.
        let steps = [MIGRATIONS, &[NEXT]].concat();
        let all = (0..4).map(|_| bring_up(&url, &steps));
        for done in futures::future::join_all(all).await {
            done.unwrap();
        }
        assert_eq!(count("column_name = 'hypothetical'"), 1);
        assert_eq!(server.number("SELECT schema_version FROM dlock_meta").unwrap(), 2);

        // Who was there before goes on with what it holds.
        assert_eq!(
            old.release(&held.key, Release::Now).await.unwrap(),
            Released::Released
        );
        let again = old.attempt(&ask("x", 2)).await.unwrap();
        assert!(
            matches!(&again, Attempt::Granted(g) if g.token > granted.token),
            "{again:?}"
        );

        let new = old.attempt(&ask("a new name", 3)).await.unwrap();
        assert!(matches!(new, Attempt::Granted(_)), "{new:?}");

        // Who comes now and knows this version alone is told, and changes nothing.
        let e = PostgresLease::open(&url, here).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert!(
            e.to_string()
                .contains("schema version 2, this program knows up to 1"),
            "{e}"
        );
        assert_eq!(server.number("SELECT schema_version FROM dlock_meta").unwrap(), 2);
    });
}
