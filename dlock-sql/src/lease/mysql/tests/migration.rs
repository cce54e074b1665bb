//! Tests: the tables are brought to a version that does not exist yet, while clients of this one are at work.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{Acquire, Attempt, LeaseKey, Lock as _, Release, Released};
use dlock_core::{ErrorKind, LockName, Mode, RequestId, Result, runtime};
use sqlx::{Connection as _, MySqlConnection};

use crate::lease::mysql::MysqlLease;
use crate::lease::mysql::schema::{MIGRATIONS, Names, migrate};
use crate::servers::MariaDbServer;

/// What the next release might add. On this server it can be repeated, since definitions are no part of a
/// transaction.
const NEXT: &str = "ALTER TABLE {p}name ADD COLUMN IF NOT EXISTS hypothetical TEXT; ALTER TABLE {p}entry \
    ADD COLUMN IF NOT EXISTS hypothetical TEXT; \
    CREATE TABLE IF NOT EXISTS {p}hypothetical (n INT)";
/// The same, which fails half-way.
const BROKEN: &str =
    "ALTER TABLE {p}name ADD COLUMN IF NOT EXISTS hypothetical TEXT; SELECT nothing FROM nowhere";

async fn bring_up(url: &str, steps: &[&str]) -> Result<()> {
    let mut conn = MySqlConnection::connect(url).await.unwrap();
    migrate(&mut conn, &Names::new(None, "dlock_"), steps, "here").await
}

fn ask(name: &str, sequence: u64) -> Acquire {
    let key = LeaseKey::new(LockName::new(name).unwrap(), RequestId::new(5, sequence));
    Acquire::new(key, Duration::from_secs(600))
}

#[test]
fn a_next_version_is_reached_with_what_is_held_and_refused_by_this_one() {
    let server = Arc::new(MariaDbServer::start().unwrap());
    let url = server.url();
    let version = || server.number("SELECT schema_version FROM dlock_meta").unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let here = runtime::detect().unwrap();
        let old = MysqlLease::open(&url, here.clone()).await.unwrap();
        let held = ask("x", 1);
        let granted = old.attempt(&held).await.unwrap();
        let Attempt::Granted(granted) = granted else {
            panic!("{granted:?}")
        };

        // What fails half-way is not called done, and can be taken up again.
        let steps = [MIGRATIONS, &[BROKEN]].concat();
        bring_up(&url, &steps).await.unwrap_err();
        assert_eq!(version(), 1);

        let steps = [MIGRATIONS, &[NEXT]].concat();
        let all = (0..4).map(|_| bring_up(&url, &steps));
        for done in futures::future::join_all(all).await {
            done.unwrap();
        }
        assert_eq!(version(), 2);
        assert_eq!(
            server.number("SELECT count(*) FROM dlock_hypothetical").unwrap(),
            0
        );

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

        let waits = ask("a new name", 4).with_queue(Duration::from_secs(600));
        let waits = old.attempt(&waits).await.unwrap();
        assert!(matches!(waits, Attempt::Queued(_)), "{waits:?}");
        let reads = ask("another", 5).with_mode(Mode::READER);
        assert!(matches!(old.attempt(&reads).await.unwrap(), Attempt::Granted(_)));
        assert_eq!(server.number("SELECT count(*) FROM dlock_entry").unwrap(), 2);

        // Who comes now and knows this version alone is told, and changes nothing.
        let e = MysqlLease::open(&url, here).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert!(
            e.to_string()
                .contains("schema version 2, this program knows up to 1"),
            "{e}"
        );
        assert_eq!(version(), 2);
    });
}
