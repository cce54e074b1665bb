//! `GET_LOCK` of MySQL 8 and MariaDB 10.5 and later.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use dlock_core::{Result, Runtime};
//! # async fn f(pool: sqlx::MySqlPool, runtime: Arc<dyn Runtime>) -> Result<()> {
//! use std::time::Duration;
//! use dlock_sql::session::Config;
//!
//! let backend = Config::from_mysql_pool(&pool)
//!     .session_ttl(Duration::from_secs(10))
//!     .connect(runtime)
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! Locks of that kind are those of one *server*; the name of the database is part of what is hashed, so two
//! databases have nothing to do with one another.
//!
//! # The tokens
//!
//! They come from the database: from a sequence in MariaDB, which keeps a block of them in the memory of the
//! server for all sessions, and from a row in MySQL, which has no sequences: there each lock costs another
//! statement and a commit. In both the log has to be safe at each commit (`innodb_flush_log_at_trx_commit =
//! 1`) for tokens to grow across a crash; where it is not, the declared strength is `WhileStateSurvives`. Who
//! is to lock needs `SELECT` and `INSERT` on the sequence, `SELECT` and `UPDATE` on the table.
//!
//! After a *wait* the token is drawn by a statement of its own, in MariaDB by the second one of a block that
//! is sent as one: a waiting statement that names a table would keep `FLUSH TABLES WITH READ LOCK`, and
//! thereby all writers, waiting behind it.
//!
//! # What it does not guarantee
//!
//! * The driver does not read while nothing is asked. That a session was killed is seen at the next ping: a
//!   second later while something is held, or a third of the ttl if that is less. Until then somebody else
//!   may hold the lock as well: use the tokens. (After a restart of the server nobody else does: see the
//!   [module above](super).)
//! * Nodes of a Galera cluster know nothing of one another's locks, and nor do the primaries before and after
//!   a fail-over.

mod connection;
mod failure;
mod schema;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::Result;
use sqlx::mysql::MySqlConnectOptions;

use super::dialect::{Limits, Opened, Settings, shown};
use super::keys::MYSQL_BYTES;

/// The servers count in seconds, and a turn of waiting is a third of the ttl. The end of a session is seen by
/// a ping only.
pub(super) const LIMITS: Limits = Limits {
    name: "mysql-session",
    shortest_ttl: Duration::from_secs(3),
    granularity: Duration::from_secs(1),
    ping: Duration::from_secs(1),
    key_bytes: MYSQL_BYTES,
};

/// Finds out which server it is, and finds or makes what the tokens come from.
pub(super) async fn open(options: MySqlConnectOptions, settings: Settings) -> Result<Opened> {
    let database = options.get_database().unwrap_or_default();
    let at = shown(
        options.get_socket(),
        options.get_host(),
        options.get_port(),
        database,
    );
    let timing = settings.timing;
    let (product, tokens) = schema::prepare(&options, &at, settings).await?;
    let server = connection::MySqlServer::new(options, at, timing, &tokens, product);
    let server = Arc::new(server);
    Ok(Opened { server, tokens })
}
