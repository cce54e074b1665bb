//! The network between clients and servers, and its faults.
//!
//! A rule of access P asks for one with [`Cx::network`](crate::Cx::network) and connects clients over it;
//! clients that it connects in the usual way do not notice its faults. In front of a real server it consists
//! of [proxies](crate::proxy), in the simulator of simulated links. The body of the rule is the same.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::shown::shown;

/// A network whose faults the kit controls.
///
/// Faults of different kinds may be active at the same time. Each ends when its [`FaultGuard`] is dropped.
pub trait Network: Any + Send + Sync + fmt::Debug {
    /// Starts a fault, which lasts until the guard is dropped.
    fn begin(&self, fault: Fault) -> FaultGuard;

    /// Whether it can do that: a proxy that knows bytes only cannot send a request twice.
    fn offers(&self, _: Fault) -> bool {
        true
    }

    /// Breaks every existing connection, and returns how many there were. New ones can be made at once.
    fn cut(&self, how: Cut) -> usize;

    /// The traffic so far.
    fn traffic(&self) -> Traffic;

    /// The part of it that leads to the n-th server, with its own faults, for subjects with several servers
    /// such as a quorum. `None`, the default, if there is no such server or they cannot be distinguished.
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
    /// Whether it includes that direction.
    pub fn covers(self, way: Self) -> bool {
        self == Self::Both || self == way
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Delays everything in that direction by that much.
    Delay(Direction, Duration),
    /// Silently drops everything in that direction. A connection that has lost data is cut when the fault
    /// ends, because its stream has a hole.
    BlackHole(Direction),
    /// Keeps everything in that direction, and delivers it when the fault ends.
    Hold(Direction),
    /// The server is unreachable: connections are cut, and no new one can be made.
    Away,
    /// Once: the next request is carried out; its reply is dropped when the server sends it, and the
    /// connection cut.
    SwallowNextReply,
    /// Once: the next request is kept and its connection cut. It arrives when the fault ends, after
    /// everything that the client sent over new connections. Its reply is dropped.
    DeliverLate,
    /// Requests arrive twice, the second time up to that much later, and the second reply is dropped.
    /// Requests that a driver must never repeat, because nothing would undo the copy (for example a try),
    /// arrive once.
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

/// Counts of the traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Connections that clients have made.
    pub connections: u64,
    /// How often a client started to send, first or after the server. This counts requests, unless they are
    /// sent together.
    pub requests: u64,
    /// How often the server started to send: replies and pushes, counted in the same way.
    pub replies: u64,
}

/// An active fault. It ends when this is dropped.
#[must_use = "the fault ends when this is dropped"]
pub struct FaultGuard {
    hits: Arc<AtomicU64>,
    heal: Vec<Box<dyn FnOnce() + Send + Sync>>,
}

impl FaultGuard {
    /// A fault whose strikes `hits` counts, and which `heal` ends.
    pub fn new(hits: Arc<AtomicU64>, heal: impl FnOnce() + Send + Sync + 'static) -> Self {
        let heal: Vec<Box<dyn FnOnce() + Send + Sync>> = vec![Box::new(heal)];
        Self { hits, heal }
    }

    /// How often it has struck: pieces of a stream (in the simulator, messages) that were delayed, lost or
    /// kept; connections that were cut, and one for the server being away.
    ///
    /// If a fault struck nothing, the rule has not tested its subject.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Acquire)
    }

    /// Ends it.
    pub fn heal(self) {}

    /// Does that as well when it ends.
    pub(crate) fn then(mut self, also: impl FnOnce() + Send + Sync + 'static) -> Self {
        self.heal.push(Box::new(also));
        self
    }
}

impl Drop for FaultGuard {
    fn drop(&mut self) {
        self.heal.drain(..).for_each(|heal| heal());
    }
}

shown!(FaultGuard, it => "FaultGuard({} hits)", it.hits());
