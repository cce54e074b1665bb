//! The faults of a network in the simulator: the same for a rule as those of the proxy, in virtual time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_core::saboteur::{Bug, Planted};
use dlock_core::sim::{Link, Partition, SimRuntime, Trouble};

use crate::network::{Cut, Direction, Fault, FaultGuard, Network, Traffic};

type Links = Vec<Arc<Link>>;

/// The links of the clients that connected over it.
#[derive(Debug)]
pub(crate) struct SimulatedNetwork {
    links: Mutex<Links>,
    cuts: AtomicU64,
    next: AtomicU64,
    server: SimRuntime,
    planted: Planted,
}

fn partition(way: Direction) -> Partition {
    match way {
        Direction::ToServer => Partition::Requests,
        Direction::ToClient => Partition::Replies,
        Direction::Both => Partition::Both,
    }
}

impl SimulatedNetwork {
    /// One to that server. A bug may be planted in its drivers, which are what makes a connection anew, or in how the server writes to
    /// its connections.
    pub(crate) fn new(server: SimRuntime, planted: Planted) -> Self {
        Self {
            links: Mutex::default(),
            cuts: AtomicU64::new(0),
            next: AtomicU64::new(0),
            server,
            planted,
        }
    }

    /// One more client. Faults that are at work already do not concern it.
    pub(crate) fn add(&self, link: &Arc<Link>) {
        self.links().push(Arc::clone(link));
    }

    /// A driver that never gives back what a broken connection had, and has none left after some of them.
    fn is_used_up(&self) -> bool {
        self.planted.is(Bug::NoRecoverAfterHeal) && self.cuts.load(Ordering::Relaxed) >= 8
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network for SimulatedNetwork {
    fn begin(&self, fault: Fault) -> FaultGuard {
        let links = self.links().clone();
        let hits = Arc::new(AtomicU64::new(0));
        let trouble = match fault {
            Fault::Delay(way, by) => Trouble::Delay(partition(way), by),
            Fault::BlackHole(way) => Trouble::BlackHole(partition(way)),
            Fault::Hold(way) => Trouble::Hold(partition(way)),
            Fault::SwallowNextReply => Trouble::SwallowNextReply,
            Fault::DeliverLate => Trouble::DeliverLate,
            Fault::Duplicate(by) => Trouble::Duplicate(by),
            Fault::Away => {
                links.iter().for_each(|link| link.cut());
                hits.fetch_add(links.len() as u64 + 1, Ordering::AcqRel);
                // planted: 16.09, 16.15
                if self.planted.is(Bug::NoRecovery) || self.is_used_up() {
                    return FaultGuard::new(hits, || ());
                }
                return FaultGuard::new(hits, move || links.iter().for_each(|link| link.reconnect()));
            }
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        for link in &links {
            link.begin(number, trouble, Arc::clone(&hits));
        }
        // planted: 16.13
        if self.planted.is(Bug::PartitionBlocksAll) && trouble == Trouble::BlackHole(Partition::Both) {
            // Whoever writes to the one that takes nothing writes to nobody else.
            self.server.pause();
            let server = self.server.clone();
            return FaultGuard::new(hits, move || {
                links.iter().for_each(|link| link.end(number));
                server.resume();
            });
        }
        FaultGuard::new(hits, move || links.iter().for_each(|link| link.end(number)))
    }

    /// Nobody can tell a reset from an end here.
    fn cut(&self, _: Cut) -> usize {
        let links = self.links().clone();
        for link in &links {
            link.cut();
            // planted: 16.01, 16.15
            if !self.planted.is(Bug::NoReconnect) && !self.is_used_up() {
                link.reconnect();
            }
        }
        self.cuts.fetch_add(links.len() as u64, Ordering::Relaxed);
        links.len()
    }

    /// Connections: one per client, and one after each cut.
    fn traffic(&self) -> Traffic {
        let links = self.links().clone();
        let sum = |part: fn((u64, u64)) -> u64| links.iter().map(|link| part(link.traffic())).sum();
        Traffic {
            connections: links.len() as u64 + self.cuts.load(Ordering::Relaxed),
            requests: sum(|(sent, _)| sent),
            replies: sum(|(_, arrived)| arrived),
        }
    }
}
