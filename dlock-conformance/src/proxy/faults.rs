//! The active faults, shared by all connections to one server of a network.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::lane::Piece;
use crate::lock::lock;
use crate::network::{Direction, Fault};

#[derive(Default)]
pub(super) struct Faults {
    active: Mutex<Vec<Active>>,
    connections: Mutex<Vec<Weak<Connection>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    next: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) replies: AtomicU64,
}

#[derive(Clone)]
struct Active {
    id: u64,
    fault: Fault,
    hits: Arc<AtomicU64>,
}

impl Active {
    fn strike(&self, piece: &mut Piece) {
        // A waiting piece is checked repeatedly.
        if !piece.struck_by.contains(&self.id) {
            piece.struck_by.push(self.id);
            self.hits.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// What to do with a piece now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    Deliver,
    /// Check again at that time, or when something changes. Without a time, only when something changes.
    Wait(Option<Instant>),
    Lose,
}

impl Faults {
    pub(super) fn begin(&self, fault: Fault, hits: Arc<AtomicU64>) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.active).push(Active { id, fault, hits });
        self.wake();
        id
    }

    pub(super) fn end(&self, id: u64) {
        lock(&self.active).retain(|a| a.id != id);
        self.wake();
    }

    fn wake(&self) {
        for connection in self.connections() {
            connection.wake();
        }
    }

    pub(super) fn judge(&self, way: Direction, piece: &mut Piece) -> Judgement {
        let mut delay = Duration::ZERO;
        let mut held = false;
        for active in lock(&self.active).iter() {
            match active.fault {
                Fault::BlackHole(which) if which.covers(way) => {
                    active.strike(piece);
                    return Judgement::Lose;
                }
                Fault::Hold(which) if which.covers(way) => {
                    active.strike(piece);
                    held = true;
                }
                Fault::Delay(which, by) if which.covers(way) => {
                    active.strike(piece);
                    delay += by;
                }
                _ => {}
            }
        }
        // Its delay was fixed when it was read, which also keeps the order of later pieces.
        piece.delay = piece.delay.max(delay);
        let due = piece.arrived + piece.delay;
        match held {
            true => Judgement::Wait(None),
            false if due.saturating_duration_since(Instant::now()).is_zero() => Judgement::Deliver,
            false => Judgement::Wait(Some(due)),
        }
    }

    /// Takes a fault that strikes once, if one is there; it goes on until it is healed, and strikes nothing
    /// more.
    pub(super) fn take(&self, fault: Fault) -> Option<(u64, Arc<AtomicU64>)> {
        let active = lock(&self.active);
        let mut armed = active.iter().filter(|a| a.fault == fault);
        let found = armed.find(|a| {
            a.hits
                .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        });
        found.map(|a| (a.id, a.hits.clone()))
    }

    pub(super) fn enter(&self, connection: &Arc<Connection>) {
        let mut connections = lock(&self.connections);
        connections.retain(|c| c.upgrade().is_some());
        connections.push(Arc::downgrade(connection));
    }

    pub(super) fn connections(&self) -> Vec<Arc<Connection>> {
        lock(&self.connections).iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn runs(&self, thread: JoinHandle<()>) {
        let mut threads = lock(&self.threads);
        for ended in threads.extract_if(.., |t| t.is_finished()) {
            let _ = ended.join();
        }
        threads.push(thread);
    }

    /// Waits for the threads that were started. Nothing new is accepted and all is cut by then, so they end.
    pub(super) fn join(&self) {
        loop {
            let threads = std::mem::take(&mut *lock(&self.threads));
            if threads.is_empty() {
                return;
            }
            for thread in threads {
                let _ = thread.join();
            }
        }
    }
}
