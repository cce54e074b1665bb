//! Opening, and where the tokens come from.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Runtime, Strength};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlPool};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use super::failure::failed;
use super::run::{age, run};
use super::wire::MySqlServer;
use crate::session::connections::Connections;
use crate::session::key::MYSQL_BYTES;
use crate::session::lock::{SessionLock, invalid};
use crate::session::restart::{self, Grace};
use crate::session::settings::{Settings, in_time};
use crate::session::wire::Server as _;

/// The servers count in seconds, and a turn of waiting is a third of the ttl.
const SECOND: Duration = Duration::from_secs(1);
const SHORTEST_TTL: Duration = Duration::from_secs(3);

/// Which of the two it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Product {
    MySql,
    MariaDb,
}

/// Settings for session locks in MySQL and MariaDB.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Builder {
    settings: Settings,
}

/// With all settings as they usually are.
pub fn builder() -> Builder {
    Builder::default()
}

impl Builder {
    /// After how long without a request the server ends a session and with it gives its locks away: how long a lock stays taken at most when its client has vanished. 30 seconds
    /// unless set; 3 seconds to ten minutes, rounded up to seconds. It is the smallest ttl of a lock.
    pub fn session_ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// Draws tokens from `<prefix>session_token`. [`DEFAULT_PREFIX`](crate::session::DEFAULT_PREFIX) unless set; lower-case letters, digits and underscores. Two prefixes are two sets of
    /// locks.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
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
    /// Cancelled, nothing is left but perhaps the sequence or table of the tokens.
    ///
    /// # Errors
    /// `InvalidInput` for a bad setting, or options without a database; `Unsupported` for a server that is too old, or behind a proxy that shares sessions; `BackendData` if the tokens are not as
    /// dlock keeps them; `PermissionDenied`; `Unavailable`.
    pub async fn open_pool(self, pool: &MySqlPool, runtime: Arc<dyn Runtime>) -> Result<SessionLock> {
        self.open(&pool.connect_options(), runtime).await
    }

    /// Opens the database of that URL, `mysql://user:password@host:3306/database`, and what else sqlx takes.
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
        self.settings.clone().check(SHORTEST_TTL, SECOND)?;
        options_of(url).map(drop)
    }

    async fn open(self, options: &MySqlConnectOptions, runtime: Arc<dyn Runtime>) -> Result<SessionLock> {
        let settings = self.settings.check(SHORTEST_TTL, SECOND)?;
        let at = shown(options);
        let (for_task, at_too, sequence) = (options.clone(), at.clone(), settings.sequence());
        let preparing = async move { prepare(&for_task, &at_too, &sequence).await };
        let prepared = in_time(&runtime, settings.timeout, preparing).await?;
        let turn = Duration::from_secs((settings.ttl.as_secs() / 3).max(1));
        let server = MySqlServer::new(
            options,
            at,
            settings.ttl,
            turn,
            prepared.product,
            &prepared.tokens,
            Grace {
                lasts: settings.grace(),
                made_in: prepared.made_in,
            },
        );
        let timing = settings.timing(turn, server.ping_every(settings.ttl));
        let connections = Connections::open(Arc::new(server), runtime, timing, settings.most_waiting).await?;
        let space = format!("{}.{}", prepared.database, settings.sequence());
        Ok(SessionLock::new(
            connections,
            "mysql-session",
            settings.ttl,
            prepared.strength,
            &space,
            MYSQL_BYTES,
        ))
    }
}

struct Prepared {
    product: Product,
    strength: Strength,
    /// As the server writes its name.
    database: String,
    /// The quoted name of the sequence or table.
    tokens: String,
    /// In which run of the server it was made, if that is known.
    made_in: Option<String>,
}

fn options_of(url: &str) -> Result<MySqlConnectOptions> {
    // The error of the driver may quote the URL, and with it a password.
    url.parse().map_err(|_| {
        invalid(
            "this is no URL of a MySQL database; it looks like mysql://user:password@host:3306/database"
                .to_owned(),
        )
    })
}

/// For messages.
fn shown(options: &MySqlConnectOptions) -> String {
    let database = options.get_database().unwrap_or("");
    match options.get_socket() {
        Some(socket) => format!("{}/{database}", socket.display()),
        None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
    }
}

/// Finds out whom it talks to, and finds or makes what the tokens come from.
async fn prepare(options: &MySqlConnectOptions, at: &str, sequence: &str) -> Result<Prepared> {
    let told = |e| failed(e, at).error;
    let mut connection = MySqlConnection::connect_with(options).await.map_err(told)?;
    const WHO: &str = "SELECT CAST(VERSION() AS CHAR), CAST(@@GLOBAL.innodb_flush_log_at_trx_commit AS SIGNED), \
         (SELECT CAST(schema_name AS CHAR) FROM information_schema.schemata WHERE schema_name = DATABASE())";
    let who = sqlx::query_as::<_, (String, i64, Option<String>)>(WHO);
    let (version, flush, database) = who.fetch_one(&mut connection).await.map_err(told)?;
    let product = product(&version).ok_or_else(|| {
        let message = format!("{at} is of version {version}; session locks need MySQL 8.0 or MariaDB 10.5");
        Error::new(ErrorKind::Unsupported, message)
    })?;
    let database = database.ok_or_else(|| {
        invalid(format!(
            "the options for {at} name no database, and the tokens need one"
        ))
    })?;
    let tokens = format!("{}.{}", quote(&database), quote(sequence));
    let made_in = match product {
        Product::MariaDb => make_sequence(&mut connection, &database, sequence, &tokens, at).await?,
        Product::MySql => make_table(&mut connection, &database, sequence, &tokens, at).await?,
    };
    // What goes wrong in closing it concerns nobody.
    let _ = connection.close().await;
    let strength = match flush {
        1 => Strength::AcrossRestart,
        // The log of the last tokens may be lost in a crash.
        _ => Strength::WhileStateSurvives,
    };
    Ok(Prepared {
        product,
        strength,
        database,
        tokens,
        made_in,
    })
}

/// Which it is, if it is new enough.
fn product(version: &str) -> Option<Product> {
    // What replicas of old releases trip over is put in front: 5.5.5-10.11.19-MariaDB.
    let plain = version.strip_prefix("5.5.5-").unwrap_or(version);
    let mut numbers = plain
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse::<u32>().ok());
    let release = (numbers.next()??, numbers.next()??);
    match version.contains("MariaDB") {
        true => (release >= (10, 5)).then_some(Product::MariaDb),
        false => (release >= (8, 0)).then_some(Product::MySql),
    }
}

/// What is made after this is made in this run.
///
/// A run is called by the second in which it began. A server that crashed in its first second, and was back within that, would have two runs of one name, and what was believed in before would be taken for
/// nothing. So nothing is made in the second in which the run began: any later run begins after this is answered, and so in another second. It is waited for by the server's clock, and once in the life of a prefix.
async fn this_run(connection: &mut MySqlConnection, product: Product, at: &str) -> Result<String> {
    loop {
        let sql = AssertSqlSafe(format!("SELECT {}, {}", run(product), age(product)));
        let asked = sqlx::query_as::<_, (i64, i64)>(sql)
            .fetch_one(&mut *connection)
            .await;
        let (run, age) = asked.map_err(|e| failed(e, at).error)?;
        if age >= 1 {
            return Ok(restart::comment(&run.to_string()));
        }
        let waited = connection.execute("DO SLEEP(0.2)").await;
        waited.map_err(|e| failed(e, at).error)?;
    }
}

/// Of what kind the thing of that name is, of which engine, and its comment.
async fn kind_of(
    connection: &mut MySqlConnection,
    database: &str,
    name: &str,
    at: &str,
) -> Result<Option<(String, String, String)>> {
    const KIND: &str = "SELECT CAST(table_type AS CHAR), CAST(COALESCE(engine, '') AS CHAR), CAST(table_comment AS CHAR) FROM information_schema.tables \
         WHERE table_schema = ? AND table_name = ?";
    let asked = sqlx::query_as::<_, (String, String, String)>(KIND)
        .bind(database)
        .bind(name);
    asked
        .fetch_optional(connection)
        .await
        .map_err(|e| failed(e, at).error)
}

async fn make_sequence(
    connection: &mut MySqlConnection,
    database: &str,
    name: &str,
    tokens: &str,
    at: &str,
) -> Result<Option<String>> {
    if kind_of(connection, database, name, at).await?.is_none() {
        let comment = this_run(connection, Product::MariaDb, at).await?;
        let sql = format!(
            "CREATE SEQUENCE IF NOT EXISTS {tokens} START WITH 1 MINVALUE 1 INCREMENT BY 1 CACHE 1000 NOCYCLE ENGINE = InnoDB \
             COMMENT = '{comment}'"
        );
        connection
            .execute(AssertSqlSafe(sql))
            .await
            .map_err(|e| failed(e, at).error)?;
    }
    let made_in = check_kind(connection, database, name, "SEQUENCE", at).await?;
    let sql = format!(
        "SELECT CAST(increment AS SIGNED), CAST(cycle_option AS SIGNED), CAST(minimum_value AS SIGNED) FROM {tokens}"
    );
    let asked = sqlx::query_as::<_, (i64, i64, i64)>(AssertSqlSafe(sql));
    let (step, cycles, least) = asked
        .fetch_one(connection)
        .await
        .map_err(|e| failed(e, at).error)?;
    match step == 1 && cycles == 0 && least > 0 {
        true => Ok(made_in),
        false => Err(changed(name, at)),
    }
}

async fn make_table(
    connection: &mut MySqlConnection,
    database: &str,
    name: &str,
    tokens: &str,
    at: &str,
) -> Result<Option<String>> {
    if kind_of(connection, database, name, at).await?.is_none() {
        let comment = this_run(connection, Product::MySql, at).await?;
        let sql = format!(
            "CREATE TABLE IF NOT EXISTS {tokens} (one TINYINT NOT NULL PRIMARY KEY, n BIGINT UNSIGNED NOT NULL) ENGINE = InnoDB \
             COMMENT = '{comment}'"
        );
        let made = connection.execute(AssertSqlSafe(sql)).await;
        made.map_err(|e| failed(e, at).error)?;
    }
    let made_in = check_kind(connection, database, name, "BASE TABLE", at).await?;
    // Whoever made the table may have got no further.
    let sql = format!("SELECT CAST(COUNT(*) AS SIGNED) FROM {tokens}");
    let rows = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql))
        .fetch_one(&mut *connection)
        .await;
    if rows.map_err(|e| failed(e, at).error)? == 0 {
        let sql = format!("INSERT IGNORE INTO {tokens} (one, n) VALUES (1, 0)");
        let made = connection.execute(AssertSqlSafe(sql)).await;
        made.map_err(|e| failed(e, at).error)?;
    }
    Ok(made_in)
}

/// Answers in which run it was made.
async fn check_kind(
    connection: &mut MySqlConnection,
    database: &str,
    name: &str,
    kind: &str,
    at: &str,
) -> Result<Option<String>> {
    match kind_of(connection, database, name, at).await? {
        // Others are not safe in a crash.
        Some((is, engine, comment)) if is == kind && engine.eq_ignore_ascii_case("InnoDB") => {
            Ok(restart::made_in(&comment))
        }
        _ => Err(changed(name, at)),
    }
}

fn changed(name: &str, at: &str) -> Error {
    Error::new(
        ErrorKind::BackendData,
        format!(
            "`{name}` at {at} is not as dlock makes it: tokens from it would not follow one another; choose another prefix, or remove it"
        ),
    )
}

fn quote(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_new_enough_is_read_from_the_version() {
        for (version, is) in [
            ("8.0.36", Some(Product::MySql)),
            ("8.4.2-log", Some(Product::MySql)),
            ("5.7.44", None),
            ("10.11.19-MariaDB-0+deb12u1", Some(Product::MariaDb)),
            ("5.5.5-10.6.1-MariaDB", Some(Product::MariaDb)),
            ("10.4.34-MariaDB", None),
            ("", None),
        ] {
            assert_eq!(product(version), is, "{version}");
        }
    }
}
