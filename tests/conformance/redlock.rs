//! A quorum of five Redis servers: how a client of it is made, and what can be done to all of them at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dlock::combinators::Quorum;
use dlock::redis::Config;
use dlock::spi::Lock;
use dlock::{LockName, Result, Runtime};
use dlock_conformance::hooks::{Hooks, Offer, Restart, Step, Vitals};
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};

use super::redis_hooks::{RedisHooks, Store};
use dlock_testkit::{Persistence, RedisOptions, RedisServer};

/// How many servers there are: two of them may be away.
pub(crate) const MEMBERS: usize = 5;

/// A majority of these servers. Each is connected to, if it can be: a rule may have cut some of them off.
pub(crate) async fn quorum(
    addresses: &[SocketAddr],
    (prefix, timeout, patience): (&str, Duration, Duration),
    runtime: Arc<dyn Runtime>,
    connect: bool,
) -> Result<Arc<dyn Lock>> {
    let open = |address: &SocketAddr| {
        let config = Config::from_url(&format!("redis://{address}"));
        let runtime = runtime.clone();
        async move {
            let config = config?.prefix(prefix).timeout(timeout).lazily();
            let opened = config.connect(runtime).await?;
            if connect {
                // Its errors appear with requests for a lock.
                let _ = opened.ready().await;
            }
            Ok::<_, dlock::Error>(Arc::new(opened) as Arc<dyn Lock>)
        }
    };
    let members = try_join_all(addresses.iter().map(open)).await?;
    Ok(Arc::new(Quorum::new(members, runtime, patience)?))
}

/// Acts on all servers at once, like a restart of a rack, or a change of a time server's clock.
pub(crate) struct RedlockHooks {
    servers: Vec<Arc<RedisServer>>,
    each: Vec<RedisHooks>,
}

impl RedlockHooks {
    /// Starts the servers. What they have when they are stopped in order they have when they are started
    /// again, and they have clocks that can be set. Not after a crash: five logs on one disk, each written
    /// through at every change, measure the disk.
    pub(crate) fn start(prefix: &str) -> std::io::Result<Self> {
        let options = RedisOptions::new().persistence(Persistence::OnStop).own_clock();
        let servers = (0..MEMBERS).map(|_| Ok(Arc::new(RedisServer::with(options.clone())?)));
        let servers: Vec<_> = servers.collect::<std::io::Result<_>>()?;
        let each = servers.iter().cloned();
        let each = each
            .map(|server| RedisHooks::new(Store::One(server), prefix))
            .collect();
        Ok(Self { servers, each })
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| server.address()).collect()
    }

    /// How many records all of them keep.
    pub(crate) fn footprint(&self) -> BoxFuture<'static, Result<u64>> {
        let each = try_join_all(self.each.iter().map(RedisHooks::footprint));
        each.map(|counts| Ok(counts?.into_iter().sum())).boxed()
    }

    /// Something for each member, all at once.
    fn all<'a, T: Send + 'a, U: Send + 'a>(
        &'a self,
        one: impl Fn(&'a RedisHooks) -> Offer<'a, T>,
        whole: impl FnOnce(Vec<T>) -> U + Send + 'a,
    ) -> Offer<'a, U> {
        let each: Vec<_> = self.each.iter().map(one).collect::<Option<_>>()?;
        Some(try_join_all(each).map(|done| done.map(whole)).boxed())
    }
}

impl Hooks for RedlockHooks {
    /// Another run is another run of each of them.
    fn vitals(&self) -> Offer<'_, Vitals> {
        let whole = |each: Vec<Vitals>| {
            let runs: Vec<_> = each.iter().filter_map(|vitals| vitals.run.clone()).collect();
            let clocks = each.iter().filter_map(|vitals| vitals.clock).min();
            Vitals::new()
                .run(runs.join(" "))
                .clock(clocks.unwrap_or_default())
        };
        self.all(Hooks::vitals, whole)
    }

    fn restart(&self, how: Restart) -> Offer<'_> {
        self.all(move |member| member.restart(how), drop)
    }

    fn step_clock(&self, step: Step) -> Offer<'_> {
        self.all(move |member| member.step_clock(step), drop)
    }

    fn set_counter<'a>(&'a self, name: &'a LockName, to: u64) -> Offer<'a> {
        self.all(move |member| member.set_counter(name, to), drop)
    }

    /// The largest: the next token is above it.
    fn counter<'a>(&'a self, name: &'a LockName) -> Offer<'a, u64> {
        let largest = |each: Vec<u64>| each.into_iter().max().unwrap_or_default();
        self.all(move |member| member.counter(name), largest)
    }

    fn spoil<'a>(&'a self, name: &'a LockName, with: &'a str) -> Offer<'a> {
        self.all(move |member| member.spoil(name, with), drop)
    }

    fn stored<'a>(&'a self, name: &'a LockName) -> Offer<'a, Vec<u8>> {
        self.all(move |member| member.stored(name), |each| each.concat())
    }

    fn mend<'a>(&'a self, name: &'a LockName) -> Offer<'a> {
        self.all(move |member| member.mend(name), drop)
    }

    /// There is no operator's way through a quorum; at each member there is.
    fn evict<'a>(&'a self, name: &'a LockName) -> Offer<'a> {
        self.mend(name)
    }
}
