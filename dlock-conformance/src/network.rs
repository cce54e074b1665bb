//! The way from clients to the servers, and what can go wrong on it.
//!
//! A rule of access P asks for one with [`Cx::network`](crate::Cx::network) and connects clients over it;
//! clients that it connects in the usual way do not notice its faults. Before a real server it is made of
//! [proxies](crate::proxy), in the simulator of simulated links, and the body of the rule is the same.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A network of which the faults are in the kit's hands.
///
/// Faults of different kinds may be at work at the same time; each ends when its [`FaultGuard`] is dropped.
pub trait Network: Any + Send + Sync + fmt::Debug {
    /// From now on, until the guard is dropped, that goes wrong.
    fn begin(&self, fault: Fault) -> FaultGuard;

    /// Whether it can do that: a proxy that knows bytes only cannot send a request twice.
    fn offers(&self, _: Fault) -> bool {
        true
    }

    /// Breaks every connection that there is, and says how many. New ones can be made at once.
    fn cut(&self, how: Cut) -> usize;

    /// What has passed so far.
    fn traffic(&self) -> Traffic;

    /// The part of it that leads to the n-th of the servers, with faults of its own: for subjects that speak
    /// to several, as a quorum does to its members. `None`, unless given, where there is no such server, or
    /// no telling them apart.
    fn server(&self, _n: usize) -> Option<Arc<dyn Network>> {
        None
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests.
    ToServer,
    /// Replies and pushes.
    ToClient,
    /// Both.
    Both,
}

impl Direction {
    /// Whether what goes that way is meant.
    pub fn covers(self, way: Self) -> bool {
        self == Self::Both || self == way
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// What goes that way takes that much longer.
    Delay(Direction, Duration),
    /// What goes that way never arrives, and nobody is told. A connection that has lost something is cut when
    /// the fault ends: there is a hole in its stream.
    BlackHole(Direction),
    /// What goes that way is kept, and arrives when the fault ends.
    Hold(Direction),
    /// The server is away: connections are cut, and no new one can be made.
    Away,
    /// Once: the next request is carried out; its reply is dropped when the server sends it, and the
    /// connection cut.
    SwallowNextReply,
    /// Once: the next request is kept and its connection cut. It arrives when the fault ends, after whatever
    /// the client has sent over new connections meanwhile; nobody hears the reply.
    DeliverLate,
    /// Requests arrive twice, the second time up to that much later; nobody hears the second reply. Those
    /// that a driver must never repeat, since nobody would undo the copy (a try, say), arrive once.
    Duplicate(Duration),
}

/// How a connection is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// As by a crash: the peer's next read or write fails.
    Reset,
    /// In order: the peer reads the end of the stream.
    Fin,
}

/// What has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Connections that clients have made.
    pub connections: u64,
    /// How often a client began to speak after the server had, or first: requests, as far as they are not
    /// sent in one go.
    pub requests: u64,
    /// How often the server began to speak: replies and pushes, in the same way.
    pub replies: u64,
}

/// A fault at work. It ends when this is dropped.
#[must_use = "the fault ends when this is dropped"]
pub struct FaultGuard {
    hits: Arc<AtomicU64>,
    heal: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl FaultGuard {
    /// A fault that has struck as often as `hits` says, and that `heal` ends.
    pub fn new(hits: Arc<AtomicU64>, heal: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self {
            hits,
            heal: Some(Box::new(heal)),
        }
    }

    /// How often it has struck: pieces of a stream (in the simulator, messages) that were delayed, lost or
    /// kept; connections that were cut, and one for the server being away.
    ///
    /// A rule that saw a fault strike nothing has not seen what it is about.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Acquire)
    }

    /// Ends it.
    pub fn heal(self) {}

    /// Does that as well when it ends.
    pub(crate) fn then(mut self, also: impl FnOnce() + Send + Sync + 'static) -> Self {
        let heal = self.heal.take();
        self.heal = Some(Box::new(move || {
            if let Some(heal) = heal {
                heal();
            }
            also();
        }));
        self
    }
}

impl Drop for FaultGuard {
    fn drop(&mut self) {
        if let Some(heal) = self.heal.take() {
            heal();
        }
    }
}

impl fmt::Debug for FaultGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultGuard")
            .field("hits", &self.hits())
            .finish_non_exhaustive()
    }
}
