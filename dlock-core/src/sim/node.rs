//! A simulated machine: tasks that can be stopped together, a clock of its own, and sleeping by it.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;

use super::world::{Timer, TimerKey, World, lock};
use crate::runtime::Runtime;
use crate::timestamp::Timestamp;

const MILLION: u128 = 1_000_000;

/// The runtime of one simulated process.
///
/// It has its own clock (an offset, and a drift against true time) and can be stopped as by `SIGSTOP`: none
/// of its tasks is polled and none of its timers fires until it is resumed, while its clock goes on. It can
/// be killed as well.
#[derive(Clone)]
pub struct SimRuntime {
    world: Arc<World>,
    node: Arc<Node>,
}

pub(super) struct Node {
    name: String,
    offset: u64,
    drift_ppm: i32,
    paused: AtomicBool,
    ended: AtomicBool,
    held: Mutex<Held>,
}

/// What became runnable while the node was stopped.
#[derive(Default)]
struct Held {
    tasks: Vec<u64>,
    timers: Vec<Waker>,
}

impl Node {
    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn hold_task(&self, id: u64) {
        lock(&self.held).tasks.push(id);
    }

    pub(super) fn hold_timer(&self, waker: Waker) {
        lock(&self.held).timers.push(waker);
    }

    /// This node's clock at that true time.
    fn local(&self, now: Timestamp) -> Timestamp {
        let elapsed = u128::from(now.as_nanos()) * self.rate() / MILLION;
        Timestamp::from_nanos(
            u64::try_from(elapsed)
                .unwrap_or(u64::MAX)
                .saturating_add(self.offset),
        )
    }

    /// The first true time at which this node's clock shows at least `local`; `u64::MAX` is never.
    pub(super) fn due(&self, local: Timestamp) -> u64 {
        let elapsed = u128::from(local.as_nanos().saturating_sub(self.offset));
        // Rounded up: a timer that fired a nanosecond early would find its deadline not reached and spin.
        u64::try_from((elapsed * MILLION).div_ceil(self.rate())).unwrap_or(u64::MAX)
    }

    fn rate(&self) -> u128 {
        (1_000_000 + i64::from(self.drift_ppm)).unsigned_abs().into()
    }
}

impl SimRuntime {
    pub(super) fn new(world: &Arc<World>, name: &str, offset: Duration, drift_ppm: i32) -> Self {
        assert!(drift_ppm > -1_000_000, "a clock cannot run backwards");
        Self {
            world: world.clone(),
            node: Arc::new(Node {
                name: name.to_owned(),
                offset: offset.as_nanos() as u64,
                drift_ppm,
                paused: AtomicBool::new(false),
                ended: AtomicBool::new(false),
                held: Mutex::default(),
            }),
        }
    }

    /// The world that it belongs to.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// The name that it was given.
    pub fn node_name(&self) -> &str {
        &self.node.name
    }

    /// Parts per million by which its clock is faster than true time.
    pub fn drift_ppm(&self) -> i32 {
        self.node.drift_ppm
    }

    /// Stops it, as by `SIGSTOP`.
    pub fn pause(&self) {
        self.node.paused.store(true, Ordering::Release);
        self.world.record("pause", self.node.offset);
        self.world.note(|| format!("{} is stopped", self.node.name));
    }

    /// Resumes it. Tasks that became due meanwhile become runnable now, in a random order.
    pub fn resume(&self) {
        self.node.paused.store(false, Ordering::Release);
        self.world.record("resume", self.node.offset);
        self.world.note(|| format!("{} goes on", self.node.name));
        let held = std::mem::take(&mut *lock(&self.node.held));
        self.world.ready().extend(held.tasks);
        held.timers.into_iter().for_each(Waker::wake);
    }

    /// Ends it, as by `SIGKILL`, stopped or not: its tasks are dropped unfinished, and what is spawned on it
    /// later never runs. Messages that it has sent are still delivered.
    pub fn kill(&self) {
        self.node.ended.store(true, Ordering::Release);
        self.world.record("kill", self.node.offset);
        self.world.note(|| format!("{} is killed", self.node.name));
        self.world.end_tasks(&self.node);
    }

    /// Whether it is stopped.
    pub fn is_paused(&self) -> bool {
        self.node.is_paused()
    }

    /// How many of its tasks have not ended.
    pub fn tasks_alive(&self) -> usize {
        let state = self.world.state();
        state
            .tasks
            .values()
            .filter(|t| Arc::ptr_eq(&t.node, &self.node))
            .count()
    }
}

impl Runtime for SimRuntime {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.world.spawn(&self.node, task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let due = self.node.due(self.now() + duration);
        Box::pin(Sleep::new(self.world.clone(), self.node.clone(), due))
    }

    fn now(&self) -> Timestamp {
        self.node.local(self.world.now())
    }

    fn fill_random(&self, buffer: &mut [u8]) {
        self.world.fill_random(buffer);
    }

    fn name(&self) -> &'static str {
        "sim"
    }
}

impl fmt::Debug for SimRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimRuntime")
            .field("node", &self.node.name)
            .field("paused", &self.is_paused())
            .finish_non_exhaustive()
    }
}

/// Completes when true time has reached `due` and its node is not stopped.
pub(super) struct Sleep {
    world: Arc<World>,
    node: Arc<Node>,
    due: u64,
    armed: Option<TimerKey>,
}

impl Sleep {
    pub(super) fn new(world: Arc<World>, node: Arc<Node>, due: u64) -> Self {
        Self {
            world,
            node,
            due,
            armed: None,
        }
    }

    fn disarm(&mut self) {
        if let Some(key) = self.armed.take() {
            // The waker is dropped after the mutex is unlocked: it may own something whose drop calls this
            // code.
            let timer = self.world.state().timers.remove(&key);
            drop(timer);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.disarm();
        if self.world.now().as_nanos() >= self.due {
            if !self.node.is_paused() {
                return Poll::Ready(());
            }
            // Polled from another node while its own is stopped.
            self.node.hold_timer(cx.waker().clone());
            return Poll::Pending;
        }
        // "Never" is not armed: otherwise time would jump to its end, instead of a report that nothing can
        // happen any more.
        if self.due != u64::MAX {
            let timer = Timer {
                waker: cx.waker().clone(),
                node: self.node.clone(),
            };
            self.armed = Some(self.world.arm(self.due, timer));
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.disarm();
    }
}
