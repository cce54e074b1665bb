//! Runtimes whose clock or randomness is not what it should be.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::sim::SimRuntime;
use dlock_core::{Runtime, Timestamp};
use futures::future::BoxFuture;

use crate::lock::lock;
use crate::rng::Rng;
use crate::simulated_machine::Machine;

#[derive(Debug)]
pub(super) struct Spoiled {
    inner: SimRuntime,
    machine: Arc<Machine>,
    began: Timestamp,
    began_wall: Duration,
    /// Made from the process id and the second in which this client started.
    ids: Mutex<Rng>,
}

impl Spoiled {
    pub(super) fn new(machine: &Arc<Machine>) -> Self {
        let began_wall = machine.wall_clock();
        let seed = u64::from(machine.number) + began_wall.as_secs();
        Self {
            inner: machine.node.clone(),
            machine: Arc::clone(machine),
            began: machine.node.now(),
            began_wall,
            ids: Mutex::new(Rng::new(seed)),
        }
    }
}

impl Runtime for Spoiled {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.inner.spawn(task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.inner.sleep(duration)
    }

    fn now(&self) -> Timestamp {
        let now = self.inner.now();
        if crate::switch::on("client_walltime_deadline") {
            let wall = self.machine.wall_clock();
            return match wall.checked_sub(self.began_wall) {
                Some(later) => self.began + later,
                None => self.began.saturating_sub(self.began_wall - wall),
            };
        }
        // It counts time with its timers, which stop with the process.
        if crate::switch::on("resume_thinks_valid") {
            let stops = self.machine.stops();
            let stood: Duration = stops
                .iter()
                .map(|stop| stop.until.unwrap_or(now).since(stop.from))
                .sum();
            return now.saturating_sub(stood);
        }
        now
    }

    fn fill_random(&self, buffer: &mut [u8]) {
        if !crate::switch::on("owner_from_pid_time") {
            return self.inner.fill_random(buffer);
        }
        let mut ids = lock(&self.ids);
        for chunk in buffer.chunks_mut(8) {
            let bits = ids.bits().to_le_bytes();
            chunk.copy_from_slice(&bits[..chunk.len()]);
        }
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }
}
