//! What can be done to a database server, for the rules that need hands at the store.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use dlock_conformance::hooks::{Hooks, Offer, Restart, Step, Vitals};
use dlock_core::{Error, ErrorKind, LockName, Result};
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::BoxFuture;

use super::sql::Way;
use dlock_testkit::{MariaDbOptions, MariaDbServer, PgBouncer, PoolMode, PostgresOptions, PostgresServer};

/// Whose hands.
#[derive(Clone)]
enum Store {
    Postgres(Arc<PostgresServer>, Option<Arc<PgBouncer>>),
    MariaDb(Arc<MariaDbServer>),
}

impl Store {
    fn ask(&self, sql: &str) -> io::Result<String> {
        match self {
            Self::Postgres(server, _) => server.ask(sql),
            Self::MariaDb(server) => server.ask(sql),
        }
    }

    fn number(&self, sql: &str) -> io::Result<i64> {
        match self {
            Self::Postgres(server, _) => server.number(sql),
            Self::MariaDb(server) => server.number(sql),
        }
    }

    /// Bytes as they are written in a statement.
    fn bytes(&self, of: &[u8]) -> String {
        let hex = of.iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        match self {
            Self::Postgres(..) => format!("'\\x{hex}'::bytea"),
            Self::MariaDb(_) => format!("x'{hex}'"),
        }
    }

    fn look(&self) -> io::Result<Vitals> {
        let (pid, now) = match self {
            Self::Postgres(server, _) => (
                server.pid(),
                "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
            ),
            Self::MariaDb(server) => (
                server.pid(),
                "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))",
            ),
        };
        let now = u64::try_from(self.number(now)?).map_err(io::Error::other)?;
        Ok(Vitals::new()
            .run(pid.unwrap_or(0).to_string())
            .clock(Duration::from_micros(now)))
    }
}

/// The hooks of a server that has locks of `dlock-sql` in tables that are called as they are unless something
/// else is chosen.
pub(crate) struct SqlHooks {
    store: Store,
    way: Way,
}

/// Blocking work, on a thread of its own once it is polled. Dropped, it is left to end.
fn apart<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> BoxFuture<'static, Result<T>> {
    async move {
        let (tell, told) = oneshot::channel();
        std::thread::spawn(move || drop(tell.send(work())));
        let done = told
            .await
            .unwrap_or_else(|_| Err(io::Error::other("it panicked")));
        done.map_err(|e| {
            Error::new(ErrorKind::Unavailable, "the server could not be tampered with").with_source(e)
        })
    }
    .boxed()
}

impl SqlHooks {
    /// Starts a server. Its clock can be set where leases end by it; a clock that is set moves the time
    /// limits of MariaDB's own waits, which is what its session locks are made of.
    pub(crate) fn start(way: Way) -> io::Result<Self> {
        let store = match way {
            Way::Postgres => {
                let server = PostgresServer::with(PostgresOptions::new().durable().own_clock())?;
                Store::Postgres(Arc::new(server), None)
            }
            Way::PostgresSession => Store::Postgres(Arc::new(PostgresServer::start()?), None),
            Way::PostgresPooler => {
                let server = PostgresServer::with(PostgresOptions::new().durable().own_clock())?;
                let pooler = PgBouncer::start(&server, PoolMode::Transaction, 8)?;
                Store::Postgres(Arc::new(server), Some(Arc::new(pooler)))
            }
            Way::MariaDb => {
                let server = MariaDbServer::with(MariaDbOptions::new().durable().own_clock())?;
                Store::MariaDb(Arc::new(server))
            }
            Way::MariaDbSession => {
                // It shows who has which lock.
                let options = MariaDbOptions::new().setting("plugin-load-add", "metadata_lock_info");
                Store::MariaDb(Arc::new(MariaDbServer::with(options)?))
            }
        };
        Ok(Self { store, way })
    }

    /// Where clients go.
    pub(crate) fn url(&self) -> String {
        match &self.store {
            Store::Postgres(_, Some(pooler)) => pooler.url(),
            Store::Postgres(server, None) => server.url(),
            Store::MariaDb(server) => server.url(),
        }
    }

    fn hand<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T>> {
        let store = self.store.clone();
        apart(move || work(&store))
    }

    /// How many rows the run has, for [`Harness::footprint`](dlock_conformance::Harness::footprint). Not
    /// counted is what goes by itself after two to three minutes: the rows of names that nobody uses, and
    /// marks of abandoned requests; they count if they are there still. Of session locks: those that the
    /// server has.
    pub(crate) fn footprint(&self, namespace: &str) -> BoxFuture<'static, Result<u64>> {
        let (is_session, namespace) = (self.way.is_session(), format!("{namespace}/"));
        self.hand(move |store| {
            // What others left behind comes of age meanwhile.
            let ours = store.bytes(namespace.as_bytes());
            let ours = format!("SUBSTRING(name, 1, {}) = {ours}", namespace.len());
            let count = |at: &str, ago: &str| {
                let live = format!("{ours} AND NOT ends BETWEEN at - {ago} AND at");
                format!(
                    "WITH now AS (SELECT {at} AS at) SELECT \
                        (SELECT count(*) FROM dlock_name, now WHERE {live}) \
                        + (SELECT count(*) FROM dlock_entry, now WHERE {live} AND phase <> 5) \
                        + (SELECT count(*) FROM dlock_fence)"
                )
            };
            let sql = match (store, is_session) {
                (Store::Postgres(..), false) => count("clock_timestamp()", "interval '200 s'"),
                (Store::MariaDb(_), false) => count(
                    "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))",
                    "150000000",
                ),
                (Store::Postgres(..), true) => {
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'".to_owned()
                }
                (Store::MariaDb(_), true) => {
                    "SELECT count(*) FROM information_schema.METADATA_LOCK_INFO WHERE LOCK_TYPE = 'User lock'"
                        .to_owned()
                }
            };
            u64::try_from(store.number(&sql)?).map_err(io::Error::other)
        })
    }

    /// The row of that name, made if it is not there.
    fn upsert(store: &Store, name: &LockName, set: &str) -> io::Result<()> {
        let name = store.bytes(name.as_bytes());
        let make = match store {
            Store::Postgres(..) => {
                format!("INSERT INTO dlock_name (name, token) VALUES ({name}, 1) ON CONFLICT DO NOTHING")
            }
            Store::MariaDb(_) => format!(
                "INSERT IGNORE INTO dlock_name (name, phase, share, priority, arrival, token, ttl, ends, \
                    upgrading, others, changes) \
                 VALUES ({name}, 0, -1, 5, 0, 1, 0, 0, 0, 0, 0)"
            ),
        };
        store.ask(&format!(
            "{make}; UPDATE dlock_name SET {set} WHERE name = {name}"
        ))?;
        Ok(())
    }
}

impl Hooks for SqlHooks {
    fn vitals(&self) -> Offer<'_, Vitals> {
        Some(self.hand(Store::look))
    }

    fn restart(&self, how: Restart) -> Offer<'_> {
        Some(self.hand(move |store| match store {
            Store::Postgres(server, _) => {
                match how {
                    Restart::InOrder => server.stop_in_order()?,
                    Restart::Crash => server.crash()?,
                }
                server.start_again()
            }
            Store::MariaDb(server) => {
                match how {
                    Restart::InOrder => server.stop_in_order()?,
                    Restart::Crash => server.crash()?,
                }
                server.start_again()
            }
        }))
    }

    fn step_clock(&self, step: Step) -> Offer<'_> {
        if self.way.is_session() {
            return None;
        }
        let by = match step {
            Step::Forward(by) => i64::try_from(by.as_millis()).unwrap_or(i64::MAX),
            Step::Back(by) => -i64::try_from(by.as_millis()).unwrap_or(i64::MAX),
        };
        Some(self.hand(move |store| match store {
            Store::Postgres(server, _) => server.clock()?.step(by),
            Store::MariaDb(server) => server.clock()?.step(by),
        }))
    }

    fn set_counter<'a>(&'a self, name: &'a LockName, to: u64) -> Offer<'a> {
        if self.way.is_session() {
            return None;
        }
        let name = name.clone();
        Some(self.hand(move |store| Self::upsert(store, &name, &format!("token = {to}"))))
    }

    fn counter<'a>(&'a self, name: &'a LockName) -> Offer<'a, u64> {
        if self.way.is_session() {
            return None;
        }
        let name = name.clone();
        Some(self.hand(move |store| {
            let name = store.bytes(name.as_bytes());
            let sql = format!("SELECT coalesce(max(token), 0) FROM dlock_name WHERE name = {name}");
            u64::try_from(store.number(&sql)?).map_err(io::Error::other)
        }))
    }

    /// A holder of a phase that there is none of.
    fn spoil<'a>(&'a self, name: &'a LockName, with: &'a str) -> Offer<'a> {
        if self.way.is_session() {
            return None;
        }
        let (name, with) = (name.clone(), with.to_owned());
        Some(self.hand(move |store| Self::upsert(store, &name, &format!("phase = 9, owner = '{with}'"))))
    }

    fn stored<'a>(&'a self, name: &'a LockName) -> Offer<'a, Vec<u8>> {
        if self.way.is_session() {
            return None;
        }
        let name = name.clone();
        Some(self.hand(move |store| {
            let name = store.bytes(name.as_bytes());
            let all = store.ask(&format!(
                "SELECT phase, owner FROM dlock_name WHERE name = {name}; SELECT phase, owner FROM \
                    dlock_entry WHERE name = {name}"
            ));
            all.map(String::into_bytes)
        }))
    }

    /// Ends the sessions that hold any lock: the rules that ask for it run alone.
    fn evict<'a>(&'a self, _: &'a LockName) -> Offer<'a> {
        if !self.way.is_session() {
            return None;
        }
        Some(self.hand(|store| match store {
            Store::Postgres(server, _) => {
                let holders = server.ask(
                    "SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory' AND \
                    granted",
                )?;
                for pid in holders.lines() {
                    server.terminate(pid.parse().map_err(io::Error::other)?)?;
                }
                Ok(())
            }
            Store::MariaDb(server) => {
                let holders = server.ask(
                    "SELECT DISTINCT THREAD_ID FROM information_schema.METADATA_LOCK_INFO WHERE LOCK_TYPE = \
                        'User lock'",
                )?;
                for id in holders.lines() {
                    server.kill_connection(id.parse().map_err(io::Error::other)?)?;
                }
                Ok(())
            }
        }))
    }

    fn mend<'a>(&'a self, name: &'a LockName) -> Offer<'a> {
        if self.way.is_session() {
            return None;
        }
        let name = name.clone();
        Some(self.hand(move |store| {
            let name = store.bytes(name.as_bytes());
            store
                .ask(&format!(
                    "DELETE FROM dlock_entry WHERE name = {name}; DELETE FROM dlock_name WHERE name = {name}"
                ))
                .map(drop)
        }))
    }
}
