//! Databases that are servers: PostgreSQL, MySQL and MariaDB, by leases in rows or by locks of sessions.

use std::sync::Arc;

use dlock_core::spi::Url;
use dlock_core::{Result, Runtime, spi};
use dlock_sql::{driver_url, lease, session};

use crate::invalid;

/// A database that is known in full but not opened yet.
pub(crate) enum Sql {
    Lease(Box<lease::Config>),
    Session(Box<session::Config>),
}

impl Sql {
    pub(crate) fn read(mut url: Url) -> Result<Self> {
        match url.take::<String>("strategy")?.as_deref() {
            None | Some("lease") => Ok(Self::Lease(Box::new(lease::Config::read(url)?))),
            Some("session") => Ok(Self::Session(Box::new(of_session(url)?))),
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

/// Checked as far as that can be done without a server.
fn of_session(mut url: Url) -> Result<session::Config> {
    let mut config = session::Config::from_url(&driver_url(&mut url)?)?;
    if let Some(prefix) = url.take::<String>("table_prefix")? {
        config = config.prefix(prefix);
    }
    if let Some(schema) = url.take::<String>("schema")? {
        if matches!(url.scheme(), "mysql" | "mariadb") {
            return Err(invalid(
                "a `mysql` URL with `strategy=session` takes no `schema`: its locks are of the database that \
                    the URL names",
            ));
        }
        config = config.schema(schema);
    }
    config = config.read(&mut url)?;
    url.finish()?;
    config.check()?;
    Ok(config)
}
