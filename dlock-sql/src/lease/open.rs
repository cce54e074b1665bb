//! Opens a backend with the options.

use std::sync::Arc;

use dlock_core::spi::Lock;
use dlock_core::{Result, Runtime};

use super::Config;
#[cfg(feature = "mysql")]
use super::mysql;
#[cfg(feature = "postgres")]
use super::postgres;
use crate::driver_url::Options;

impl Config {
    /// Connects, and creates or updates the tables. A user that may not create tables can connect when they
    /// are there in this version.
    ///
    /// # Cancel safety
    /// Cancelled, nothing is left but perhaps the empty tables.
    ///
    /// # Errors `InvalidInput` for a bad prefix, or a database or schema that is not there; `Unsupported` if
    /// a newer dlock has used the tables, or behind an undeclared pooler; `BackendData` if the tables are not
    /// ours; `PermissionDenied`; `Unavailable`.
    pub async fn connect(self, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Lock>> {
        self.check()?;
        Ok(match &self.database {
            #[cfg(feature = "postgres")]
            Options::Postgres(options) => Arc::new(postgres::open(options, &self, runtime).await?),
            #[cfg(feature = "mysql")]
            Options::Mysql(options) => Arc::new(mysql::open(options, &self, runtime).await?),
        })
    }
}
