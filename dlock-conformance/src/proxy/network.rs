use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::address::ServerAddress;
use super::faults::Faults;
use super::listener::{Door, Wanted};
use crate::network::{Cut, Fault, FaultGuard, Network, Traffic};
use crate::shown::shown;

/// A proxy in front of each of some servers. Dropping it ends all its threads.
pub struct ProxyNetwork {
    addresses: Vec<ServerAddress>,
    ways: Vec<Weak<Line>>,
    /// The lines that end with it: none of a part that leads to one server.
    lines: Vec<Arc<Line>>,
}

/// The way to one server.
struct Line {
    faults: Arc<Faults>,
    door: Door,
}

impl ProxyNetwork {
    /// Listens for each of the servers.
    ///
    /// # Errors
    /// Those of the sockets and threads.
    pub fn start(servers: &[ServerAddress]) -> io::Result<Self> {
        let lines: Vec<_> = servers.iter().map(Line::open).collect::<io::Result<_>>()?;
        Ok(Self {
            addresses: lines.iter().map(|line| line.door.address().clone()).collect(),
            ways: lines.iter().map(Arc::downgrade).collect(),
            lines,
        })
    }

    /// Where clients connect instead, in the order of the servers.
    pub fn addresses(&self) -> &[ServerAddress] {
        &self.addresses
    }

    fn open(&self) -> impl Iterator<Item = Arc<Line>> {
        self.ways.iter().filter_map(Weak::upgrade)
    }
}

impl Line {
    fn open(server: &ServerAddress) -> io::Result<Arc<Self>> {
        let faults = Arc::new(Faults::default());
        let door = Door::open(server.clone(), faults.clone())?;
        Ok(Arc::new(Self { faults, door }))
    }

    /// Begins it here, and returns the number that ends it. `hits` is shared by its lines.
    fn begin(&self, fault: Fault, hits: &Arc<AtomicU64>) -> u64 {
        let id = self.faults.begin(fault, hits.clone());
        if fault == Fault::Away {
            self.door.want(Wanted::Closed);
            let cut = self.cut(Cut::Reset);
            hits.fetch_add(cut as u64, Ordering::AcqRel);
        }
        id
    }

    fn end(&self, fault: Fault, id: u64) {
        self.faults.end(id);
        match fault {
            Fault::Away => self.door.want(Wanted::Open),
            Fault::DeliverLate => {
                let connections = self.faults.connections();
                connections.iter().for_each(|c| c.deliver_late(id));
            }
            Fault::BlackHole(_) => {
                let connections = self.faults.connections();
                for connection in connections.iter().filter(|c| c.is_holed()) {
                    connection.break_off(Cut::Reset);
                }
            }
            _ => {}
        }
    }

    fn cut(&self, how: Cut) -> usize {
        let connections = self.faults.connections();
        connections.iter().filter(|c| c.break_off(how)).count()
    }
}

impl Network for ProxyNetwork {
    /// A fault that strikes once strikes on one of the lines.
    fn begin(&self, fault: Fault) -> FaultGuard {
        // One hit for the server, or the servers, being unreachable.
        let hits = Arc::new(AtomicU64::new(u64::from(fault == Fault::Away)));
        let begin = |line: Arc<Line>| (line.begin(fault, &hits), Arc::downgrade(&line));
        let begun: Vec<_> = self.open().map(begin).collect();
        // Weak, so that a guard that outlives its network keeps no thread alive.
        FaultGuard::new(hits, move || {
            for (id, line) in &begun {
                if let Some(line) = line.upgrade() {
                    line.end(fault, *id);
                }
            }
        })
    }

    /// It knows no requests, only bytes.
    fn offers(&self, fault: Fault) -> bool {
        !matches!(fault, Fault::Duplicate(_))
    }

    fn cut(&self, how: Cut) -> usize {
        self.open().map(|line| line.cut(how)).sum()
    }

    fn traffic(&self) -> Traffic {
        let sum = |count: fn(&Faults) -> &AtomicU64| {
            let open = self.open();
            open.map(|line| count(&line.faults).load(Ordering::Acquire)).sum()
        };
        Traffic {
            connections: sum(|faults| &faults.accepted),
            requests: sum(|faults| &faults.requests),
            replies: sum(|faults| &faults.replies),
        }
    }

    fn server(&self, n: usize) -> Option<Arc<dyn Network>> {
        Some(Arc::new(Self {
            addresses: vec![self.addresses.get(n)?.clone()],
            ways: vec![self.ways.get(n)?.clone()],
            lines: Vec::new(),
        }))
    }
}

impl Drop for ProxyNetwork {
    fn drop(&mut self) {
        for line in &self.lines {
            line.door.want(Wanted::Gone);
        }
        for line in &self.lines {
            line.cut(Cut::Reset);
        }
        for line in &self.lines {
            line.faults.join();
        }
    }
}

shown!(ProxyNetwork, it => "ProxyNetwork({:?}, {:?})", it.addresses, it.traffic());
