//! What a harness can do to its store, besides connecting to it: access H.
//!
//! Rules about restarts, clocks that are set, and data that somebody else wrote need hands at the server. A
//! harness that has them implements [`Hooks`] and gives it by [`Harness::hooks`](crate::Harness::hooks);
//! every method is optional, and a rule whose hook is not there is *not run*.
//!
//! No hook is believed: after each the kit looks whether anything has happened, with a look at the store (a
//! run id, a clock, the bytes at a key) or through a client of its own. A hook that did nothing makes the
//! rule an error that names the hook, and never a pass.

mod clock;
mod memory;
mod proved;

use std::time::Duration;

use dlock_core::{LockName, Result};
use futures::future::BoxFuture;

pub use clock::WallClock;
pub use memory::MemoryHooks;

/// What a hook does, when it is awaited; `None` if it is not offered. Nothing happens before it is polled:
/// asking whether there is one is asking for this.
pub type Offer<'a, T = ()> = Option<BoxFuture<'a, Result<T>>>;

/// What a harness can do to its store. Implement what there is; leave out the rest.
///
/// Each does its work before it completes: after [`restart`](Self::restart) the store answers again. Rules
/// that use them run alone.
pub trait Hooks: Send + Sync {
    /// A look at the server, for the proofs of the other hooks.
    fn vitals(&self) -> Offer<'_, Vitals> {
        None
    }

    /// Stops the server and starts it again. Needs [`Vitals::run`].
    fn restart(&self, _: Restart) -> Offer<'_> {
        None
    }

    /// Makes another server of the same store the one that answers, as if the one that did were gone. Needs
    /// [`Vitals::leader`].
    fn fail_over(&self) -> Offer<'_> {
        None
    }

    /// Sets the server's clock, the one that somebody can set, forward or back by that much. Needs
    /// [`Vitals::clock`].
    fn step_clock(&self, _: Step) -> Offer<'_> {
        None
    }

    /// Makes the next token of that name (and of others, where they share a counter) the one after `to`,
    /// which is larger than any before. Needs [`counter`](Self::counter).
    fn set_counter<'a>(&'a self, _name: &'a LockName, _to: u64) -> Offer<'a> {
        None
    }

    /// The last token of that name, read from where the store keeps it.
    fn counter<'a>(&'a self, _name: &'a LockName) -> Offer<'a, u64> {
        None
    }

    /// Writes something that is no lock to where the store keeps that name, over whatever is there; `with` is
    /// to be a part of it. Needs [`stored`](Self::stored) and [`mend`](Self::mend).
    fn spoil<'a>(&'a self, _name: &'a LockName, _with: &'a str) -> Offer<'a> {
        None
    }

    /// The bytes that are stored at that name, as they are; empty if there are none.
    fn stored<'a>(&'a self, _name: &'a LockName) -> Offer<'a, Vec<u8>> {
        None
    }

    /// Removes whatever is stored at that name.
    fn mend<'a>(&'a self, _name: &'a LockName) -> Offer<'a> {
        None
    }

    /// Fills the store, so that it refuses what would make it grow; or makes room again.
    fn fill(&self, _full: bool) -> Offer<'_> {
        None
    }

    /// Ends the holds of that name behind the backs of their holders, as an operator does with the store's
    /// own tools. Not needed where `force_release` is claimed, which the kit uses then.
    fn evict<'a>(&'a self, _name: &'a LockName) -> Offer<'a> {
        None
    }
}

/// How a server is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Restart {
    /// In order: what it has to know afterwards it may store before it ends, and load again. Connections
    /// break.
    InOrder,
    /// As by a power cut: it has afterwards what was stored where such a cut reaches nothing.
    Crash,
}

/// How a clock is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To a later time.
    Forward(Duration),
    /// To an earlier one.
    Back(Duration),
}

/// A look at a server. What is not known is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Vitals {
    /// What changes with each start of the server: its run id, its process id with its start time.
    pub run: Option<String>,
    /// Which server of the store it is.
    pub leader: Option<String>,
    /// What the clock shows that somebody can set, since any time whatever.
    pub clock: Option<Duration>,
}

impl Vitals {
    /// Nothing is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// With that run id.
    pub fn run(mut self, run: impl ToString) -> Self {
        self.run = Some(run.to_string());
        self
    }

    /// Of that server.
    pub fn leader(mut self, leader: impl ToString) -> Self {
        self.leader = Some(leader.to_string());
        self
    }

    /// With that time on its clock.
    pub fn clock(mut self, clock: Duration) -> Self {
        self.clock = Some(clock);
        self
    }
}
