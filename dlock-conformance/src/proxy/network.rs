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
            lines,
        })
    }

    /// Where clients connect instead, in the order of the servers.
    pub fn addresses(&self) -> &[ServerAddress] {
        &self.addresses
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

/// Begins a fault on those lines. A fault that strikes once strikes on one of them.
fn begin(lines: &[Arc<Line>], fault: Fault) -> FaultGuard {
    // One hit for the server, or the servers, being unreachable.
    let hits = Arc::new(AtomicU64::new(u64::from(fault == Fault::Away)));
    let begun: Vec<_> = lines
        .iter()
        .map(|line| (Arc::downgrade(line), line.begin(fault, &hits)))
        .collect();
    // Weak, so that a guard that outlives its network keeps no thread alive.
    FaultGuard::new(hits, move || {
        for (line, id) in &begun {
            if let Some(line) = line.upgrade() {
                line.end(fault, *id);
            }
        }
    })
}

fn traffic(lines: &[Arc<Line>]) -> Traffic {
    let sum = |count: fn(&Faults) -> &AtomicU64| {
        let counts = lines
            .iter()
            .map(|line| count(&line.faults).load(Ordering::Acquire));
        counts.sum()
    };
    Traffic {
        connections: sum(|faults| &faults.accepted),
        requests: sum(|faults| &faults.requests),
        replies: sum(|faults| &faults.replies),
    }
}

/// It knows no requests, only bytes.
fn offers(fault: Fault) -> bool {
    !matches!(fault, Fault::Duplicate(_))
}

impl Network for ProxyNetwork {
    fn begin(&self, fault: Fault) -> FaultGuard {
        begin(&self.lines, fault)
    }

    fn offers(&self, fault: Fault) -> bool {
        offers(fault)
    }

    fn cut(&self, how: Cut) -> usize {
        self.lines.iter().map(|line| line.cut(how)).sum()
    }

    fn traffic(&self) -> Traffic {
        traffic(&self.lines)
    }

    fn server(&self, n: usize) -> Option<Arc<dyn Network>> {
        Some(Arc::new(ToOne(Arc::downgrade(self.lines.get(n)?))))
    }
}

/// The part of a network that leads to one of its servers.
#[derive(Debug)]
struct ToOne(Weak<Line>);

impl ToOne {
    fn line(&self) -> Vec<Arc<Line>> {
        self.0.upgrade().into_iter().collect()
    }
}

impl Network for ToOne {
    fn begin(&self, fault: Fault) -> FaultGuard {
        begin(&self.line(), fault)
    }

    fn offers(&self, fault: Fault) -> bool {
        offers(fault)
    }

    fn cut(&self, how: Cut) -> usize {
        self.line().iter().map(|line| line.cut(how)).sum()
    }

    fn traffic(&self) -> Traffic {
        traffic(&self.line())
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

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn dropping_a_network_ends_every_thread() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let net = ProxyNetwork::start(&[server.local_addr().unwrap().into()]).unwrap();
        let address = net.addresses()[0].tcp().unwrap();
        let ends = [(); 5].map(|()| (TcpStream::connect(address).unwrap(), server.accept().unwrap()));
        // Each thread has a share of it.
        let shared = Arc::downgrade(&net.lines[0].faults);
        drop(net);
        assert_eq!(shared.strong_count(), 0);
        drop(ends);
    }
}
