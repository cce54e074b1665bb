use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::address::ServerAddress;
use super::faults::Faults;
use super::listener::{Door, Wanted};
use crate::network::{Cut, Fault, FaultGuard, Network, Traffic};

/// A proxy before each of some servers. All its threads have ended when it has been dropped.
pub struct ProxyNetwork {
    addresses: Vec<ServerAddress>,
    pub(super) faults: Arc<Faults>,
    doors: Arc<[Door]>,
}

impl ProxyNetwork {
    /// Listens for each of the servers.
    ///
    /// # Errors
    /// Those of the sockets and threads.
    pub fn start(servers: &[ServerAddress]) -> io::Result<Self> {
        let faults = Arc::new(Faults::default());
        let doors: Vec<Door> = servers
            .iter()
            .map(|server| Door::open(server.clone(), faults.clone()))
            .collect::<io::Result<_>>()?;
        Ok(Self {
            addresses: doors.iter().map(|door| door.address().clone()).collect(),
            faults,
            doors: doors.into(),
        })
    }

    /// Where clients connect instead, in the order of the servers.
    pub fn addresses(&self) -> &[ServerAddress] {
        &self.addresses
    }
}

impl Network for ProxyNetwork {
    fn begin(&self, fault: Fault) -> FaultGuard {
        let (id, hits) = self.faults.begin(fault);
        if fault == Fault::Away {
            self.doors.iter().for_each(|door| door.want(Wanted::Closed));
            let cut = self.cut(Cut::Reset);
            hits.fetch_add(cut as u64 + 1, Ordering::AcqRel);
        }
        let faults = self.faults.clone();
        // Weak, so that a guard that outlives its network keeps no thread alive.
        let doors = Arc::downgrade(&self.doors);
        FaultGuard::new(hits, move || {
            faults.end(id);
            match fault {
                Fault::Away => {
                    let doors = doors.upgrade();
                    doors
                        .iter()
                        .flat_map(|d| d.iter())
                        .for_each(|door| door.want(Wanted::Open));
                }
                Fault::DeliverLate => {
                    let connections = faults.connections();
                    connections.iter().for_each(|c| c.deliver_late(id));
                }
                Fault::BlackHole(_) => {
                    let connections = faults.connections();
                    for connection in connections.iter().filter(|c| c.is_holed()) {
                        connection.break_off(Cut::Reset);
                    }
                }
                _ => {}
            }
        })
    }

    /// It knows no requests, only bytes.
    fn offers(&self, fault: Fault) -> bool {
        !matches!(fault, Fault::Duplicate(_))
    }

    fn cut(&self, how: Cut) -> usize {
        let connections = self.faults.connections();
        connections.iter().filter(|c| c.break_off(how)).count()
    }

    fn traffic(&self) -> Traffic {
        Traffic {
            connections: self.faults.accepted.load(Ordering::Acquire),
            requests: self.faults.requests.load(Ordering::Acquire),
            replies: self.faults.replies.load(Ordering::Acquire),
        }
    }
}

impl Drop for ProxyNetwork {
    fn drop(&mut self) {
        self.doors.iter().for_each(|door| door.want(Wanted::Gone));
        for connection in self.faults.connections() {
            connection.break_off(Cut::Reset);
        }
        self.faults.join();
    }
}

impl fmt::Debug for ProxyNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyNetwork")
            .field("addresses", &self.addresses)
            .field("traffic", &self.traffic())
            .finish_non_exhaustive()
    }
}
