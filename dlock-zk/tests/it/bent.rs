//! A runtime that does what no runtime does by itself, to see what comes of it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{Runtime, Timestamp};
use futures::FutureExt as _;
use futures::future::{BoxFuture, pending};

use crate::{LONG, here};

#[derive(Debug)]
pub(crate) struct Bent {
    runtime: Arc<dyn Runtime>,
    ahead: Mutex<Duration>,
    /// A task is done before the call that spawns it returns.
    pub(crate) at_once: AtomicBool,
    /// No pause ends.
    pub(crate) endless: AtomicBool,
    /// After that many tasks one is lost.
    pub(crate) loses: AtomicUsize,
    /// Is handed all tasks, and has them run or not.
    pub(crate) taker: Mutex<Option<Sender<BoxFuture<'static, ()>>>>,
}

impl Bent {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            runtime: here(),
            ahead: Mutex::default(),
            at_once: AtomicBool::new(false),
            endless: AtomicBool::new(false),
            loses: AtomicUsize::new(usize::MAX),
            taker: Mutex::default(),
        })
    }

    /// Sets the clock forward, so far that too little is left of a session. Answers the time after it.
    pub(crate) fn forward(&self) -> Timestamp {
        *self.ahead.lock().unwrap() += LONG / 2;
        self.now()
    }
}

impl Runtime for Bent {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        if self.loses.fetch_sub(1, Ordering::SeqCst) == 0 {
            return;
        }
        if let Some(taker) = &*self.taker.lock().unwrap() {
            return taker.send(task).unwrap();
        }
        match self.at_once.load(Ordering::SeqCst) {
            true => task.now_or_never().expect("it waits for nothing"),
            false => self.runtime.spawn(task),
        }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        match self.endless.load(Ordering::SeqCst) {
            true => pending().boxed(),
            false => self.runtime.sleep(duration),
        }
    }

    fn now(&self) -> Timestamp {
        self.runtime.now() + *self.ahead.lock().unwrap()
    }

    fn fill_random(&self, buffer: &mut [u8]) {
        self.runtime.fill_random(buffer);
    }

    fn name(&self) -> &'static str {
        self.runtime.name()
    }
}
