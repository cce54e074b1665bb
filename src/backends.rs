//! The store of each URL scheme.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::memory::Memory;
use dlock_core::spi::Url;
use dlock_core::{Error, ErrorKind, Result, Runtime, spi};

use crate::invalid;
use crate::quorum::{self, Member};
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::sql::Sql;

/// A store that is configured but not opened yet.
pub(crate) enum Opener {
    Memory,
    #[cfg(feature = "sqlite")]
    Sqlite(Box<dlock_sql::sqlite::Config>),
    #[cfg(feature = "redis")]
    Redis(Box<dlock_redis::Config>),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(Box<dlock_zk::Config>),
    #[cfg(feature = "etcd")]
    Etcd(Box<dlock_etcd::Config>),
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    Sql(Box<Sql>),
    Quorum(Vec<Self>, Duration),
}

/// Reads the rest of the URL, for the store of its scheme.
pub(crate) fn opener(url: Url) -> Result<Opener> {
    match url.scheme() {
        "memory" => memory(url),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Opener::Sqlite(Box::new(dlock_sql::sqlite::Config::read(url)?))),
        #[cfg(feature = "zookeeper")]
        "zk" | "zookeeper" | "zks" => Ok(Opener::ZooKeeper(Box::new(dlock_zk::Config::read(url)?))),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Ok(Opener::Etcd(Box::new(dlock_etcd::Config::read(url)?))),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Opener::Sql(Box::new(Sql::read(url)?))),
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => Ok(Opener::Sql(Box::new(Sql::read(url)?))),
        #[cfg(feature = "redis")]
        scheme if feature_of(scheme) == Some("redis") => {
            Ok(Opener::Redis(Box::new(dlock_redis::Config::read(url)?)))
        }
        scheme => Err(unknown(scheme)),
    }
}

/// Returns the feature that adds a scheme.
fn feature_of(scheme: &str) -> Option<&'static str> {
    Some(match scheme {
        "sqlite" => "sqlite",
        "redis" | "rediss" | "valkey" | "valkeys" | "unix" => "redis",
        "zk" | "zookeeper" | "zks" => "zookeeper",
        "etcd" | "etcds" => "etcd",
        "postgres" | "postgresql" => "postgres",
        "mysql" | "mariadb" => "mysql",
        _ if scheme.contains('+') && (scheme.starts_with("redis") || scheme.starts_with("valkey")) => "redis",
        _ => return None,
    })
}

fn unknown(scheme: &str) -> Error {
    match feature_of(scheme) {
        Some(feature) => Error::new(
            ErrorKind::Unsupported,
            format!("this build has no `{feature}` backend: enable the feature `{feature}` of `dlock-rs`"),
        ),
        None => invalid(format!(
            "the scheme of the URL is unknown; this build has: memory{}",
            SCHEMES.concat()
        )),
    }
}

/// The schemes that this build opens besides memory, for the message about an unknown one.
const SCHEMES: [&str; 9] = [
    if cfg!(feature = "sqlite") { ", sqlite" } else { "" },
    if cfg!(feature = "redis") {
        ", redis (or valkey; +unix, +sentinel, +cluster)"
    } else {
        ""
    },
    if cfg!(feature = "redis-tls") {
        ", rediss (or valkeys; +sentinel, +cluster)"
    } else {
        ""
    },
    if cfg!(feature = "zookeeper") {
        ", zk, zookeeper"
    } else {
        ""
    },
    if cfg!(feature = "zookeeper-tls") {
        ", zks"
    } else {
        ""
    },
    if cfg!(feature = "etcd") { ", etcd" } else { "" },
    if cfg!(feature = "etcd-tls") { ", etcds" } else { "" },
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
            #[cfg(feature = "etcd")]
            Self::Etcd(config) => Ok(Arc::new(config.connect(runtime).await?)),
            #[cfg(any(feature = "postgres", feature = "mysql"))]
            Self::Sql(database) => database.open(runtime).await,
            Self::Quorum(members, patience) => quorum::open(members, patience, runtime).await,
        }
    }

    /// Returns the address, without a secret, and the prefix of its names, if it can be a member of a quorum.
    pub(crate) fn member_address(&self) -> Result<(String, Option<&str>)> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => {
                let path = config.path().ok_or_else(not_shareable)?;
                Ok((path.display().to_string(), Some(config.prefix())))
            }
            #[cfg(feature = "redis")]
            Self::Redis(config) if !config.is_plain() => Ok((config.single_server()?, config.prefix_set())),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(..) => Err(invalid(
                "ZooKeeper is a quorum itself and cannot be a member of one: list all servers of the \
                    ensemble in one `zk` URL",
            )),
            #[cfg(feature = "etcd")]
            Self::Etcd(..) => Err(invalid(
                "etcd is a quorum itself and cannot be a member of one: list all members of the cluster in \
                    one `etcd` URL",
            )),
            #[cfg(any(feature = "postgres", feature = "mysql"))]
            Self::Sql(_) => Err(invalid(
                "a database server cannot be a member of a quorum: two URLs may lead to the same server, \
                    or to copies of one database",
            )),
            _ => Err(not_shareable()),
        }
    }

    /// Makes members check, whenever they connect, that no two of them are the same server.
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
        let (at, _) = self.member_address()?;
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
                    // The identities are compared when the members connect, which may be later.
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

fn not_shareable() -> Error {
    invalid("a store in memory cannot be a member of a quorum, since no other client can use it")
}

fn memory(url: Url) -> Result<Opener> {
    if !url.raw_place().is_empty() {
        return Err(invalid(
            "a `memory` URL must end after `//`: its store belongs to this client only; to share one, \
                create a `Memory` and build each client on a connection to it",
        ));
    }
    url.finish()?;
    Ok(Opener::Memory)
}
