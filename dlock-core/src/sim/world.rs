//! What all parts of a simulated run share: time, tasks, timers, chance and the event hash.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use futures::future::BoxFuture;

use super::node::Node;
use super::rng::{SimRng, mix};
use super::task::TaskWaker;
use crate::timestamp::Timestamp;

/// The world of one [`Sim`](super::Sim). Cheap to hand around as an `Arc`; a task may keep one.
///
/// Three locks, never nested: `state` (tasks and timers), `ready` (what wakers push to, from any thread) and
/// `chance`. No future and no waker is dropped or called while one of them is held, since both may come back
/// here.
pub struct World {
    seed: u64,
    now: AtomicU64,
    hash: AtomicU64,
    closed: AtomicBool,
    state: Mutex<State>,
    ready: Mutex<Vec<u64>>,
    chance: Mutex<Chance>,
    trace: Mutex<Option<Vec<String>>>,
}

/// Streams of their own, so that another random id does not change which task runs next.
struct Chance {
    schedule: SimRng,
    ids: SimRng,
    forks: SimRng,
}

pub(super) struct State {
    pub(super) tasks: BTreeMap<u64, Task>,
    next_task: u64,
    pub(super) timers: BTreeMap<TimerKey, Timer>,
    next_timer: u64,
}

/// When it is due in true time, and a number that keeps timers of one instant apart, in the order of their
/// arming.
pub(super) type TimerKey = (u64, u64);

pub(super) struct Timer {
    pub(super) waker: Waker,
    pub(super) node: Arc<Node>,
}

pub(super) struct Task {
    /// `None` while it is being polled.
    pub(super) future: Option<BoxFuture<'static, ()>>,
    pub(super) waker: Arc<TaskWaker>,
    pub(super) node: Arc<Node>,
}

impl World {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        let mut root = SimRng::new(seed);
        Arc::new(Self {
            seed,
            // Not zero: a timestamp of "now" is never `Timestamp::ZERO`, as on a real clock.
            now: AtomicU64::new(1_000_000_000),
            hash: AtomicU64::new(seed),
            closed: AtomicBool::new(false),
            state: Mutex::new(State {
                tasks: BTreeMap::new(),
                next_task: 1,
                timers: BTreeMap::new(),
                next_timer: 0,
            }),
            ready: Mutex::new(Vec::new()),
            chance: Mutex::new(Chance {
                schedule: root.fork("schedule"),
                ids: root.fork("ids"),
                forks: root.fork("forks"),
            }),
            trace: Mutex::new(None),
        })
    }

    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// True time, which no client sees: every node has a clock of its own.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.now.load(Ordering::Relaxed))
    }

    /// Lets that much time pass without running anybody: an executor blocked by CPU work, on every node at
    /// once.
    pub fn stall(&self, duration: Duration) {
        self.advance_to((self.now() + duration).as_nanos());
        self.record("stall", duration.as_nanos() as u64);
    }

    /// A generator of its own for one purpose, a function of the seed, the label and how often this was
    /// called before.
    pub fn rng(&self, label: &str) -> SimRng {
        lock(&self.chance).forks.fork(label)
    }

    /// Folds an event into the hash.
    pub fn record(&self, what: &str, value: u64) {
        let mut h = self.hash.load(Ordering::Relaxed);
        for byte in what.bytes() {
            h = (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.hash.store(mix(h ^ value), Ordering::Relaxed);
    }

    /// The hash of everything that was decided so far: same seed, same program, same hash.
    pub fn event_hash(&self) -> u64 {
        self.hash.load(Ordering::Relaxed)
    }

    /// Starts to keep what [`note`](Self::note) says.
    pub fn keep_trace(&self) {
        lock(&self.trace).get_or_insert_default();
    }

    /// Adds a line to the trace, if one is kept. The closure must not note anything itself.
    pub fn note(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = lock(&self.trace).as_mut() {
            trace.push(format!("{:>14.6} {}", self.now().as_nanos() as f64 / 1e9, line()));
        }
    }

    /// The trace so far: one line an event, with the true time in seconds.
    pub fn trace(&self) -> Vec<String> {
        lock(&self.trace).clone().unwrap_or_default()
    }

    /// How many spawned tasks have not ended, on all nodes.
    pub fn tasks_alive(&self) -> usize {
        self.state().tasks.len()
    }

    pub(super) fn fill_random(&self, buffer: &mut [u8]) {
        lock(&self.chance).ids.fill(buffer);
    }

    pub(super) fn schedule_below(&self, bound: u64) -> u64 {
        lock(&self.chance).schedule.below(bound)
    }

    pub(super) fn advance_to(&self, nanos: u64) {
        // Never runs backwards.
        self.now.fetch_max(nanos, Ordering::Relaxed);
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn ready(&self) -> MutexGuard<'_, Vec<u64>> {
        lock(&self.ready)
    }

    pub(super) fn spawn(self: &Arc<Self>, node: &Arc<Node>, future: BoxFuture<'static, ()>) {
        if self.closed.load(Ordering::Acquire) || node.has_ended() {
            return; // drops the task, as a runtime does that has shut down
        }
        let waker = {
            let mut state = self.state();
            let id = state.next_task;
            state.next_task += 1;
            let waker = Arc::new(TaskWaker::new(id, self));
            let task = Task {
                future: Some(future),
                waker: waker.clone(),
                node: node.clone(),
            };
            state.tasks.insert(id, task);
            waker
        };
        waker.push();
    }

    /// Drops the tasks of a node that has ended. One that is being polled is dropped after that.
    pub(super) fn end_tasks(&self, node: &Arc<Node>) {
        let of_node: Vec<Task> = {
            let mut state = self.state();
            let ids: Vec<u64> = state
                .tasks
                .iter()
                .filter(|(_, task)| Arc::ptr_eq(&task.node, node))
                .map(|(id, _)| *id)
                .collect();
            ids.iter().filter_map(|id| state.tasks.remove(id)).collect()
        };
        // Outside of the mutex: drops may call this code again.
        drop(of_node);
    }

    /// Arms a timer. `due` is true time.
    pub(super) fn arm(&self, due: u64, timer: Timer) -> TimerKey {
        let mut state = self.state();
        let key = (due, state.next_timer);
        state.next_timer += 1;
        state.timers.insert(key, timer);
        key
    }

    /// Ends the world: no task runs again, none starts, and all are dropped here.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Tasks keep the world alive and the world keeps tasks: without this, each run would leak both.
        // Dropping one task may wake or (try to) spawn another, so they are dropped outside of the lock.
        let (tasks, timers) = {
            let mut state = self.state();
            (
                std::mem::take(&mut state.tasks),
                std::mem::take(&mut state.timers),
            )
        };
        drop(tasks);
        drop(timers);
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("seed", &format_args!("{:#x}", self.seed))
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
