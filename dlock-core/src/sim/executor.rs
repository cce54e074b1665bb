//! The seeded single-threaded executor.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::node::SimRuntime;
use super::task::TaskWaker;
use super::world::World;
use crate::runtime::Runtime;

/// A simulated run, in which every choice and every moment is a function of the seed.
///
/// One of the ready tasks is drawn at random. If none is ready, time jumps to the next timer. If there is no
/// timer either, nothing can happen any more, and [`block_on`](Self::block_on) panics with the seed in its
/// message.
///
/// Tasks are dropped, unfinished, with the `Sim`. Spawning and waking is safe from any thread, but a run in
/// which other threads take part is not a function of its seed any more.
///
/// ```
/// use std::time::Duration;
/// use dlock_core::{Runtime, sim::Sim};
/// let sim = Sim::new(7);
/// let runtime = sim.runtime();
/// let before = runtime.now();
/// sim.block_on(runtime.sleep(Duration::from_secs(3600))); // takes no time at all
/// assert_eq!(runtime.now().since(before), Duration::from_secs(3600));
/// ```
pub struct Sim {
    world: Arc<World>,
    base: SimRuntime,
    max_steps: u64,
    max_time: Duration,
}

/// The id of the future given to `block_on`; spawned tasks count from 1.
const MAIN: u64 = 0;

impl Sim {
    /// Creates a world from a seed. A run is limited to ten million polls and ten years.
    pub fn new(seed: u64) -> Self {
        let world = World::new(seed);
        Self {
            base: SimRuntime::new(&world, "base", Duration::ZERO, 0),
            world,
            max_steps: 10_000_000,
            max_time: Duration::from_secs(10 * 365 * 24 * 3600),
        }
    }

    /// Sets how many polls one `block_on` may take and how much virtual time may pass in it before it panics.
    #[must_use]
    pub fn with_limits(mut self, max_steps: u64, max_time: Duration) -> Self {
        self.max_steps = max_steps;
        self.max_time = max_time;
        self
    }

    /// What tasks and links share.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// Returns a runtime whose clock shows true time and which is never stopped.
    pub fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(self.base.clone())
    }

    /// Creates the runtime of a new process, with a random clock offset (up to twelve days) and no drift.
    pub fn client_runtime(&self, name: &str) -> SimRuntime {
        let offset = Duration::from_nanos(self.world.rng(name).below(1_000_000_000_000_000));
        self.client_runtime_with(name, offset, 0)
    }

    /// Creates the runtime of a new process whose clock began at an offset and runs `ppm` parts per million
    /// fast.
    pub fn client_runtime_with(&self, name: &str, offset: Duration, drift_ppm: i32) -> SimRuntime {
        SimRuntime::new(&self.world, name, offset, drift_ppm)
    }

    /// Runs the world until the future completes.
    ///
    /// # Panics
    /// If nothing can happen any more, or a limit is reached; the message names the seed. A panic of a task
    /// passes through.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let main = Arc::new(TaskWaker::new(MAIN, &self.world));
        // A wake of an earlier `block_on` must not count for this one.
        self.world.ready().retain(|id| *id != MAIN);
        main.push();
        let waker = Waker::from(main.clone());
        let limit = self.world.now() + self.max_time;
        let mut steps = 0;
        loop {
            self.fire_due_timers();
            let Some(id) = self.next_ready() else {
                self.jump_to_next_timer();
                if self.world.now() > limit {
                    self.give_up("the limit of virtual time is passed");
                }
                continue;
            };
            steps += 1;
            if steps > self.max_steps {
                self.give_up("the limit of polls is passed (a task that wakes itself for ever?)");
            }
            if id == MAIN {
                main.taken();
                let mut cx = Context::from_waker(&waker);
                if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                    return output;
                }
            } else {
                self.poll_task(id);
            }
        }
    }

    fn fire_due_timers(&self) {
        let now = self.world.now().as_nanos();
        loop {
            let timer = {
                let mut state = self.world.state();
                match state.timers.first_entry() {
                    Some(entry) if entry.key().0 <= now => entry.remove(),
                    _ => return,
                }
            };
            if timer.node.is_paused() {
                timer.node.hold_timer(timer.waker);
            } else {
                timer.waker.wake();
            }
        }
    }

    /// Draws one of the ready tasks at random.
    fn next_ready(&self) -> Option<u64> {
        loop {
            let id = {
                let mut ready = self.world.ready();
                match ready.len() {
                    0 => return None,
                    // No draw without a choice: it would cost time and decide nothing.
                    1 => ready.swap_remove(0),
                    n => ready.swap_remove(self.world.schedule_below(n as u64) as usize),
                }
            };
            if id == MAIN {
                self.world.record("poll", id);
                return Some(id);
            }
            match self.world.state().tasks.get(&id) {
                // Woken after its end.
                None => {}
                Some(task) if task.node.is_paused() => task.node.hold_task(id),
                Some(_) => {
                    self.world.record("poll", id);
                    return Some(id);
                }
            }
        }
    }

    fn poll_task(&self, id: u64) {
        let taken = {
            let mut state = self.world.state();
            let task = state.tasks.get_mut(&id);
            task.and_then(|t| Some((t.future.take()?, t.waker.clone())))
        };
        let Some((mut future, waker)) = taken else { return };
        waker.taken();
        let waker = Waker::from(waker);
        match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(()) => {
                // Dropped outside of the mutex, the future before the entry, so that the task is counted
                // until it is gone.
                drop(future);
                let ended = self.world.state().tasks.remove(&id);
                drop(ended);
            }
            Poll::Pending => {
                if let Some(task) = self.world.state().tasks.get_mut(&id) {
                    task.future = Some(future);
                }
            }
        }
    }

    fn jump_to_next_timer(&self) {
        let next = self.world.state().timers.first_key_value().map(|(key, _)| key.0);
        match next {
            Some(due) => {
                self.world.advance_to(due);
                self.world.record("jump", due);
            }
            None => self.give_up("nothing can happen any more: no task is ready and no timer is armed"),
        }
    }

    fn give_up(&self, why: &str) -> ! {
        let mut waiting = BTreeMap::<String, usize>::new();
        for task in self.world.state().tasks.values() {
            let stopped = if task.node.is_paused() { " (stopped)" } else { "" };
            *waiting
                .entry(format!("{}{stopped}", task.node.name()))
                .or_default() += 1;
        }
        panic!(
            "simulation of seed {:#x}: {why}; at {:?}, tasks waiting by node: {waiting:?}",
            self.world.seed(),
            self.world.now(),
        );
    }
}

/// Everything of the [`World`].
impl Deref for Sim {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.world.close();
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim")
            .field("world", &self.world)
            .finish_non_exhaustive()
    }
}
