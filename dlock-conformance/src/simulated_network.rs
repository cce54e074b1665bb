//! The faults of a network in the simulator: the same for a rule as those of the proxy, in virtual time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use dlock_core::sim::{Link, Partition, SimRuntime, Trouble};

use crate::lock::lock;
use crate::network::{Cut, Direction, Fault, FaultGuard, Network, Traffic};

/// With the number of the server that each leads to.
type Links = Vec<(usize, Arc<Link>)>;

/// The links of the clients that connected over it.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedNetwork {
    shared: Arc<Shared>,
    /// Only those that lead to this server.
    only: Option<usize>,
}

#[derive(Debug)]
struct Shared {
    links: Mutex<Links>,
    /// How many connections to each server were cut.
    cuts: Vec<AtomicU64>,
    next: AtomicU64,
    servers: Vec<SimRuntime>,
}

fn partition(way: Direction) -> Partition {
    match way {
        Direction::ToServer => Partition::Requests,
        Direction::ToClient => Partition::Replies,
        Direction::Both => Partition::Both,
    }
}

impl SimulatedNetwork {
    /// A network to those servers. A bug may be planted in its drivers, which reconnect, or in how a server
    /// writes to its connections.
    pub(crate) fn new(servers: Vec<SimRuntime>) -> Self {
        let shared = Shared {
            links: Mutex::default(),
            cuts: servers.iter().map(|_| AtomicU64::new(0)).collect(),
            next: AtomicU64::new(0),
            servers,
        };
        Self {
            shared: Arc::new(shared),
            only: None,
        }
    }

    /// Adds a client, and the server that it reaches over that link. Active faults do not affect it.
    pub(crate) fn add(&self, server: usize, link: &Arc<Link>) {
        self.all().push((server, Arc::clone(link)));
    }

    /// A driver that leaks the resources of broken connections, and has none left after some of them.
    fn is_used_up(&self) -> bool {
        crate::switch::on("no_recover_after_heal") && self.cuts() >= 8
    }

    fn cuts(&self) -> u64 {
        let of = self
            .numbers()
            .map(|n| self.shared.cuts[n].load(Ordering::Relaxed));
        of.sum()
    }

    /// Of the servers that it leads to.
    fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.shared.servers.len()).filter(|n| self.leads_to(*n))
    }

    fn leads_to(&self, server: usize) -> bool {
        self.only.is_none_or(|only| only == server)
    }

    fn all(&self) -> MutexGuard<'_, Links> {
        lock(&self.shared.links)
    }

    fn links(&self) -> Links {
        let all = self.all();
        let ours = all.iter().filter(|(server, _)| self.leads_to(*server));
        ours.cloned().collect()
    }
}

impl Network for SimulatedNetwork {
    fn begin(&self, fault: Fault) -> FaultGuard {
        let links = self.links();
        let hits = Arc::new(AtomicU64::new(0));
        let trouble = match fault {
            Fault::Delay(way, by) => Trouble::Delay(partition(way), by),
            Fault::BlackHole(way) => Trouble::BlackHole(partition(way)),
            Fault::Hold(way) => Trouble::Hold(partition(way)),
            Fault::SwallowNextReply => Trouble::SwallowNextReply,
            Fault::DeliverLate => Trouble::DeliverLate,
            Fault::Duplicate(by) => Trouble::Duplicate(by),
            Fault::Away => {
                links.iter().for_each(|(_, link)| link.cut());
                hits.fetch_add(links.len() as u64 + 1, Ordering::AcqRel);
                if crate::switch::on("no_recovery") || self.is_used_up() {
                    return FaultGuard::new(hits, || ());
                }
                return FaultGuard::new(hits, move || {
                    links.iter().for_each(|(_, link)| link.reconnect());
                });
            }
        };
        let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
        for (_, link) in &links {
            link.begin(number, trouble, Arc::clone(&hits));
        }
        if crate::switch::on("partition_blocks_all") && trouble == Trouble::BlackHole(Partition::Both) {
            // A server that blocks on the connection that reads nothing writes to no other one.
            let servers: Vec<_> = self.numbers().map(|n| self.shared.servers[n].clone()).collect();
            servers.iter().for_each(SimRuntime::pause);
            return FaultGuard::new(hits, move || {
                links.iter().for_each(|(_, link)| link.end(number));
                servers.iter().for_each(SimRuntime::resume);
            });
        }
        FaultGuard::new(hits, move || {
            links.iter().for_each(|(_, link)| link.end(number));
        })
    }

    /// A reset and a clean end are the same here.
    fn cut(&self, _: Cut) -> usize {
        let links = self.links();
        for (server, link) in &links {
            link.cut();
            if !crate::switch::on("no_reconnect") && !self.is_used_up() {
                link.reconnect();
            }
            self.shared.cuts[*server].fetch_add(1, Ordering::Relaxed);
        }
        links.len()
    }

    /// Connections: one per client and server, and one after each cut.
    fn traffic(&self) -> Traffic {
        let links = self.links();
        let sum = |part: fn((u64, u64)) -> u64| links.iter().map(|(_, link)| part(link.traffic())).sum();
        Traffic {
            connections: links.len() as u64 + self.cuts(),
            requests: sum(|(sent, _)| sent),
            replies: sum(|(_, arrived)| arrived),
        }
    }

    fn server(&self, n: usize) -> Option<Arc<dyn Network>> {
        (n < self.shared.servers.len()).then(|| {
            Arc::new(Self {
                shared: Arc::clone(&self.shared),
                only: Some(n),
            }) as Arc<dyn Network>
        })
    }
}
