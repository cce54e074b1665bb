//! A runtime of the kit that counts its tasks and can be shut down.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{Runtime, Timestamp};
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{BoxFuture, Shared, select};

use crate::cx::Cx;
use crate::lock::lock;

/// A part of the harness's runtime that can end separately, for one client.
///
/// After a shutdown its tasks are dropped, later ones are dropped unstarted, and sleeps complete at once, as
/// in `dlock`'s own adaptors: no task waits for ever for a timer without a driver.
#[derive(Debug)]
pub struct Executor {
    inner: Arc<dyn Runtime>,
    /// One for each task that is there, and this one.
    tasks: Arc<()>,
    /// Dropping it ends every task and every sleep; `None` once it is over.
    running: Mutex<Option<oneshot::Sender<()>>>,
    over: Shared<oneshot::Receiver<()>>,
}

impl Executor {
    /// A new one, on the runtime of that rule.
    pub fn new(cx: &Cx) -> Arc<Self> {
        let (running, over) = oneshot::channel();
        Arc::new(Self {
            inner: Arc::clone(cx.runtime()),
            tasks: Arc::default(),
            running: Mutex::new(Some(running)),
            over: over.shared(),
        })
    }

    /// How many tasks there are.
    pub fn tasks(&self) -> usize {
        Arc::strong_count(&self.tasks) - 1
    }

    /// Ends it. Tasks are dropped as soon as the runtime beneath comes to them.
    pub fn shut_down(&self) {
        let running = lock(&self.running).take();
        drop(running);
    }
}

impl Runtime for Executor {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        // Outside of the lock: the destructors of a task may spawn.
        let is_over = lock(&self.running).is_none();
        if is_over {
            return;
        }
        let (over, counted) = (self.over.clone(), Arc::clone(&self.tasks));
        let task = async move {
            // The task goes first, then the count of it.
            drop(select(over, task).await);
            drop(counted);
        };
        self.inner.spawn(task.boxed());
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        select(self.inner.sleep(duration), self.over.clone())
            .map(drop)
            .boxed()
    }

    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    fn fill_random(&self, buffer: &mut [u8]) {
        self.inner.fill_random(buffer);
    }

    fn name(&self) -> &'static str {
        "an executor of the kit"
    }
}
