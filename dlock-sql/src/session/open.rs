//! Opens a lock with the options.

use std::sync::Arc;

use dlock_core::{Result, Runtime};
use futures::FutureExt as _;
use futures::channel::oneshot;

use super::board::Board;
use super::config::Config;
use super::connection::{Connections, within};
use super::dialect::{Dialect, Site};
use super::failure::runtime_ended;
use super::lock::SessionLock;
#[cfg(feature = "mysql")]
use super::mysql::MySql;
#[cfg(feature = "postgres")]
use super::{
    failure::unsupported,
    postgres::{Postgres, TransactionLocks},
};
use crate::driver_url::Options;

impl Config {
    /// Connects.
    ///
    /// # Cancel safety
    /// Cancelled, nothing is left but perhaps the sequence or table of the tokens.
    ///
    /// # Errors
    /// `InvalidInput` for a bad setting, or options without a database (MySQL); `Unsupported` for a server
    /// that is too old, or behind a pooler that shares sessions; `BackendData` if the tokens are not as dlock
    /// keeps them; `PermissionDenied`; `Unavailable`, also on a standby.
    pub async fn connect(self, runtime: Arc<dyn Runtime>) -> Result<SessionLock> {
        let config = self.checked()?;
        let (dialect, site) = config.open(&runtime).await?;
        SessionLock::open(Connections {
            board: Arc::new(Board::new(config.most_waiting)),
            runtime,
            dialect,
            site,
            config,
        })
        .await
    }

    /// Locks that live as long as a transaction of yours, under the same names: see [`TransactionLocks`]. Of
    /// the settings only the prefix, the schema, and the session ttl or [grace](Self::restart_grace) count.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `Unsupported` if the database is not PostgreSQL.
    #[cfg(feature = "postgres")]
    pub async fn transaction_locks(self, runtime: Arc<dyn Runtime>) -> Result<TransactionLocks> {
        let config = self.checked()?;
        if !config.limits.is_postgres {
            return Err(unsupported("MySQL and MariaDB have no transaction locks"));
        }
        let (_, site) = config.open(&runtime).await?;
        Ok(TransactionLocks::new(&site))
    }

    async fn open(&self, runtime: &Arc<dyn Runtime>) -> Result<(Arc<dyn Dialect>, Site)> {
        let dialect = match self.database.clone() {
            #[cfg(feature = "postgres")]
            Options::Postgres(options) => Postgres::dialect(Arc::unwrap_or_clone(options)),
            #[cfg(feature = "mysql")]
            Options::Mysql(options) => MySql::dialect(Arc::unwrap_or_clone(options)),
        };
        let (config, asked, its_own) = (self.clone(), dialect.clone(), runtime.clone());
        let (send, opened) = oneshot::channel();
        let opening = async move {
            let opening = asked.prepare(&config);
            let opened = within(config.timeout, &its_own, "the database", opening).await;
            let _ = send.send(opened);
        };
        // The driver spawns on the runtime that is current.
        runtime.spawn(opening.boxed());
        let site = opened.await.unwrap_or_else(|_| Err(runtime_ended()))?;
        Ok((dialect, site))
    }
}
