//! A runtime of the kit that counts its tasks and can be shut down.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{Runtime, Timestamp};
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{AbortHandle, Abortable, BoxFuture, Shared, select};

use crate::cx::Cx;
use crate::lock::lock;

/// A part of the harness's runtime that can end separately, for one client.
///
/// After a shutdown its tasks are dropped, later ones are dropped unstarted, and sleeps complete at once, as
/// in `dlock`'s own adaptors: no task waits for ever for a timer without a driver.
#[derive(Debug)]
pub struct Executor {
    inner: Arc<dyn Runtime>,
    tasks: Arc<Mutex<Tasks>>,
    over: Shared<oneshot::Receiver<()>>,
}

#[derive(Debug)]
struct Tasks {
    /// Of those that are there, by their number.
    handles: BTreeMap<u64, AbortHandle>,
    next: u64,
    /// Dropping it ends every sleep; `None` once it is over.
    running: Option<oneshot::Sender<()>>,
}

impl Executor {
    /// A new one, on the runtime of that rule.
    pub fn new(cx: &Cx) -> Arc<Self> {
        let (running, over) = oneshot::channel();
        Arc::new(Self {
            inner: Arc::clone(cx.runtime()),
            tasks: Arc::new(Mutex::new(Tasks {
                handles: BTreeMap::new(),
                next: 0,
                running: Some(running),
            })),
            over: over.shared(),
        })
    }

    /// How many tasks there are.
    pub fn tasks(&self) -> usize {
        lock(&self.tasks).handles.len()
    }

    /// Ends it. Tasks are dropped as soon as the runtime beneath comes to them.
    pub fn shut_down(&self) {
        let (running, tasks) = {
            let mut tasks = lock(&self.tasks);
            let all: Vec<_> = tasks.handles.values().cloned().collect();
            (tasks.running.take(), all)
        };
        tasks.iter().for_each(AbortHandle::abort);
        drop(running);
    }
}

/// One task, counted for as long as it is there.
struct Living {
    tasks: Arc<Mutex<Tasks>>,
    number: u64,
}

impl Drop for Living {
    fn drop(&mut self) {
        lock(&self.tasks).handles.remove(&self.number);
    }
}

impl Runtime for Executor {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        let (handle, registration) = AbortHandle::new_pair();
        let living = {
            let mut tasks = lock(&self.tasks);
            if tasks.running.is_none() {
                // Its destructors may spawn: not under the lock.
                drop(tasks);
                return drop(task);
            }
            let number = tasks.next;
            tasks.next += 1;
            tasks.handles.insert(number, handle);
            Living {
                tasks: Arc::clone(&self.tasks),
                number,
            }
        };
        let task = async move {
            // The task goes first, then the count of it.
            let _living = living;
            let _ = Abortable::new(task, registration).await;
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
