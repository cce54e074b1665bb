//! Where the tests run: a database of its own for each, on a server that all tests of the program share.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use dlock_core::Runtime;
use dlock_core::runtime::Tokio;
use sqlx::Pool;

/// Longer than a wait in these tests may be.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// How long a connection is waited for; of a server that is down, too.
const PATIENCE: Duration = Duration::from_secs(10);

/// Of a hold that nobody waits for.
#[cfg(feature = "postgres")]
pub(crate) const SHORT: Duration = Duration::from_secs(1);

/// A database that is empty.
pub(crate) struct Site<DB: sqlx::Database> {
    pub(crate) pool: Pool<DB>,
    pub(crate) runtime: Arc<dyn Runtime>,
    _files: Option<tempfile::TempDir>,
}

pub(crate) fn run<F: Future<Output = ()> + Send>(test: F) {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    // In a debug build such a future and what it calls take two megabytes of stack, as much as a test has.
    let (test, large) = (Box::pin(test), std::thread::Builder::new().stack_size(8 << 20));
    std::thread::scope(|scope| {
        let test = async { tokio::time::timeout(9 * LONG, test).await.unwrap() };
        let thread = large.spawn_scoped(scope, || tokio.block_on(test)).unwrap();
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Polls it so often, each time that it is woken, and drops it then. The first time it may do nothing: a
/// server that is quick has otherwise answered before it is looked for, and nothing would be dropped.
pub(crate) async fn polled<F: Future>(times: usize, what: F) -> Option<F::Output> {
    let (mut what, mut left) = (std::pin::pin!(what), times);
    std::future::poll_fn(|cx| {
        while left == times && std::pin::pin!(tokio::task::consume_budget()).poll(cx).is_ready() {}
        let polled = what.as_mut().poll(cx);
        left -= 1;
        match polled {
            Poll::Ready(out) => Poll::Ready(Some(out)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

fn runtime() -> Arc<dyn Runtime> {
    Tokio::current().unwrap()
}

/// A name that no other test of this program has.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn fresh() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("site_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(feature = "postgres")]
pub(crate) async fn postgres() -> Site<sqlx::Postgres> {
    use std::sync::LazyLock;

    use dlock_testkit::PostgresServer;

    // Never dropped; it ends with the program all the same.
    static SERVER: LazyLock<PostgresServer> = LazyLock::new(|| PostgresServer::start().unwrap());
    let made = tokio::task::spawn_blocking(|| {
        let name = fresh();
        SERVER
            .ask_in("postgres", &format!("CREATE DATABASE {name}"))
            .unwrap();
        (SERVER.url(), name)
    });
    let (url, name) = made.await.unwrap();
    postgres_at(&url, &name).await
}

/// A database by way of a pooler, in transaction mode and with two connections.
#[cfg(feature = "postgres")]
pub(crate) async fn pooled(
    server: &dlock_testkit::PostgresServer,
) -> (Site<sqlx::Postgres>, dlock_testkit::PgBouncer) {
    use dlock_testkit::{PgBouncer, PoolMode};
    let pooler = tokio::task::block_in_place(|| PgBouncer::start(server, PoolMode::Transaction, 2).unwrap());
    let options: sqlx::postgres::PgConnectOptions = pooler.url().parse().unwrap();
    let site = site(options, None).await;
    (site, pooler)
}

#[cfg(feature = "postgres")]
pub(crate) async fn postgres_at(url: &str, database: &str) -> Site<sqlx::Postgres> {
    let options: sqlx::postgres::PgConnectOptions = url.parse().unwrap();
    site(options.database(database), None).await
}

async fn site<DB: sqlx::Database>(
    options: <DB::Connection as sqlx::Connection>::Options,
    files: Option<tempfile::TempDir>,
) -> Site<DB> {
    let pool = sqlx::pool::PoolOptions::new().max_connections(10);
    let pool = pool.acquire_timeout(PATIENCE).connect_with(options);
    Site {
        pool: pool.await.unwrap(),
        runtime: runtime(),
        _files: files,
    }
}

#[cfg(feature = "mysql")]
pub(crate) async fn mysql() -> Site<sqlx::MySql> {
    use std::sync::LazyLock;

    use dlock_testkit::MariaDbServer;

    static SERVER: LazyLock<MariaDbServer> = LazyLock::new(|| MariaDbServer::start().unwrap());
    let made = tokio::task::spawn_blocking(|| {
        let name = fresh();
        SERVER.ask(&format!("CREATE DATABASE {name}")).unwrap();
        (SERVER.url(), name)
    });
    let (url, name) = made.await.unwrap();
    mysql_at(&url, &name).await
}

#[cfg(feature = "mysql")]
pub(crate) async fn mysql_at(url: &str, database: &str) -> Site<sqlx::MySql> {
    let options: sqlx::mysql::MySqlConnectOptions = url.parse().unwrap();
    site(options.database(database), None).await
}

#[cfg(feature = "sqlite")]
pub(crate) async fn sqlite() -> Site<sqlx::Sqlite> {
    let files = tempfile::tempdir().unwrap();
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(files.path().join("site.db"))
        .create_if_missing(true)
        .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
        .busy_timeout(LONG);
    site(options, Some(files)).await
}

/// Makes of the tests in the macro `$tests` a module for each database. It is given the database, how a site
/// is opened, how a transaction begins that will write, and how the first two values of a statement are
/// called.
macro_rules! everywhere {
    ($tests:ident) => {
        #[cfg(feature = "postgres")]
        mod postgres {
            $tests!(
                sqlx::Postgres,
                crate::direct::site::postgres,
                "BEGIN",
                "$1",
                "$2"
            );
        }
        #[cfg(feature = "mysql")]
        mod mysql {
            $tests!(
                sqlx::MySql,
                crate::direct::site::mysql,
                "START TRANSACTION",
                "?",
                "?"
            );
        }
        #[cfg(feature = "sqlite")]
        mod sqlite {
            $tests!(
                sqlx::Sqlite,
                crate::direct::site::sqlite,
                "BEGIN IMMEDIATE",
                "?",
                "?"
            );
        }
    };
}
pub(crate) use everywhere;
