//! Wakers of simulated tasks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Wake;

use super::world::World;

/// Wakes one task, from any thread.
pub(super) struct TaskWaker {
    id: u64,
    queued: AtomicBool,
    /// Weak: a waker kept by somebody must not keep the world, and with it every task, alive.
    world: Weak<World>,
}

impl TaskWaker {
    pub(super) fn new(id: u64, world: &Arc<World>) -> Self {
        Self {
            id,
            queued: AtomicBool::new(false),
            world: Arc::downgrade(world),
        }
    }

    pub(super) fn push(&self) {
        if !self.queued.swap(true, Ordering::AcqRel)
            && let Some(world) = self.world.upgrade()
        {
            world.ready().push(self.id);
        }
    }

    /// Called before the poll, so that a wake during the poll queues the task again.
    pub(super) fn taken(&self) {
        self.queued.store(false, Ordering::Release);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.push();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.push();
    }
}
