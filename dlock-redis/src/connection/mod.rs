//! The connections to the servers, whichever they are.

pub(crate) mod check;
#[cfg(feature = "cluster")]
pub(crate) mod cluster;
pub(crate) mod members;
pub(crate) mod rejoin;
#[cfg(feature = "sentinel")]
pub(crate) mod sentinel;
pub(crate) mod server;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::Runtime;
use dlock_core::runtime::yield_now;
use futures::future::{Either, select};
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};

#[cfg(feature = "cluster")]
use self::cluster::Cluster;
use self::server::{Server, Setup};
use crate::failure::{Failed, timed_out};
use crate::scripts::Script;

/// Gives a request that long.
pub(crate) async fn within<T>(
    runtime: &dyn Runtime,
    limit: Duration,
    request: impl Future<Output = Result<T, Failed>>,
) -> Result<T, Failed> {
    match select(pin!(request), runtime.sleep(limit)).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => Err(Failed::sent(timed_out())),
    }
}

/// Sleeps, and lets others run. The timers of a runtime that shuts down complete at once: a loop of such
/// pauses, and of requests that fail at once then, would keep its thread to itself, and the runtime from its
/// end.
pub(crate) async fn pause(sleep: impl Future<Output = ()>) {
    sleep.await;
    yield_now().await;
}

pub(crate) enum Connection {
    Single(Arc<Server>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<Cluster>),
}

impl Connection {
    /// Runs a script. Whoever calls limits the time.
    pub(crate) async fn invoke(&self, script: &Script, command: &Cmd) -> Result<Value, Failed> {
        match self {
            Self::Single(single) => single.ask(|c| invoke(c, script, command)).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.ask(command, |c| invoke(c, script, command)).await,
        }
    }

    pub(crate) async fn query(&self, command: &Cmd) -> Result<Value, Failed> {
        match self {
            Self::Single(single) => single.ask(|c| query(c, command)).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.ask(command, |c| query(c, command)).await,
        }
    }

    /// Whether it answers; connects, if that is not done.
    pub(crate) async fn ready(&self) -> Result<(), Failed> {
        match self {
            Self::Single(_) => self.within(self.query(&redis::cmd("PING"))).await.map(drop),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.ready().await,
        }
    }

    /// What is unique to the run of the one server.
    pub(crate) fn run(&self) -> Option<Arc<str>> {
        match self {
            Self::Single(single) => single.run(),
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => None,
        }
    }

    fn setup(&self) -> &Setup {
        match self {
            Self::Single(single) => single.setup(),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.setup(),
        }
    }

    /// Gives a request as much time as it may take.
    pub(crate) async fn within<T>(
        &self,
        request: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        self.setup().within(request).await
    }

    /// Gives a request that long.
    pub(crate) async fn at_most<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        within(&*self.setup().runtime, limit, request).await
    }

    pub(crate) async fn subscribe(&self, channel: &[u8]) -> Result<(), Failed> {
        match self {
            Self::Single(single) => single.subscribe(channel).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.subscribe(channel).await,
        }
    }

    pub(crate) async fn unsubscribe(&self, channel: &[u8]) {
        match self {
            Self::Single(single) => single.unsubscribe(channel).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.unsubscribe(channel).await,
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::Single(single) => single.close(),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.close(),
        }
    }

    /// Whether each bucket of names may be on another server.
    pub(crate) fn is_spread(&self) -> bool {
        match self {
            Self::Single(_) => false,
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => true,
        }
    }
}

async fn query(mut connection: impl ConnectionLike, command: &Cmd) -> RedisResult<Value> {
    command.query_async(&mut connection).await
}

/// Runs a script by its hash; a server that does not have it, since it was told to forget all or was started
/// anew, is given it first.
async fn invoke(mut connection: impl ConnectionLike, script: &Script, command: &Cmd) -> RedisResult<Value> {
    match command.query_async(&mut connection).await {
        Err(e) if e.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            load(script).exec_async(&mut connection).await?;
            command.query_async(&mut connection).await
        }
        answer => answer,
    }
}

/// Gives the server a script.
pub(crate) fn load(script: &Script) -> Cmd {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(&script.text);
    load
}
