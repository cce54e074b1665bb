//! What can be done to etcd, for the rules that need hands at the store.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use dlock_conformance::hooks::{Hooks, Offer, Restart, Vitals};
use dlock_core::{LockName, Result};
use futures::future::BoxFuture;

use dlock_testkit::{EtcdEnsemble, EtcdServer};

use super::zookeeper_hooks::{apart, plain};

/// Whose hands.
#[derive(Clone)]
enum Store {
    One(Arc<EtcdServer>),
    /// It can fail over.
    Ensemble(Arc<EtcdEnsemble>),
}

impl Store {
    fn servers(&self) -> Vec<&EtcdServer> {
        match self {
            Self::One(server) => vec![server],
            Self::Ensemble(all) => all.members().iter().map(|member| &**member).collect(),
        }
    }

    fn etcdctl(&self, words: &[&str]) -> io::Result<String> {
        let member = match self {
            Self::One(_) => 0,
            Self::Ensemble(all) => all.leader()?,
        };
        self.servers()[member].etcdctl(words)
    }

    fn look(&self) -> io::Result<Vitals> {
        let runs: Vec<_> = self
            .servers()
            .iter()
            .map(|s| s.pid().unwrap_or(0).to_string())
            .collect();
        let vitals = Vitals::new().run(runs.join(" "));
        Ok(match self {
            Self::One(_) => vitals,
            Self::Ensemble(all) => vitals.leader(all.leader()?),
        })
    }
}

/// The hooks of servers that have locks of `dlock-etcd` with that prefix.
pub(crate) struct EtcdHooks {
    store: Store,
    prefix: String,
}

impl EtcdHooks {
    /// Starts a server, or an ensemble of three.
    pub(crate) fn start(ensemble: bool, prefix: &str) -> io::Result<Self> {
        Ok(Self {
            store: match ensemble {
                true => Store::Ensemble(Arc::new(EtcdEnsemble::start()?)),
                false => Store::One(Arc::new(EtcdServer::start()?)),
            },
            prefix: prefix.to_owned(),
        })
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.store
            .servers()
            .iter()
            .map(|server| server.address())
            .collect()
    }

    fn hand<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T>> {
        let store = self.store.clone();
        apart(move || work(&store))
    }

    /// How many keys there are, for [`Harness::footprint`](dlock_conformance::Harness::footprint).
    pub(crate) fn footprint(&self) -> BoxFuture<'static, Result<u64>> {
        let prefix = self.prefix.clone();
        self.hand(move |store| {
            let keys = store.etcdctl(&["get", "--prefix", "--keys-only", &prefix])?;
            Ok(keys.lines().filter(|line| !line.is_empty()).count() as u64)
        })
    }

    /// Where the entries of a name are. Written down a second time on purpose: clients that differ in it do
    /// not exclude one another, so a change of the layout must fail somewhere, and here it does.
    fn line(&self, name: &LockName) -> String {
        format!("{}/{}/", self.prefix, plain(name))
    }
}

impl Hooks for EtcdHooks {
    fn vitals(&self) -> Offer<'_, Vitals> {
        Some(self.hand(Store::look))
    }

    fn restart(&self, how: Restart) -> Offer<'_> {
        let end = match how {
            Restart::InOrder => EtcdServer::stop_in_order,
            Restart::Crash => EtcdServer::crash,
        };
        Some(self.hand(move |store| match store {
            Store::One(server) => {
                end(server)?;
                server.start_again()
            }
            Store::Ensemble(all) => all.restart(end),
        }))
    }

    fn fail_over(&self) -> Offer<'_> {
        let Store::Ensemble(_) = &self.store else {
            return None;
        };
        Some(self.hand(|store| match store {
            Store::One(_) => Ok(()),
            Store::Ensemble(all) => {
                let leader = all.leader()?;
                all.crash(leader)?;
                // It comes back, and follows: the next one to die must leave a majority.
                all.start_again(leader)
            }
        }))
    }

    fn spoil<'a>(&'a self, name: &'a LockName, with: &'a str) -> Offer<'a> {
        let (line, with) = (self.line(name), with.to_owned());
        Some(self.hand(move |store| {
            store.etcdctl(&["del", "--prefix", &line])?;
            store
                .etcdctl(&["put", &format!("{line}somebody-else"), &with])
                .map(drop)
        }))
    }

    fn stored<'a>(&'a self, name: &'a LockName) -> Offer<'a, Vec<u8>> {
        let line = self.line(name);
        Some(self.hand(move |store| Ok(store.etcdctl(&["get", "--prefix", &line])?.into_bytes())))
    }

    fn mend<'a>(&'a self, name: &'a LockName) -> Offer<'a> {
        let line = self.line(name);
        Some(self.hand(move |store| store.etcdctl(&["del", "--prefix", &line]).map(drop)))
    }
}
