//! What the kit needs to know of the lock.

mod server;

use std::sync::Arc;
use std::time::Duration;

use dlock_conformance::{
    Claims, Cx, Foreign, Harness, Library, Need, Reply, Subject, agent, proxy::ServerAddress,
};
use dlock_core::{
    Capabilities, Capability, Error, ErrorKind, LockName, Result, Runtime, Strength, Token, runtime,
};
use futures::future::{BoxFuture, FutureExt};
use redis::RedisError;

use self::server::Server;
use crate::step::{Guard, Lock};

struct Adapter(Lock);

/// An unanswered request may have taken effect, unless there was no connection to send it on.
fn told(error: RedisError) -> Error {
    let refused = error.is_connection_refusal();
    let kind = if refused { ErrorKind::Unavailable } else { ErrorKind::Unknown };
    Error::new(kind, "Redis did not do it").with_source(error)
}

impl Library for Adapter {
    type Guard = Guard;

    fn try_lock<'a>(&'a self, name: &'a LockName, ttl: Duration) -> Reply<'a, Option<Guard>> {
        async move { self.0.try_lock(name.as_bytes(), ttl).await.map_err(told) }.boxed()
    }

    fn lock<'a>(&'a self, name: &'a LockName, ttl: Duration) -> Reply<'a, Guard> {
        async move { self.0.lock(name.as_bytes(), ttl).await.map_err(told) }.boxed()
    }

    fn lock_timeout<'a>(
        &'a self,
        name: &'a LockName,
        ttl: Duration,
        limit: Duration,
    ) -> Option<Reply<'a, Option<Guard>>> {
        Some(async move { self.0.lock_timeout(name.as_bytes(), ttl, limit).await.map_err(told) }.boxed())
    }

    fn unlock(&self, guard: Guard) -> Reply<'_, bool> {
        async move { self.0.unlock(guard).await.map_err(told) }.boxed()
    }

    fn extend<'a>(&'a self, guard: &'a mut Guard, ttl: Duration) -> Reply<'a, bool> {
        async move { self.0.extend(guard, ttl).await.map_err(told) }.boxed()
    }

    fn validity(&self, guard: &Guard) -> Option<Duration> {
        Some(guard.remaining())
    }

    fn token(&self, guard: &Guard) -> Option<Token> {
        Token::new(guard.token())
    }
}

pub struct Mine {
    server: Server,
    tokio: tokio::runtime::Runtime,
}

impl Mine {
    pub fn new() -> Self {
        let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        Self { server: Server::find(agent::handed_over()), tokio: tokio.expect("threads can be started") }
    }
}

impl Mine {
    fn client(&self, address: String) -> BoxFuture<'_, Result<Arc<dyn Subject>>> {
        async move {
            let lock = Lock::connect(&address).await.map_err(told)?;
            Ok(Arc::new(Foreign::new(Adapter(lock), self.claims().capabilities, self.runtime()))
                as Arc<dyn Subject>)
        }
        .boxed()
    }
}

impl Harness for Mine {
    fn claims(&self) -> Claims {
        let can = Capabilities::new("first-lock")
            .with_all([Capability::Renew, Capability::PerGrantTtl])
            .with_fencing(Strength::WhileStateSurvives);
        Claims::foreign("first-lock", env!("CARGO_PKG_VERSION"), can)
            .claim(Need::OutlivesConnection)
            .claim(Need::WaitLimit)
            .claim(Need::CancelFrees)
            .claim(Need::LateTakesNothing)
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        runtime::Tokio::from_handle(self.tokio.handle().clone()).expect("it has timers")
    }

    fn connect<'a>(&'a self, cx: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        let address = cx.addr(0).and_then(|proxy| proxy.tcp()).unwrap_or(self.server.address);
        self.client(address.to_string())
    }

    fn connect_nowhere<'a>(&'a self, _: &'a Cx) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        Some(self.client("127.0.0.1:1".to_owned()))
    }

    fn servers(&self) -> Vec<ServerAddress> {
        vec![self.server.address.into()]
    }

    fn hand_over(&self) -> Option<String> {
        Some(self.server.address.to_string())
    }
}
