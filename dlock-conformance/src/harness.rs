//! What a third party writes, and how a rule is driven.

use std::io;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use dlock_core::{Result, Runtime};
use futures::FutureExt;
use futures::future::{AbortHandle, Abortable, BoxFuture};

use crate::claims::Claims;
use crate::cx::Cx;
use crate::hooks::Hooks;
use crate::network::Network;
use crate::proxy::{ProxyNetwork, ServerAddress};
use crate::subject::Subject;

/// Connects the kit to what it tests. Three methods are enough; [`servers`](Harness::servers) adds the rules
/// about networks, and [`hooks`](Harness::hooks) those about restarts, clocks and foreign data.
pub trait Harness: Send + Sync + 'static {
    /// What is claimed, and how things are named in reports.
    fn claims(&self) -> Claims;

    /// The runtime that the subject runs on; the rules run on it too.
    fn runtime(&self) -> Arc<dyn Runtime>;

    /// A new client that shares nothing with those before it.
    fn connect<'a>(&'a self, cx: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>>;

    /// A client whose store cannot be reached: one that was given the address of nobody, say. Its first
    /// operation fails with a cause, or connecting does. `None`, the default, leaves out the rule about
    /// causes (17.06).
    fn connect_nowhere<'a>(&'a self, _: &'a Cx) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        None
    }

    /// A new client, as by [`connect`](Self::connect), on that runtime instead of the harness's: the kit
    /// counts its tasks, and shuts it down. `None`, the default, leaves out the rule about a runtime that
    /// ends (9.08).
    fn connect_on<'a>(
        &'a self,
        _: &'a Cx,
        _runtime: Arc<dyn Runtime>,
    ) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        None
    }

    /// A client that was given that password, in whatever form a user gives one (the address, say, just as it
    /// is), for a place where it is of no use: the password is refused, or there is nobody. `None`, the
    /// default, leaves out the rule about secrets (17.05), unless [`Need::Secrets`](crate::Need::Secrets) is
    /// taken back, where nobody has a password.
    fn connect_with_secret<'a>(
        &'a self,
        _: &'a Cx,
        _secret: &'a str,
    ) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        None
    }

    /// How many records the store keeps at the moment, of whatever kind, watchers and waiters among them,
    /// counted at the store. `None`, the default, leaves out the rules about what dead names leave behind
    /// (7.16, 13.13).
    fn footprint<'a>(&'a self, _: &'a Cx) -> Option<BoxFuture<'a, Result<u64>>> {
        None
    }

    /// Where the servers listen that a client connects to. Given, and if [`connect`](Self::connect) connects
    /// to [`cx.addr(n)`](Cx::addr) instead of the n-th of them, the kit can put its proxy between the two:
    /// access P. Empty, the default, leaves out the rules that need that.
    fn servers(&self) -> Vec<ServerAddress> {
        Vec::new()
    }

    /// What can be done to the store itself: restart it, set its clock, and so on. `None`, the default,
    /// leaves out the rules that need that: access H.
    fn hooks(&self) -> Option<&dyn Hooks> {
        None
    }

    /// A new network to the servers, for clients of one rule. A proxy before each of
    /// [`servers`](Self::servers) unless a harness has something else to offer, as the simulator has.
    ///
    /// # Errors
    /// Those of the sockets.
    fn network(&self, _: &Cx) -> io::Result<Option<Arc<dyn Network>>> {
        let servers = self.servers();
        if servers.is_empty() {
            return Ok(None);
        }
        Ok(Some(Arc::new(ProxyNetwork::start(&servers)?)))
    }

    /// What another process needs to find the same store: a path, an address, anything. The process is this
    /// test binary again, and whoever makes the harness there finds this text in
    /// [`agent::handed_over`](crate::agent::handed_over). `None`, the default, where no other process can
    /// reach the store; it leaves out the rules about processes that are killed and stopped.
    fn hand_over(&self) -> Option<String> {
        None
    }

    /// The folder of a store that waits for a disk of this machine. A rule about time that met a stall of
    /// that disk is inconclusive. `None`, the default, where there is none.
    fn disk(&self) -> Option<PathBuf> {
        None
    }

    /// A new process in the simulation, where time is simulated: it takes the place of the child processes
    /// that [`hand_over`](Self::hand_over) is for. `None`, the default, where time is real.
    fn process(&self) -> Option<Arc<dyn Process>> {
        None
    }

    /// How time passes: really, unless the runtime is a simulated one.
    fn clockwork(&self) -> Arc<dyn Clockwork> {
        Arc::new(RealTime)
    }
}

/// A process in a simulation: what runs on its runtime can be stopped and killed, all at once.
///
/// What a simulated harness answers to [`Harness::process`]. As for a real process, nothing that it was told
/// to do may go on while it is stopped, its clock goes on meanwhile, and after it was killed nothing of it
/// happens any more; what it has sent before is on its way.
pub trait Process: Send + Sync + std::fmt::Debug {
    /// Its number, another one for each.
    fn number(&self) -> u32;

    /// The harness as the process makes it: clients that connect there live in it, and its runtime is the
    /// process's own.
    fn harness(&self) -> Arc<dyn Harness>;

    /// Stops it.
    fn stop(&self);

    /// Lets it go on.
    fn resume(&self);

    /// Kills it, stopped or not.
    fn kill(&self);

    /// Sets its wall clock that many seconds off.
    fn set_wall_clock(&self, seconds: i64);

    /// What its wall clock shows, since 1970.
    fn wall_clock(&self) -> Duration;
}

/// How time passes and how a rule is run to its end: on the real clock, or in a simulation.
pub trait Clockwork: Send + Sync {
    /// Whether time is simulated. Then rules run one at a time, and no stall of the machine can spoil them.
    fn is_virtual(&self) -> bool;

    /// Time passes, and nobody runs: the real one blocks this thread, a simulated one moves the clock.
    fn stall(&self, duration: Duration);

    /// Runs the future to its end, or drops it when `limit` has passed on the runtime's clock.
    fn drive(&self, runtime: &Arc<dyn Runtime>, rule: BoxFuture<'static, ()>, limit: Duration) -> Driven;
}

/// How driving a rule ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Driven {
    /// It ran to its end.
    Done,
    /// The limit passed first.
    TimedOut,
    /// In a simulation: it cannot go on, because of that.
    Stuck(String),
}

/// The real clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealTime;

impl Clockwork for RealTime {
    fn is_virtual(&self) -> bool {
        false
    }

    fn stall(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    fn drive(&self, runtime: &Arc<dyn Runtime>, rule: BoxFuture<'static, ()>, limit: Duration) -> Driven {
        let (done, ended) = sync_channel(1);
        let (abort, registration) = AbortHandle::new_pair();
        runtime.spawn(
            async move {
                // A panic must not unwind into the runtime: some of them end the thread. The rule's own
                // catcher has the text.
                let _ = AssertUnwindSafe(Abortable::new(rule, registration))
                    .catch_unwind()
                    .await;
                let _ = done.try_send(());
            }
            .boxed(),
        );
        match ended.recv_timeout(limit) {
            // Disconnected: the runtime dropped the task; the rule's verdict is missing, which the runner
            // reports.
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Driven::Done,
            Err(RecvTimeoutError::Timeout) => {
                abort.abort();
                // A rule that blocks its thread cannot be dropped; it is left behind rather than waited for.
                let _ = ended.recv_timeout(Duration::from_secs(1));
                Driven::TimedOut
            }
        }
    }
}
