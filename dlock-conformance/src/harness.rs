//! The harness that a third party writes, and how a rule is driven.

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

/// A client that connects.
pub type Connecting<'a> = BoxFuture<'a, Result<Arc<dyn Subject>>>;

/// Connects the kit to the lock under test. Three methods are enough; [`servers`](Harness::servers) adds the
/// rules about networks, and [`hooks`](Harness::hooks) those about restarts, clocks and foreign data.
pub trait Harness: Send + Sync + 'static {
    /// The claims, and the names for reports.
    fn claims(&self) -> Claims;

    /// The runtime of the subject. The rules run on it too.
    fn runtime(&self) -> Arc<dyn Runtime>;

    /// A new client, which shares nothing with earlier ones.
    fn connect<'a>(&'a self, cx: &'a Cx) -> Connecting<'a>;

    /// A client whose store cannot be reached, for example at an address where no server listens. Its first
    /// operation, or connecting, must fail with a cause. `None`, the default, skips the rule about causes
    /// (17.06).
    fn connect_nowhere<'a>(&'a self, _: &'a Cx) -> Option<Connecting<'a>> {
        None
    }

    /// A new client, as by [`connect`](Self::connect), on the given runtime instead of the harness's. The kit
    /// counts the tasks of that runtime, and shuts it down. `None`, the default, skips the rule about a
    /// runtime that ends (9.08).
    fn connect_on<'a>(&'a self, _: &'a Cx, _runtime: Arc<dyn Runtime>) -> Option<Connecting<'a>> {
        None
    }

    /// A client with that password, in the form in which users give it (for example in the address,
    /// verbatim), for a place that does not accept it: the password is refused, or no server listens. `None`,
    /// the default, skips the rule about secrets (17.05). If the store has no passwords, withdraw
    /// [`Need::Secrets`](crate::Need::Secrets) instead.
    fn connect_with_secret<'a>(&'a self, _: &'a Cx, _secret: &'a str) -> Option<Connecting<'a>> {
        None
    }

    /// The current number of records of any kind in the store, including watchers and waiters, counted at the
    /// store. `None`, the default, skips the rules about leftovers of unused names (7.16, 13.13).
    fn footprint<'a>(&'a self, _: &'a Cx) -> Option<BoxFuture<'a, Result<u64>>> {
        None
    }

    /// The addresses of the servers that a client connects to. If [`connect`](Self::connect) uses
    /// [`cx.addr(n)`](Cx::addr) instead of the n-th of them, the kit can put its proxy in between: access P.
    /// Empty, the default, skips the rules that need this.
    fn servers(&self) -> Vec<ServerAddress> {
        Vec::new()
    }

    /// The hooks into the store itself: restart it, set its clock, and so on. `None`, the default, skips the
    /// rules that need them: access H.
    fn hooks(&self) -> Option<&dyn Hooks> {
        None
    }

    /// A new network to the servers, for the clients of one rule. By default, a proxy in front of each of
    /// [`servers`](Self::servers). The simulator has its own.
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

    /// The text with which another process finds the same store: a path, an address, anything. That process
    /// is this test binary again. The code that makes the harness there gets the text from
    /// [`agent::handed_over`](crate::agent::handed_over). `None`, the default, if no other process can reach
    /// the store; this skips the rules about killed and stopped processes.
    fn hand_over(&self) -> Option<String> {
        None
    }

    /// The folder of a store that writes to a disk of this machine. A rule about time is inconclusive if that
    /// disk stalled. `None`, the default, if there is no such folder.
    fn disk(&self) -> Option<PathBuf> {
        None
    }

    /// A new simulated process, in simulated time. It replaces the child processes of
    /// [`hand_over`](Self::hand_over). `None`, the default, in real time.
    fn process(&self) -> Option<Arc<dyn Process>> {
        None
    }

    /// How time passes: in real time, unless the runtime is simulated.
    fn clockwork(&self) -> Arc<dyn Clockwork> {
        Arc::new(RealTime)
    }
}

/// A process in a simulation. Everything on its runtime can be stopped and killed at once.
///
/// A simulated harness returns it from [`Harness::process`]. It must behave like a real process: while it is
/// stopped none of its work continues, but its clock runs on. After it was killed it does nothing more, but
/// what it has sent stays in flight.
pub trait Process: Send + Sync + std::fmt::Debug {
    /// Its number, unique per process.
    fn number(&self) -> u32;

    /// The harness of the process: clients that connect there live in the process, on its own runtime.
    fn harness(&self) -> Arc<dyn Harness>;

    /// Stops it.
    fn stop(&self);

    /// Continues it.
    fn resume(&self);

    /// Kills it, stopped or not.
    fn kill(&self);

    /// Shifts its wall clock by that many seconds.
    fn set_wall_clock(&self, seconds: i64);

    /// What its wall clock shows, since 1970.
    fn wall_clock(&self) -> Duration;
}

/// How time passes and how a rule is run to its end: on the real clock, or in a simulation.
pub trait Clockwork: Send + Sync {
    /// Whether time is simulated. Then rules run one at a time, and no stall of the machine can spoil them.
    fn is_virtual(&self) -> bool;

    /// Lets time pass while no task runs: in real time this blocks the thread, in a simulation it moves the
    /// clock.
    fn stall(&self, duration: Duration);

    /// Runs the future to its end, or drops it after `limit` on the runtime's clock.
    fn drive(&self, runtime: &Arc<dyn Runtime>, rule: BoxFuture<'static, ()>, limit: Duration) -> Driven;
}

/// How driving a rule ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Driven {
    /// It ran to its end.
    Done,
    /// The limit passed first.
    TimedOut,
    /// The simulation cannot continue, for this reason.
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
                // A panic must not unwind into the runtime, since some runtimes end the thread. The rule's
                // own catcher has the text.
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
