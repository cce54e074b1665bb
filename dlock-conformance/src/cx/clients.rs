//! Clients, also on their own executors or with secrets; networks; and common expectations of a client.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlock_core::{ErrorKind, LockName, Timestamp};

use super::{Cx, NO_SERVERS};
use crate::claims::Engine;
use crate::ear::Ear;
use crate::executor::Executor;
use crate::harness::{Harness, Process};
use crate::history::{Traced, TracedNetwork};
use crate::lock::lock;
use crate::network::Network;
use crate::proxy::{ProxyNetwork, ServerAddress};
use crate::subject::{Ask, Held, Subject};
use crate::verdict::{Failure, Seen, Verdict};
use crate::{ensure, fail};

/// # Cancel safety
/// Dropped, each of these drops the future of the harness or of the client. No client is handed out then.
impl Cx {
    pub(crate) fn harness(&self) -> Verdict<Arc<dyn Harness>> {
        let gone = || Failure::NotRun("the harness is gone: a task outlived its run".to_owned());
        self.0.harness.upgrade().ok_or_else(gone)
    }

    /// A new, independent client. It is closed when the rule has ended.
    ///
    /// # Errors
    /// If connecting fails: [`Failure::NotRun`] as long as nothing in the run has connected, since that is no
    /// verdict on the rule. [`Failure::Kit`] from then on: the store has died in the meantime, or the harness
    /// picks its rules.
    pub async fn connect(&self) -> Verdict<Arc<dyn Subject>> {
        let harness = self.harness()?;
        match harness.connect(self).await {
            Ok(connected) => {
                self.0.run.connects();
                let is_backend = connected.backend().is_some();
                if is_backend != (self.claims().engine == Engine::Inherited) {
                    let (what, claims) = match is_backend {
                        true => ("is a dlock backend", "new"),
                        false => ("is not built on a dlock backend", "foreign"),
                    };
                    return Err(Failure::Kit(format!(
                        "the client {what}, so its claims must start with `Claims::{claims}`"
                    )));
                }
                if lock(&self.0.clients).iter().any(|c| Arc::ptr_eq(c, &connected)) {
                    return Err(Failure::Kit(
                        "the harness returned the same client twice: `Harness::connect` must make a new one, \
                            which shares nothing"
                            .to_owned(),
                    ));
                }
                self.closes(&connected);
                Ok(Arc::new(Traced::new(connected, self.0.trace.clone())))
            }
            Err(e) => {
                self.0.unconnected.store(true, Ordering::Relaxed);
                let why = format!("the harness could not connect: {e:?}");
                Err(match self.0.run.has_connected() {
                    true => Failure::Kit(format!("{why}; it could before in this run")),
                    false => Failure::NotRun(why),
                })
            }
        }
    }

    /// A client whose store cannot be reached, or the error of connecting there; `None` if the harness cannot
    /// give one.
    pub async fn connect_nowhere(&self) -> Option<dlock_core::Result<Arc<dyn Subject>>> {
        let harness = self.0.harness.upgrade()?;
        let connected = harness.connect_nowhere(self)?.await;
        Some(connected.inspect(|client| self.closes(client)))
    }

    /// It is closed when the rule has ended.
    pub(super) fn closes(&self, client: &Arc<dyn Subject>) {
        lock(&self.0.clients).push(Arc::clone(client));
    }

    /// How many records the store keeps, or the error of counting them; `None` if the harness cannot count.
    pub async fn footprint(&self) -> Option<dlock_core::Result<u64>> {
        let harness = self.0.harness.upgrade()?;
        Some(harness.footprint(self)?.await)
    }

    /// A new client, as by [`connect`](Self::connect), on an executor of its own; `None` if the harness
    /// cannot give one.
    ///
    /// # Errors
    /// [`Failure::Kit`] if it cannot be had.
    pub async fn connect_on(&self, executor: &Arc<Executor>) -> Verdict<Option<Arc<dyn Subject>>> {
        let harness = self.harness()?;
        let Some(connecting) = harness.connect_on(self, Arc::clone(executor) as _) else {
            return Ok(None);
        };
        let connected = connecting
            .await
            .map_err(|e| Failure::Kit(format!("the harness could not connect on another runtime: {e:?}")))?;
        self.closes(&connected);
        Ok(Some(connected))
    }

    /// A client with that password for a place that does not accept it, or the error of connecting there;
    /// `None` if the harness cannot give one.
    pub async fn connect_with_secret(&self, secret: &str) -> Option<dlock_core::Result<Arc<dyn Subject>>> {
        let harness = self.0.harness.upgrade()?;
        let connected = harness.connect_with_secret(self, secret)?.await;
        Some(connected.inspect(|client| self.closes(client)))
    }

    /// Listens to `tracing` events from now on; `None` if this process has another subscriber.
    pub fn listen(&self) -> Option<Ear> {
        Ear::open(self.is_virtual())
    }

    // --- networks ---

    /// A new network to the servers. Only clients that connect [over](Self::connect_over) it suffer its
    /// faults.
    ///
    /// # Errors
    /// [`Failure::NotRun`] if the harness names no servers; [`Failure::Kit`] if a proxy cannot be started.
    pub fn network(&self) -> Verdict<Arc<dyn Network>> {
        let harness = self.harness()?;
        match harness.network(self) {
            Ok(Some(network)) => {
                lock(&self.0.networks).push(Arc::clone(&network));
                Ok(Arc::new(TracedNetwork::new(network, self.0.trace.clone())))
            }
            Ok(None) => Err(Failure::NotRun(NO_SERVERS.to_owned())),
            Err(e) => Err(Failure::Kit(format!("a proxy could not be started: {e}"))),
        }
    }

    /// A new client, as by [`connect`](Self::connect), over that network.
    pub async fn connect_over(&self, network: &Arc<dyn Network>) -> Verdict<Arc<dyn Subject>> {
        let network = Arc::clone(TracedNetwork::inner(network));
        Self(Arc::clone(&self.0), Some(network)).connect().await
    }

    /// For a harness: the address of the n-th of [`Harness::servers`] for a client that connects now. This is
    /// the server, or the proxy in front of it. `None` if there is no such server.
    pub fn addr(&self, n: usize) -> Option<ServerAddress> {
        match self.route::<ProxyNetwork>() {
            Some(proxies) => proxies.addresses().get(n).cloned(),
            None => self.0.harness.upgrade()?.servers().into_iter().nth(n),
        }
    }

    /// For a harness with [its own networks](Harness::network): the one that the client must use.
    pub fn route<T: Network>(&self) -> Option<&T> {
        let network: &dyn Any = &**self.1.as_ref()?;
        network.downcast_ref()
    }

    pub(crate) fn take_networks(&self) -> Vec<Arc<dyn Network>> {
        std::mem::take(&mut lock(&self.0.networks))
    }

    /// The text with which a child process finds the same store, if it can.
    pub(crate) fn hand_over(&self) -> Option<String> {
        self.0.harness.upgrade()?.hand_over()
    }

    /// A simulated process, if the harness simulates any.
    pub(crate) fn process(&self) -> Option<Arc<dyn Process>> {
        self.0.harness.upgrade()?.process()
    }

    /// Waits for that long, and breaks the rule unless the wait ends with `Timeout`.
    ///
    /// # Errors
    /// [`Failure::Broken`] if it was granted, or failed. [`Failure::Inconclusive`] if it is `Unknown`: the
    /// store did not confirm in time that the request is withdrawn.
    pub async fn expect_timeout(
        &self,
        client: &dyn Subject,
        name: &LockName,
        ask: &Ask,
        limit: Duration,
        when: impl fmt::Display + Send,
    ) -> Verdict {
        match client.acquire_timeout(name, ask, limit).await {
            Ok(_) => fail!("{when}: `{name}` was granted although it is held"),
            Err(e) if e.kind() == ErrorKind::Timeout => Ok(()),
            Err(e) => Err(e).seen(format_args!("{when}: Timeout expected")),
        }
    }

    /// Tries repeatedly until it is granted, and breaks the rule if that takes longer than until `by`.
    ///
    /// # Errors
    /// [`Failure::Broken`] if it was not granted in time, or an attempt failed.
    pub async fn free_by(
        &self,
        client: &dyn Subject,
        name: &LockName,
        ask: &Ask,
        by: Timestamp,
        when: impl fmt::Display + Send,
    ) -> Verdict<Box<dyn Held>> {
        let from = self.now();
        // Where leases last seconds, a few milliseconds make no difference, and hundreds of tries do.
        let pause = (from.until(by) / 200).max(Duration::from_millis(2));
        loop {
            let asked = self.now();
            let answer = client.try_acquire(name, ask).await;
            if let Some(held) = answer.seen(format_args!("{when}: try_acquire"))? {
                return Ok(held);
            }
            ensure!(
                asked < by,
                "{when}: `{name}` is still refused {:?} after the first try, {:?} past the bound",
                from.until(asked),
                by.until(asked)
            );
            self.sleep(pause).await;
        }
    }
}
