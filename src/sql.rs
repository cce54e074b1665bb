//! Database servers (PostgreSQL, MySQL, MariaDB), with leases in rows or with locks of sessions.

use std::sync::Arc;

use dlock_core::spi::Url;
use dlock_core::{Result, Runtime, spi};
use dlock_sql::{lease, session};

use crate::invalid;

/// A database that is configured but not opened yet.
pub(crate) enum Sql {
    Lease(Box<lease::Config>),
    Session(Box<session::Config>),
}

impl Sql {
    pub(crate) fn read(mut url: Url) -> Result<Self> {
        match url.take::<String>("strategy")?.as_deref() {
            None | Some("lease") => Ok(Self::Lease(Box::new(lease::Config::read(url)?))),
            Some("session") => {
                let config = session::Config::read(url)?;
                config.check()?;
                Ok(Self::Session(Box::new(config)))
            }
            Some(_) => Err(invalid(
                "the URL's `strategy` must be `lease` or `session`, or be left out",
            )),
        }
    }

    pub(crate) async fn open(self, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn spi::Lock>> {
        match self {
            Self::Lease(config) => config.connect(runtime).await,
            Self::Session(config) => Ok(Arc::new(config.connect(runtime).await?)),
        }
    }
}
