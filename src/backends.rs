//! Which scheme is which store.

use std::sync::Arc;

use dlock_core::memory::Memory;
#[cfg(not(feature = "sqlite"))]
use dlock_core::{Error, ErrorKind};
use dlock_core::{Result, Runtime, spi};

use crate::address::{Address, invalid};

/// A store that is known in full but not opened yet.
pub(crate) enum Opener {
    Memory,
    #[cfg(feature = "sqlite")]
    Sqlite(dlock_sql::sqlite::Builder),
}

/// Reads what is left of the address.
pub(crate) fn opener(address: Address) -> Result<Opener> {
    match &*address.scheme {
        "memory" => memory(address),
        "sqlite" => sqlite(address),
        _ => Err(invalid(
            "the scheme of the URL is not known; known are: memory, sqlite",
        )),
    }
}

impl Opener {
    pub(crate) async fn open(self, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn spi::Lock>> {
        match self {
            Self::Memory => Ok(Memory::new(runtime).connect()),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(builder) => Ok(Arc::new(builder.open(runtime).await?)),
        }
    }
}

fn memory(address: Address) -> Result<Opener> {
    if !address.place.is_empty() {
        return Err(invalid(
            "a `memory` URL names nothing behind `//`: its store is this client's own; to share one between clients, \
             make a `Memory` and build each client on a link to it",
        ));
    }
    address.finish()?;
    Ok(Opener::Memory)
}

#[cfg(feature = "sqlite")]
fn sqlite(mut address: Address) -> Result<Opener> {
    if address.place.is_empty() {
        return Err(invalid(
            "a `sqlite` URL needs a path, as in `sqlite://locks.db`, or is `sqlite::memory:`",
        ));
    }
    // Taken for a path, it would be shown in errors with whatever password it has.
    if address.names_a_host && address.place != ":memory:" {
        return Err(invalid(
            "a `sqlite` URL names a file, without user, password, host or port; \
             an `@` or `:` at the beginning of a path is written `%40` or `%3A`, or comes behind `./`",
        ));
    }
    let mut builder = dlock_sql::sqlite::SqliteLock::builder(&address.place);
    if let Some(prefix) = address.take::<String>("table_prefix")? {
        builder = builder.table_prefix(prefix);
    }
    if let Some(budget) = address.take("busy_budget")? {
        builder = builder.busy_budget(budget);
    }
    address.finish()?;
    Ok(Opener::Sqlite(builder))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_: Address) -> Result<Opener> {
    Err(disabled("sqlite"))
}

#[cfg(not(feature = "sqlite"))]
fn disabled(feature: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("this build has no `{feature}` backend: enable the feature `{feature}` of `dlock-rs`"),
    )
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

    #[test]
    fn a_sqlite_url_with_a_host_or_a_secret_is_refused_without_repeating_it() {
        for url in [
            "sqlite://user:hunter2@host/db",
            "sqlite:user:hunter2@host/db",
            "sqlite://hunter2@host/db",
            "sqlite://user:hun/hunter2@host/db",
            "sqlite://hunter2:5432/db",
        ] {
            let e = Address::parse(url).and_then(opener).map(|_| ()).expect_err(url);
            assert_eq!(e.kind(), dlock_core::ErrorKind::InvalidInput, "{url}");
            assert!(e.to_string().contains("names a file"), "{e}");
            assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
        }
    }

    #[test]
    fn paths_are_paths_whatever_signs_they_have() {
        for url in [
            "sqlite:locks.db",
            "sqlite://path/to/file",
            "sqlite:///var/lib/a@b:c/locks.db",
            "sqlite://./a@b:c",
            "sqlite://a%40b%3Ac",
            "sqlite::memory:",
            "sqlite://:memory:",
        ] {
            if let Err(e) = Address::parse(url).and_then(opener) {
                panic!("{url}: {e}");
            }
        }
    }
}
