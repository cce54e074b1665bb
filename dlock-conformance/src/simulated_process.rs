//! Another process in the simulator: clients on a machine of their own, which is stopped and killed with
//! everything on it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlock_core::sim::{FaultPlan, Link, SimRuntime};
use dlock_core::{Memory, Result, Runtime};
use futures::FutureExt;

use crate::agent::Process;
use crate::claims::Claims;
use crate::cx::Cx;
use crate::harness::{Clockwork, Connecting, Harness};
use crate::shown::shown;
use crate::simulated::{self, SimulatedTime};
use crate::simulated_machine::{Machine, Stop};
use crate::subject::Subject;

/// What all of the world is to a process.
pub(crate) struct Surroundings {
    pub(crate) clockwork: Arc<SimulatedTime>,
    pub(crate) server: SimRuntime,
    pub(crate) store: Memory,
    pub(crate) plan: FaultPlan,
}

/// A process of the world of a [`Simulated`](crate::simulated::Simulated).
pub(crate) struct SimulatedProcess {
    machine: Arc<Machine>,
    harness: Arc<Inside>,
}

impl SimulatedProcess {
    pub(crate) fn new(number: u32, around: Surroundings) -> Self {
        let node = around.clockwork.machine(&format!("process {number}"));
        let machine = Arc::new(Machine::new(number, node));
        let harness = Arc::new(Inside {
            machine: Arc::clone(&machine),
            around,
        });
        Self { machine, harness }
    }
}

impl Process for SimulatedProcess {
    fn number(&self) -> u32 {
        self.machine.number
    }

    fn harness(&self) -> Arc<dyn Harness> {
        Arc::clone(&self.harness) as _
    }

    fn stop(&self) {
        let from = self.machine.node.now();
        self.machine
            .change_stops(|stops| stops.push(Stop { from, until: None }));
        self.machine.node.pause();
    }

    fn resume(&self) {
        let now = self.machine.node.now();
        self.machine.change_stops(|stops| {
            if let Some(last) = stops.last_mut() {
                last.until = Some(now);
            }
        });
        self.machine.node.resume();
    }

    fn kill(&self) {
        self.machine.node.kill();
    }

    fn set_wall_clock(&self, seconds: i64) {
        self.machine.ahead.store(seconds, Ordering::Relaxed);
    }

    fn wall_clock(&self) -> Duration {
        self.machine.wall_clock()
    }
}

shown!(SimulatedProcess, it => "SimulatedProcess({})", it.machine.number);

/// The harness as the process makes it.
struct Inside {
    machine: Arc<Machine>,
    around: Surroundings,
}

impl Harness for Inside {
    fn claims(&self) -> Claims {
        simulated::claims(&self.around.store)
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(self.machine.node.clone())
    }

    fn connect<'a>(&'a self, _: &'a Cx) -> Connecting<'a> {
        let (around, node) = (&self.around, &self.machine.node);
        let link = Link::new(around.store.connect(), node, &around.server, around.plan.clone());
        futures::future::ready(client(&self.machine, link)).boxed()
    }

    fn clockwork(&self) -> Arc<dyn Clockwork> {
        Arc::clone(&self.around.clockwork) as _
    }
}

/// A client that lives in the process. Bugs that are planted in processes wrap it, since they show only in
/// another process.
#[cfg(dlock_saboteur)]
fn client(machine: &Arc<Machine>, link: Arc<Link>) -> Result<Arc<dyn Subject>> {
    crate::saboteur::planted::client(machine, link)
}

/// A client that lives in the process.
#[cfg(not(dlock_saboteur))]
fn client(machine: &Arc<Machine>, link: Arc<Link>) -> Result<Arc<dyn Subject>> {
    let runtime = Arc::new(machine.node.clone());
    let client = dlock_core::Client::builder(link, runtime).build()?;
    Ok(Arc::new(crate::engine_subject::EngineSubject::new(client)))
}
