//! Hooks: what a harness can do to its store, besides connecting to it. Access H.
//!
//! Rules about restarts, clock steps and foreign data need access to the server. A harness that has it
//! implements [`Hooks`] and returns it from [`Harness::hooks`](crate::Harness::hooks). Every method is
//! optional, and a rule whose hook is missing is *not run*.
//!
//! The kit trusts no hook. After each it checks that something has happened, by the state of the store (a run
//! id, a clock, the bytes at a key) or through its own client. A hook without effect makes the rule an error
//! that names the hook, and never a pass.

mod clock;
mod memory;
mod proved;

use std::time::Duration;

use dlock_core::{LockName, Result};
use futures::future::BoxFuture;

pub use clock::WallClock;
pub use memory::MemoryHooks;

use crate::setters::setters;

/// The future of a hook; `None` if the hook is not offered. It must do nothing before it is polled, because
/// the kit also calls a hook to see whether it is offered.
pub type Offer<'a, T = ()> = Option<BoxFuture<'a, Result<T>>>;

/// What a harness can do to its store. Implement the hooks that you can offer, and leave out the rest.
///
/// A hook completes only when its work is done: after [`restart`](Self::restart) the store answers again.
/// Rules that use hooks run alone.
pub trait Hooks: Send + Sync {
    /// A look at the server, for the proofs of the other hooks.
    fn vitals(&self) -> Offer<'_, Vitals> {
        None
    }

    /// Stops the server and starts it again. Needs [`Vitals::run`].
    fn restart(&self, _: Restart) -> Offer<'_> {
        None
    }

    /// Makes another server of the same store take over, as if the current one were gone. Needs
    /// [`Vitals::leader`].
    fn fail_over(&self) -> Offer<'_> {
        None
    }

    /// Sets the server's wall clock forward or back by that much. Needs [`Vitals::clock`].
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

    /// Overwrites the record of that name in the store with data that is no lock and that contains `with`.
    /// Needs [`stored`](Self::stored) and [`mend`](Self::mend).
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

    /// Fills the store, so that it refuses new data, or frees space again.
    fn fill(&self, _full: bool) -> Offer<'_> {
        None
    }

    /// Ends the holds of that name without their holders, as an operator does with the store's own tools. Not
    /// needed if `force_release` is claimed: the kit then uses that.
    fn evict<'a>(&'a self, _name: &'a LockName) -> Offer<'a> {
        None
    }
}

/// How a server is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Restart {
    /// A clean restart: the server may store its state before it ends, and load it again. Connections break.
    InOrder,
    /// As by a power cut: only durably stored state is left.
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

/// The state of a server. Unknown values are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Vitals {
    /// A value that changes with each start of the server, such as a run id, or the process id with its start
    /// time.
    pub run: Option<String>,
    /// The name of the server within the store.
    pub leader: Option<String>,
    /// The time on the wall clock, since any epoch.
    pub clock: Option<Duration>,
}

impl Vitals {
    /// Nothing is known.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        run: impl ToString => Some(run.to_string()),
        leader: impl ToString => Some(leader.to_string()),
        clock: Duration => Some(clock),
    }
}
