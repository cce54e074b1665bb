//! What is measured of each peer, in whatever language it is.

use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_benches::redis::{Contender, Seen, Server, Spell, crowd, rate, timed};

/// A lock library at work.
#[async_trait(?Send)]
pub(crate) trait Peer {
    fn name(&self) -> &'static str;

    /// Which version, and how it is used here.
    fn what(&self) -> String;

    /// If it can wait for a lock that somebody has.
    fn waits(&self) -> bool;

    /// Cycles at a lock that nobody else wants: how long each took.
    async fn pair(&mut self, length: Duration) -> Vec<Duration>;

    /// That many tasks over one client, each with a lock of its own: cycles a second.
    async fn inflight(&mut self, tasks: usize, length: Duration) -> f64;

    /// That many tasks with one lock, over that many clients.
    async fn crowd(&mut self, clients: usize, tasks: usize, spell: Spell) -> Seen;
}

/// A library for Rust.
pub(crate) trait Kind: Sized {
    const NAME: &'static str;
    const WHAT: &'static str;
    const WAITS: bool = true;
    type Lock: Contender;

    /// A client, with connections of its own.
    async fn connect(server: &Server) -> Self;

    /// The lock of that name, for one task.
    fn lock(&self, name: &str) -> Self::Lock;
}

/// It, in this process. Its clients stay once they are there: what connecting costs is not measured.
pub(crate) struct InProcess<K> {
    server: Rc<Server>,
    clients: Vec<K>,
}

impl<K: Kind> InProcess<K> {
    pub(crate) fn new(server: &Rc<Server>) -> Self {
        Self {
            server: Rc::clone(server),
            clients: Vec::new(),
        }
    }

    async fn clients(&mut self, wanted: usize) -> &[K] {
        while self.clients.len() < wanted {
            self.clients.push(K::connect(&self.server).await);
        }
        &self.clients[..wanted]
    }
}

async fn cycle(lock: &mut impl Contender) {
    let held = lock.acquire().await;
    lock.release(held).await;
}

#[async_trait(?Send)]
impl<K: Kind> Peer for InProcess<K> {
    fn name(&self) -> &'static str {
        K::NAME
    }

    fn what(&self) -> String {
        K::WHAT.to_owned()
    }

    fn waits(&self) -> bool {
        K::WAITS
    }

    async fn pair(&mut self, length: Duration) -> Vec<Duration> {
        let mut lock = self.clients(1).await[0].lock("a-name-of-21-bytes-00");
        timed(length, async || cycle(&mut lock).await).await
    }

    async fn inflight(&mut self, tasks: usize, length: Duration) -> f64 {
        let client = &self.clients(1).await[0];
        let locks = (0..tasks).map(|n| client.lock(&format!("inflight-{n:012}")));
        rate(length, locks.map(|mut lock| async move || cycle(&mut lock).await)).await
    }

    async fn crowd(&mut self, clients: usize, tasks: usize, spell: Spell) -> Seen {
        let server = Rc::clone(&self.server);
        let clients = self.clients(clients).await;
        let who = (0..tasks).map(|n| clients[n % clients.len()].lock("a-crowd"));
        crowd(&*server, who.collect(), spell).await
    }
}
