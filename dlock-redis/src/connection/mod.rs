//! The connections to the servers, whichever they are.

pub(crate) mod ask;
pub(crate) mod check;
#[cfg(feature = "cluster")]
pub(crate) mod cluster;
pub(crate) mod members;
pub(crate) mod pause;
pub(crate) mod rejoin;
#[cfg(feature = "sentinel")]
pub(crate) mod sentinel;
pub(crate) mod server;

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};

#[cfg(feature = "cluster")]
use self::ask::ask;
#[cfg(feature = "cluster")]
use self::cluster::Cluster;
use self::server::{Server, ask_together};
use crate::failure::Failed;
use crate::scripts::Script;

pub(crate) enum Connection {
    Single(Arc<Server>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<Cluster>),
}

/// The same of whichever it is.
macro_rules! each {
    ($self:ident, $servers:ident => $done:expr) => {
        match $self {
            Self::Single($servers) => $done,
            #[cfg(feature = "cluster")]
            Self::Cluster($servers) => $done,
        }
    };
}

impl Connection {
    /// Asks once, and runs a script if the command is the hash of one. The caller limits the time.
    pub(crate) async fn ask(&self, command: &mut Cmd, script: Option<&Script>) -> Result<Value, Failed> {
        debug_assert!(command.args_iter().next().is_some(), "it was asked before");
        match self {
            Self::Single(server) => {
                server
                    .ask(|mut c| async move {
                        ask_together(&server.together, &server.setup, &mut c, command, script).await
                    })
                    .await
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => {
                let command = &*command;
                let asked = cluster.ask(command, |mut c| async move { ask(&mut c, command, script).await });
                asked.await
            }
        }
    }

    /// Of all servers that have keys, what [`ask_node`](Self::ask_node) knows them by.
    pub(crate) async fn nodes(&self) -> Result<Vec<String>, Failed> {
        match self {
            Self::Single(_) => Ok(vec![String::new()]),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.masters().await,
        }
    }

    /// Asks one of them something that changes nothing: see [`Server::ask_numbered`].
    pub(crate) async fn ask_node(&self, node: &str, command: &Cmd) -> Result<(u64, Value), Failed> {
        let ask = |mut c: MultiplexedConnection| async move { command.query_async(&mut c).await };
        match self {
            Self::Single(server) => {
                debug_assert!(node.is_empty(), "there is one");
                server.setup.within(server.ask_numbered(ask)).await
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.setup.within(cluster.ask_node(node, ask)).await,
        }
    }

    /// Whether it answers; connects, if that is not done.
    pub(crate) async fn ready(&self) -> Result<(), Failed> {
        match self {
            Self::Single(server) => {
                let pinging = server.ask(|mut c| async move { redis::cmd("PING").exec_async(&mut c).await });
                server.setup.within(pinging).await
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.ready().await,
        }
    }

    /// The run id of the one server.
    pub(crate) fn run(&self) -> Option<Arc<str>> {
        match self {
            Self::Single(server) => server.run(),
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => None,
        }
    }

    /// Whether each bucket of names may be on another server.
    pub(crate) fn is_spread(&self) -> bool {
        !matches!(self, Self::Single(_))
    }

    /// How long a request without a limit of its own may take.
    pub(crate) fn timeout(&self) -> Duration {
        each!(self, servers => servers.setup.timeout)
    }

    pub(crate) async fn subscribe(&self, channel: &[u8]) -> Result<(), Failed> {
        each!(self, servers => servers.subscribe(channel).await)
    }

    pub(crate) async fn unsubscribe(&self, channel: &[u8]) {
        each!(self, servers => servers.unsubscribe(channel).await);
    }

    pub(crate) fn close(&self) {
        each!(self, servers => servers.close());
    }
}
