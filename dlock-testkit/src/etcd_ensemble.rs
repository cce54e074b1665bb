//! An etcd ensemble of three servers.
//!
//! Each advertises itself to the others by a proxy before it, so that what is between members can be cut. A
//! member reaches the others by *their* proxies, and then it is the kernel that tells who came: nothing that
//! it says first need be read for that.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::etcd::{EtcdServer, Ports};
use crate::etcd_options::EtcdOptions;
use crate::proxy::Proxy;
use crate::until::until;

const MEMBERS: usize = 3;

/// How long they may take to agree on a leader, on a machine that has much else to do.
const AGREE: Duration = Duration::from_secs(60);

/// How often all ports are chosen anew where somebody who knows nothing of our claims was faster.
const TRIES: u32 = 5;

/// Three servers, one of which may be away.
#[derive(Debug)]
pub struct EtcdEnsemble {
    members: Vec<Arc<EtcdServer>>,
    /// By what the others reach each.
    proxies: Vec<Proxy>,
    cut: Mutex<BTreeSet<usize>>,
}

impl EtcdEnsemble {
    /// Three servers as [`EtcdOptions::new`] has them, which serve.
    ///
    /// # Errors If a program is not installed, or a server does not start; with its log.
    pub fn start() -> io::Result<Self> {
        Self::with(EtcdOptions::new())
    }

    /// Three servers with those options, which serve.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn with(options: EtcdOptions) -> io::Result<Self> {
        for n in 1.. {
            let ensemble = Self::new(&options)?;
            match ensemble.begin() {
                Err(_) if n < TRIES && ensemble.members.iter().any(|m| m.port_is_taken()) => continue,
                started => started?,
            }
            ensemble.members[0].let_users_in(&options)?;
            return Ok(ensemble);
        }
        unreachable!("the last try returns")
    }

    fn new(options: &EtcdOptions) -> io::Result<Self> {
        let ports = (0..MEMBERS).map(|_| Ports::new(options));
        let ports = ports.collect::<io::Result<Vec<_>>>()?;
        let proxies = ports.iter().map(|p| Proxy::start(p.peers.address()));
        let proxies = proxies.collect::<io::Result<Vec<_>>>()?;
        let names: Vec<_> = (0..MEMBERS).map(|n| format!("member-{n}")).collect();
        let urls: Vec<_> = proxies
            .iter()
            .map(|p| format!("http://{}", p.address()))
            .collect();
        let cluster: Vec<_> = names.iter().zip(&urls).map(|(n, u)| format!("{n}={u}")).collect();
        let cluster = cluster.join(",");
        let members = ports.into_iter().enumerate().map(|(n, ports)| {
            let member = EtcdServer::new(options, ports, &names[n], &urls[n], &cluster)?;
            Ok(Arc::new(member))
        });
        Ok(Self {
            members: members.collect::<io::Result<_>>()?,
            proxies,
            cut: Mutex::default(),
        })
    }

    fn begin(&self) -> io::Result<()> {
        self.members.iter().try_for_each(|m| m.begin())?;
        self.members.iter().try_for_each(|m| m.wait_until_it_serves())
    }

    // --- who is who ---

    /// All members, also those that are down.
    pub fn members(&self) -> &[Arc<EtcdServer>] {
        &self.members
    }

    /// Their addresses for clients.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|m| m.address()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The members that run and are not cut off.
    fn together(&self) -> Vec<(usize, &EtcdServer)> {
        let cut = self.lock();
        let members = self.members.iter().map(AsRef::as_ref).enumerate();
        members
            .filter(|(n, m): &(_, &EtcdServer)| m.pid().is_some() && !cut.contains(n))
            .collect()
    }

    /// Which member leads, as itself and a majority see it.
    ///
    /// # Errors
    /// If none does at the moment.
    pub fn leader(&self) -> io::Result<usize> {
        let members = self.together();
        let mut all = members.iter();
        let leader = all.find(|(_, m)| m.leads());
        leader
            .map(|(n, _)| *n)
            .ok_or_else(|| io::Error::other("no member leads"))
    }

    /// Waits until all members that run and are not cut off serve, one of them as their leader.
    pub fn wait_until_ok(&self) -> io::Result<()> {
        until("a leader, and all that run follow it", AGREE, || {
            self.together().iter().try_for_each(|(_, m)| m.serves())?;
            self.leader().map(|_| true)
        })
    }

    // --- what is done to it ---

    /// Kills a member, and waits until the others serve: with another leader, if it was that.
    pub fn crash(&self, member: usize) -> io::Result<()> {
        self.members[member].crash()?;
        self.wait_until_ok()
    }

    /// Starts a member again, and waits until all serve.
    pub fn start_again(&self, member: usize) -> io::Result<()> {
        self.members[member].start_again()?;
        self.wait_until_ok()
    }

    /// Ends all members that way, starts them again, and waits until all serve.
    pub fn restart(&self, end: impl Fn(&EtcdServer) -> io::Result<()>) -> io::Result<()> {
        self.members.iter().try_for_each(|m| end(m))?;
        self.begin()?;
        self.wait_until_ok()
    }

    /// Cuts a member off from the others, now and until [`heal`](Self::heal), also if it is started again
    /// meanwhile. Clients reach it as before. Lines between members end, as if the other had; what a member
    /// makes of it is for [`wait_until_ok`](Self::wait_until_ok) to see.
    pub fn cut(&self, member: usize) {
        self.lock().insert(member);
        self.bar();
    }

    /// Reconnects it with the others.
    pub fn heal(&self, member: usize) {
        self.lock().remove(&member);
        self.bar();
    }

    fn bar(&self) {
        let cut = self.lock();
        for (n, proxy) in self.proxies.iter().enumerate() {
            if cut.contains(&n) {
                proxy.bar(|_| true);
            } else {
                let away: Vec<_> = cut.iter().map(|n| self.members[*n].clone()).collect();
                proxy.bar(move |who| away.iter().any(|m| m.has_socket(who)));
            }
        }
    }

    /// As an operator puts a backup back, which one member has taken: all end, have what the snapshot has and
    /// nothing else, and start again.
    ///
    /// # Errors
    /// As [`EtcdServer::restore`].
    pub fn restore(&self, snapshot: &Path) -> io::Result<()> {
        self.members.iter().try_for_each(|m| m.crash())?;
        self.members.iter().try_for_each(|m| m.put_back(snapshot))?;
        self.begin()?;
        self.wait_until_ok()
    }
}
