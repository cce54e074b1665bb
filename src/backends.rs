//! Which scheme is which store.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::memory::Memory;
use dlock_core::spi::Url;
#[cfg(not(all(
    feature = "sqlite",
    feature = "redis",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql"
)))]
use dlock_core::{Error, ErrorKind};
use dlock_core::{Result, Runtime, spi};

use crate::invalid;
use crate::quorum::{self, Member};
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::sql::{self, Sql};

/// A store that is known in full but not opened yet.
pub(crate) enum Opener {
    Memory,
    #[cfg(feature = "sqlite")]
    Sqlite(dlock_sql::sqlite::Config),
    #[cfg(feature = "redis")]
    Redis(Box<dlock_redis::Config>),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(Box<dlock_zk::Config>),
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    Sql(Box<Sql>),
    Quorum(Vec<Self>, Duration),
}

/// Reads what is left of the url.
pub(crate) fn opener(url: Url) -> Result<Opener> {
    match url.scheme() {
        "memory" => memory(url),
        "sqlite" => sqlite(url),
        "redis" | "rediss" | "valkey" | "valkeys" => redis(url),
        "zk" | "zookeeper" | "zks" => zookeeper(url),
        "postgres" | "postgresql" => postgres(url),
        "mysql" | "mariadb" => mysql(url),
        scheme if ["redis", "valkey"].iter().any(|s| scheme.starts_with(s)) && scheme.contains('+') => {
            redis(url)
        }
        _ => Err(invalid(format!(
            "the scheme of the URL is not known; this build knows: {}",
            SCHEMES.concat()
        ))),
    }
}

/// What this build opens, for the message about another one.
const SCHEMES: [&str; 6] = [
    "memory",
    if cfg!(feature = "sqlite") { ", sqlite" } else { "" },
    match (cfg!(feature = "redis"), cfg!(feature = "redis-tls")) {
        (false, _) => "",
        (true, false) => ", redis (or valkey; +unix, +sentinel, +cluster)",
        (true, true) => ", redis, rediss (or valkey, valkeys; +unix, +sentinel, +cluster)",
    },
    match (cfg!(feature = "zookeeper"), cfg!(feature = "zookeeper-tls")) {
        (false, _) => "",
        (true, false) => ", zk, zookeeper",
        (true, true) => ", zk, zookeeper, zks",
    },
    if cfg!(feature = "postgres") {
        ", postgres, postgresql"
    } else {
        ""
    },
    if cfg!(feature = "mysql") {
        ", mysql, mariadb"
    } else {
        ""
    },
];

impl Opener {
    pub(crate) async fn open(self, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn spi::Lock>> {
        match self {
            Self::Memory => Ok(Memory::new(runtime).connect()),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => Ok(Arc::new(config.connect(runtime).await?)),
            #[cfg(feature = "redis")]
            Self::Redis(config) if config.is_plain() => Ok(Arc::new(config.connect_plain(runtime).await?)),
            #[cfg(feature = "redis")]
            Self::Redis(config) => Ok(Arc::new(config.connect(runtime).await?)),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(config) => Ok(Arc::new(config.connect(runtime).await?)),
            #[cfg(any(feature = "postgres", feature = "mysql"))]
            Self::Sql(database) => database.open(runtime).await,
            Self::Quorum(members, patience) => quorum::open(members, patience, runtime).await,
        }
    }

    /// Where it is, without a secret, and what the names in there begin with; refuses what can be no member
    /// of a quorum.
    pub(crate) fn of_a_quorum(&self) -> Result<(String, Option<&str>)> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => {
                let path = config.path().ok_or_else(of_this_client)?;
                Ok((path.display().to_string(), Some(config.prefix())))
            }
            #[cfg(feature = "redis")]
            Self::Redis(config) if !config.is_plain() => Ok((config.single_server()?, config.prefix_set())),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(..) => Err(invalid(
                "ZooKeeper is a quorum itself and no member of one: give all servers of the ensemble in one \
                    `zk` URL",
            )),
            #[cfg(any(feature = "postgres", feature = "mysql"))]
            Self::Sql(_) => Err(invalid(
                "a database server is no member of a quorum by its URL: two URLs may lead to one server, or \
                    to copies of one database",
            )),
            _ => Err(of_this_client()),
        }
    }

    /// Has each of them be a server of its own, whenever it is connected to.
    pub(crate) fn keep_apart(members: &mut [Self]) {
        #[cfg(feature = "redis")]
        {
            let all = dlock_redis::Members::default();
            for member in members {
                if let Self::Redis(config) = member {
                    **config = config.as_ref().clone().member_of(&all);
                }
            }
        }
        #[cfg(not(feature = "redis"))]
        let _ = members;
    }

    /// Opens it as a member of a quorum, which may be out of reach.
    pub(crate) async fn open_member(self, runtime: Arc<dyn Runtime>) -> Result<Member> {
        let (at, _) = self.of_a_quorum()?;
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => {
                let path = config.path().map(std::path::Path::to_owned);
                let backend = Arc::new(config.connect(runtime).await?);
                let file = path.and_then(|path| std::fs::canonicalize(path).ok());
                Ok(Member {
                    backend,
                    at,
                    identity: file.map(|file| file.to_string_lossy().into()),
                    ready: Ok(()),
                })
            }
            #[cfg(feature = "redis")]
            Self::Redis(config) => {
                let backend = Arc::new(config.lazily().connect(runtime).await?);
                let ready = backend.ready().await;
                Ok(Member {
                    // Compared when they connect, which may be later.
                    identity: None,
                    backend,
                    at,
                    ready,
                })
            }
            other => Ok(Member {
                backend: Box::pin(other.open(runtime)).await?,
                at,
                identity: None,
                ready: Ok(()),
            }),
        }
    }
}

fn of_this_client() -> dlock_core::Error {
    invalid("a member of a quorum is a store that others can use: one in the memory of this client is none")
}

fn memory(url: Url) -> Result<Opener> {
    if !url.raw_place().is_empty() {
        return Err(invalid(
            "a `memory` URL names nothing behind `//`: its store is this client's own; to share one between \
                clients, \
             make a `Memory` and build each client on a link to it",
        ));
    }
    url.finish()?;
    Ok(Opener::Memory)
}

#[cfg(feature = "sqlite")]
fn sqlite(url: Url) -> Result<Opener> {
    dlock_sql::sqlite::Config::read(url).map(Opener::Sqlite)
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_: Url) -> Result<Opener> {
    Err(disabled("sqlite"))
}

#[cfg(feature = "redis")]
fn redis(url: Url) -> Result<Opener> {
    Ok(Opener::Redis(Box::new(dlock_redis::Config::read(url)?)))
}

#[cfg(not(feature = "redis"))]
fn redis(_: Url) -> Result<Opener> {
    Err(disabled("redis"))
}

#[cfg(feature = "zookeeper")]
fn zookeeper(url: Url) -> Result<Opener> {
    Ok(Opener::ZooKeeper(Box::new(dlock_zk::Config::read(url)?)))
}

#[cfg(not(feature = "zookeeper"))]
fn zookeeper(_: Url) -> Result<Opener> {
    Err(disabled("zookeeper"))
}

#[cfg(feature = "postgres")]
fn postgres(url: Url) -> Result<Opener> {
    sql::postgres(url).map(|database| Opener::Sql(Box::new(database)))
}

#[cfg(not(feature = "postgres"))]
fn postgres(_: Url) -> Result<Opener> {
    Err(disabled("postgres"))
}

#[cfg(feature = "mysql")]
fn mysql(url: Url) -> Result<Opener> {
    sql::mysql(url).map(|database| Opener::Sql(Box::new(database)))
}

#[cfg(not(feature = "mysql"))]
fn mysql(_: Url) -> Result<Opener> {
    Err(disabled("mysql"))
}

#[cfg(not(all(
    feature = "sqlite",
    feature = "redis",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql"
)))]
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
            let e = Url::parse(url).and_then(opener).map(|_| ()).expect_err(url);
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
            if let Err(e) = Url::parse(url).and_then(opener) {
                panic!("{url}: {e}");
            }
        }
    }
}
