//! Child processes of the kit, which it kills, stops, and gives a shifted wall clock.
//!
//! A rule with access C needs another process that uses the same store. The kit runs its own test binary
//! again, with `DLOCK_AGENT` in the environment; The entry point ([`main!`](crate::main), or [`serve`] in
//! your own `main`) checks that before anything else. It makes the same harness, connects, and carries out
//! the commands from its input, one JSON line each. Each answer is one JSON line.
//!
//! The parent records when it sent a command and when the answer came ([`Timed`]). The child acted in
//! between, whatever its own clock says. A command is sent as soon as the method returns, so it can wait in
//! the pipe of a stopped process and be the first thing that the process does when it continues.
//!
//! Nothing is left behind: a [`Child`] that is dropped is killed and waited for, and a child whose input
//! closes, because its parent died, ends at once. Only a child that is *stopped* while its parent is killed
//! stays, until it is continued.
//!
//! In virtual time the process is simulated ([`Process`]): the same agent and the same protocol, on a runtime
//! of the simulation that is stopped and killed. The rules are the same there, so the matrix proves them
//! without waiting.
//!
//! A harness supports this in two steps: [`Harness::hand_over`](crate::Harness::hand_over) returns what a
//! child needs to find the same store, and the code that makes the harness calls [`handed_over`] to see
//! whether it runs in such a child.

mod body;
mod child;
mod churn;
mod enclosed;
mod handed;
mod hold;
mod pipe;
mod protocol;
mod serve;
mod signals;
mod wall_clock;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::ErrorKind;

pub use self::child::Child;
pub use self::churn::{Churn, Seen, Step};
pub use self::handed::handed_over;
pub use self::hold::{Hold, Look};
pub use self::pipe::{Asked, Steps, Timed};
pub use self::serve::serve;
pub(crate) use self::serve::serve_with;
pub use crate::harness::Process;

use self::body::Body;
use self::handed::Handed;
pub(crate) use self::handed::is_child;
use self::wall_clock::WallClock;
use crate::cx::Cx;
use crate::verdict::{Failure, Verdict};

/// How long a child may take until it is connected.
const STARTING: Duration = Duration::from_secs(20);

impl Cx {
    /// Another process with a client of the same store.
    ///
    /// # Cancel safety
    /// Dropped, the process is killed.
    ///
    /// # Errors
    /// [`Failure::NotRun`] where there can be none: the store cannot be shared with a process, this system
    /// cannot stop one, or the test binary has no door for it. [`Failure::Kit`] if it did not start, or could
    /// not connect although the parent can.
    pub async fn child(&self) -> Verdict<Arc<Child>> {
        self.start_child(None).await
    }

    /// Another process whose wall clock can be set ([`Child::set_wall_clock`]), and is right at first.
    ///
    /// # Cancel safety
    /// Dropped, the process is killed.
    ///
    /// # Errors
    /// As [`child`](Self::child); and [`Failure::NotRun`] if neither libfaketime is installed nor, on Linux,
    /// a C compiler.
    pub async fn child_with_wall_clock(&self) -> Verdict<Arc<Child>> {
        if self.is_virtual() {
            // Every simulated process has one.
            return self.start_child(None).await;
        }
        match WallClock::new() {
            Ok(Some(clock)) => self.start_child(Some(clock)).await,
            Ok(None) => Err(Failure::NotRun(
                "it needs a process with a wall clock of its own: install libfaketime, or a C compiler on \
                 Linux"
                    .to_owned(),
            )),
            Err(e) => Err(Failure::Kit(format!(
                "the settable wall clock could not be built: {e}"
            ))),
        }
    }

    async fn start_child(&self, clock: Option<WallClock>) -> Verdict<Arc<Child>> {
        let handed = |store| Handed {
            store,
            rule: self.rule().to_owned(),
            namespace: self.namespace().to_owned(),
            seed: self.seed(),
            effort: self.effort(),
        };
        let runtime = self.runtime().clone();
        let started = if self.is_virtual() {
            let Some(process) = self.process() else {
                return not_run("time is simulated, and the harness simulates no process");
            };
            Ok(Body::simulated(process, handed(String::new()), runtime))
        } else if !signals::CAN_STOP {
            return not_run("this system has no signals to stop a process with");
        } else if is_child() {
            return not_run("this process is a child itself");
        } else if let Some(store) = self.hand_over() {
            Body::real(&handed(store), runtime, clock)
        } else {
            return not_run("no other process can reach this store (`Harness::hand_over` returns nothing)");
        };
        let started = started.map_err(|e| Failure::Kit(format!("a child could not be started: {e}")))?;
        let (child, hello) = Child::new(started, self.claims().capabilities.clone());
        match self.timeout(STARTING, hello).await {
            Some(Ok(_)) => Ok(child),
            Some(Err(e)) if e.kind() == ErrorKind::Unknown => not_run(
                "this test binary cannot run as a child (its main must be `main!`, or call `agent::serve`)",
            ),
            Some(Err(e)) => Err(Failure::Kit(format!("a child does not work: {e:?}"))),
            None => Err(Failure::Kit(format!(
                "a child is not connected after {STARTING:?}"
            ))),
        }
    }
}

fn not_run<T>(why: &str) -> Verdict<T> {
    Err(Failure::NotRun(format!(
        "it needs a child process that can be killed and stopped: {why}"
    )))
}
