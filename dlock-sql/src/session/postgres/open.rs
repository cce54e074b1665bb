//! Opening, and the sequence that the tokens come from.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Runtime, Strength};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool};
use sqlx::{AssertSqlSafe, Connection as _};

use super::failure::{code, failed};
use super::run::RUN;
use super::transaction::TransactionLocks;
use super::wire::PgServer;
use crate::session::connections::Connections;
use crate::session::key::POSTGRES_BYTES;
use crate::session::lock::{SessionLock, invalid};
use crate::session::restart::{self, Grace};
use crate::session::settings::Settings;
use crate::session::wire::Server as _;

/// The shortest ttl: a third of it is a turn of waiting, and a ping.
const SHORTEST_TTL: Duration = Duration::from_millis(300);

/// Settings for session locks in PostgreSQL.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Builder {
    settings: Settings,
    schema: Option<String>,
}

/// With all settings as they usually are.
pub fn builder() -> Builder {
    Builder::default()
}

impl Builder {
    /// After how long without a request the server ends a session and with it gives its locks away: how long a lock stays taken at most when its client has vanished. 30 seconds
    /// unless set; 300 ms to ten minutes, rounded up to milliseconds. It is the smallest ttl of a lock.
    pub fn session_ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// Draws tokens from the sequence `<prefix>session_token`. [`DEFAULT_PREFIX`](crate::session::DEFAULT_PREFIX) unless set; lower-case letters, digits and underscores. Two prefixes are two
    /// sets of locks.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// Where that sequence is. The first schema of the search path unless set. Two schemas are two sets of locks.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// How many connections may wait for a lock, or hold one that was waited for, beside the shared one. 16 unless set. Whoever finds none asks once a second.
    pub fn most_waiting(mut self, connections: usize) -> Self {
        self.settings.most_waiting = connections;
        self
    }

    /// How long a connection may take to be made, and an answer that no lock depends on. 5 seconds unless set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// For how long after it has started a server grants no lock: a session of before may be believed in for its ttl yet, by a client that has not heard that it ended. The session ttl unless set. Where clients of one
    /// prefix have different session ttls, set the longest one for all of them. With less than that, a client that is stopped or cut off while the server is restarted may believe in a lock that somebody else
    /// was granted; zero leaves it at what a connection that ends tells. Ten minutes at most.
    pub fn restart_grace(mut self, grace: Duration) -> Self {
        self.settings.restart_grace = Some(grace);
        self
    }

    /// Opens the database of that pool, on connections of its own: made with the pool's options, and not counted among the pool's. The hooks of the pool are not run.
    ///
    /// # Cancel safety
    /// Cancelled, nothing is left but perhaps the sequence.
    ///
    /// # Errors
    /// `InvalidInput` for a bad setting; `Unsupported` for a server before version 14, or behind a pooler that shares sessions; `BackendData` if the sequence is not as dlock makes it;
    /// `PermissionDenied`; `Unavailable`, also on a standby.
    pub async fn open_pool(self, pool: &PgPool, runtime: Arc<dyn Runtime>) -> Result<SessionLock> {
        self.open(&pool.connect_options(), runtime).await
    }

    /// Opens the database of that URL, `postgres://user:password@host:5432/database`, and what else sqlx takes.
    ///
    /// # Cancel safety
    /// As [`open_pool`](Self::open_pool).
    ///
    /// # Errors
    /// As [`open_pool`](Self::open_pool); `InvalidInput` if it is not such a URL.
    pub async fn open_url(self, url: &str, runtime: Arc<dyn Runtime>) -> Result<SessionLock> {
        self.open(&options_of(url)?, runtime).await
    }

    /// Whether a URL and these settings could be opened, as far as that is known without a server.
    ///
    /// # Errors
    /// `InvalidInput`.
    pub fn check_url(&self, url: &str) -> Result<()> {
        self.settings
            .clone()
            .check(SHORTEST_TTL, Duration::from_millis(1))?;
        options_of(url).map(drop)
    }

    async fn open(self, options: &PgConnectOptions, runtime: Arc<dyn Runtime>) -> Result<SessionLock> {
        let settings = self
            .settings
            .clone()
            .check(SHORTEST_TTL, Duration::from_millis(1))?;
        let at = shown(options);
        let found = self.prepare_in_time(options, &at, &runtime, &settings).await?;
        let turn = settings.ttl / 3;
        let server = PgServer::new(
            options,
            at,
            settings.ttl,
            turn,
            settings.timeout,
            &found.sequence,
            found.grace(&settings),
        );
        let ping = server.ping_every(settings.ttl);
        let timing = settings.timing(turn, ping);
        let connections = Connections::open(Arc::new(server), runtime, timing, settings.most_waiting).await?;
        let space = space(&found.schema, &settings);
        Ok(SessionLock::new(
            connections,
            "postgres-session",
            settings.ttl,
            Strength::AcrossRestart,
            &space,
            POSTGRES_BYTES,
        ))
    }

    /// Locks that live as long as a transaction of yours, under the same names: see [`TransactionLocks`]. Of the settings only the prefix, the schema and the [grace](Self::restart_grace) count; the
    /// latter is to be the longest session ttl of those who use the same names, which it is where the session ttl is set here, too.
    ///
    /// # Cancel safety
    /// As [`open_pool`](Self::open_pool).
    ///
    /// # Errors
    /// As [`open_pool`](Self::open_pool).
    pub async fn transaction_locks(
        self,
        pool: &PgPool,
        runtime: Arc<dyn Runtime>,
    ) -> Result<TransactionLocks> {
        let settings = self
            .settings
            .clone()
            .check(SHORTEST_TTL, Duration::from_millis(1))?;
        let options = pool.connect_options();
        let at = shown(&options);
        let found = self.prepare_in_time(&options, &at, &runtime, &settings).await?;
        let (space, grace) = (space(&found.schema, &settings), found.grace(&settings));
        Ok(TransactionLocks::new(&space, &found.sequence, at, &grace))
    }

    /// In a task of the given runtime, since the driver connects on the one that is current.
    async fn prepare_in_time(
        &self,
        options: &PgConnectOptions,
        at: &str,
        runtime: &Arc<dyn Runtime>,
        settings: &Settings,
    ) -> Result<Found> {
        let (options, at, schema) = (options.clone(), at.to_owned(), self.schema.clone());
        let sequence = settings.sequence();
        let preparing = async move { prepare(&options, &at, schema, &sequence).await };
        crate::session::settings::in_time(runtime, settings.timeout, preparing).await
    }
}

/// What is part of each key: two who exclude one another draw from one sequence.
fn space(schema: &str, settings: &Settings) -> String {
    format!("{schema}.{}", settings.sequence())
}

fn options_of(url: &str) -> Result<PgConnectOptions> {
    // The error of the driver may quote the URL, and with it a password.
    url.parse().map_err(|_| {
        invalid("this is no URL of a PostgreSQL database; it looks like postgres://user:password@host:5432/database".to_owned())
    })
}

/// For messages.
fn shown(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or(options.get_username());
    match options.get_socket() {
        Some(socket) => format!("{}/{database}", socket.display()),
        None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
    }
}

/// What the tokens come from.
struct Found {
    schema: String,
    /// As it is quoted in statements.
    sequence: String,
    made_in: Option<String>,
}

impl Found {
    fn grace(&self, settings: &Settings) -> Grace {
        Grace {
            lasts: settings.grace(),
            made_in: self.made_in.clone(),
        }
    }
}

/// Finds or makes the sequence.
async fn prepare(
    options: &PgConnectOptions,
    at: &str,
    schema: Option<String>,
    sequence: &str,
) -> Result<Found> {
    let told = |e| failed(e, at).error;
    let mut connection = PgConnection::connect_with(options).await.map_err(told)?;
    // Behind a pooler the statements of a transaction are of one session, and others are not.
    let mut tx = connection.begin().await.map_err(told)?;
    let schema = match schema {
        Some(schema) => schema,
        None => {
            const FIRST: &str = "SELECT current_schema()::text";
            let first = sqlx::query_scalar::<_, Option<String>>(FIRST).persistent(false);
            let first = first.fetch_one(&mut *tx).await.map_err(told)?;
            first.ok_or_else(|| {
                invalid(format!(
                    "the search path at {at} has no schema that exists; choose one for dlock"
                ))
            })?
        }
    };
    let quoted = format!("{}.{}", quote(&schema), quote(sequence));
    let mut found = look(&mut tx, &quoted, at).await?;
    if found.is_none() {
        if make(&mut tx, &quoted, at).await? == Made::BySomebodyElse {
            tx.rollback().await.map_err(told)?;
            tx = connection.begin().await.map_err(told)?;
        }
        found = look(&mut tx, &quoted, at).await?;
    }
    tx.commit().await.map_err(told)?;
    let made_in = match found {
        Some((IsOurs::Yes, comment)) => comment.and_then(|comment| restart::made_in(&comment)),
        Some((IsOurs::No, _)) => {
            return Err(Error::new(
                ErrorKind::BackendData,
                format!(
                    "the sequence {quoted} at {at} does not count up by one, without a cache and without an end: tokens from it would not follow one another"
                ),
            ));
        }
        None => {
            return Err(Error::new(
                ErrorKind::BackendData,
                format!("the sequence {quoted} at {at} was made, and is not there"),
            ));
        }
    };
    // What goes wrong in closing it concerns nobody.
    let _ = connection.close().await;
    Ok(Found {
        schema,
        sequence: quoted,
        made_in,
    })
}

enum IsOurs {
    Yes,
    No,
}

/// Whether the sequence is there, and as it has to be: a cache is one of each session, and what they hand out would not be in order. And its comment.
async fn look(
    connection: &mut PgConnection,
    quoted: &str,
    at: &str,
) -> Result<Option<(IsOurs, Option<String>)>> {
    const LOOK: &str = "SELECT seqincrement = 1 AND seqcache = 1 AND NOT seqcycle AND seqmax = 9223372036854775807 AND seqmin > 0, obj_description(seqrelid, 'pg_class') \
         FROM pg_sequence WHERE seqrelid = to_regclass($1)";
    let found = sqlx::query_as::<_, (bool, Option<String>)>(LOOK)
        .bind(quoted)
        .persistent(false);
    let found = found
        .fetch_optional(connection)
        .await
        .map_err(|e| failed(e, at).error)?;
    Ok(found.map(|(is_good, comment)| match is_good {
        true => (IsOurs::Yes, comment),
        false => (IsOurs::No, comment),
    }))
}

#[derive(PartialEq, Eq)]
enum Made {
    Here,
    /// Just now, which has ended this transaction.
    BySomebodyElse,
}

async fn make(connection: &mut PgConnection, quoted: &str, at: &str) -> Result<Made> {
    let sql = format!("CREATE SEQUENCE {quoted} AS bigint INCREMENT 1 MINVALUE 1 START 1 CACHE 1 NO CYCLE");
    let made = sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .execute(&mut *connection)
        .await;
    match made {
        Ok(_) => {
            let told = |e| failed(e, at).error;
            let run = sqlx::query_scalar::<_, String>(AssertSqlSafe(format!("SELECT {RUN}")))
                .persistent(false)
                .fetch_one(&mut *connection)
                .await
                .map_err(told)?;
            let sql = format!("COMMENT ON SEQUENCE {quoted} IS '{}'", restart::comment(&run));
            let noted = sqlx::query(AssertSqlSafe(sql)).persistent(false);
            noted.execute(connection).await.map_err(told)?;
            Ok(Made::Here)
        }
        // unique_violation, duplicate_table
        Err(e) if code(&e).is_some_and(|code| code == "23505" || code == "42P07") => Ok(Made::BySomebodyElse),
        Err(e) => Err(failed(e, at).error),
    }
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_for_statements() {
        assert_eq!(quote("a\"b"), "\"a\"\"b\"");
    }
}
