//! A runtime that is shut down, and what is under way on it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use dlock_core::combinators::Quorum;
use dlock_core::spi::{Acquire, Attempt, LeaseKey, Lock};
use dlock_core::{Client, LockName, Memory, RequestId, Runtime, Timestamp};
use futures::FutureExt as _;
use futures::channel::mpsc;
use futures::executor::block_on;
use futures::future::BoxFuture;

use crate::twisted::Twisted;

/// Its tasks run on one thread, and its timers complete at once: so it is when a runtime is shut down.
struct ShutDown {
    tasks: Mutex<mpsc::UnboundedSender<BoxFuture<'static, ()>>>,
    ended: AtomicBool,
}

impl std::fmt::Debug for ShutDown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ShutDown")
    }
}

impl ShutDown {
    /// With the tasks that it is given.
    fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<BoxFuture<'static, ()>>) {
        let (send, tasks) = mpsc::unbounded();
        let runtime = Arc::new(Self {
            tasks: Mutex::new(send),
            ended: AtomicBool::new(false),
        });
        (runtime, tasks)
    }
}

/// Polled as often as that it has come back as often.
fn comes_back(task: &mut BoxFuture<'_, impl Sized>) {
    let from = std::time::Instant::now();
    for _ in 0..100 {
        let polled = task.poll_unpin(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }
    assert!(from.elapsed() < Duration::from_secs(5), "{:?}", from.elapsed());
}

impl Runtime for ShutDown {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        let _ = self.tasks.lock().unwrap().unbounded_send(task);
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        match self.ended.load(Ordering::SeqCst) {
            true => futures::future::ready(()).boxed(),
            false => futures::future::pending().boxed(),
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn fill_random(&self, buffer: &mut [u8]) {
        buffer.fill(7);
    }

    fn name(&self) -> &'static str {
        "shut down"
    }
}

/// What is owed cannot be paid, and each pause before the next try is over at once.
#[test]
fn a_keeper_lets_a_runtime_end_that_is_shut_down() {
    let (runtime, mut tasks) = ShutDown::new();
    let store = Memory::new(runtime.clone());
    let backend = Twisted::new(&store, runtime.clone());
    let client = Client::builder(backend.clone(), runtime.clone()).build().unwrap();
    let guard = block_on(client.lock("a").unwrap().acquire()).unwrap();
    backend.no_release.store(true, Ordering::SeqCst);
    runtime.ended.store(true, Ordering::SeqCst);
    drop(guard);
    comes_back(&mut tasks.try_recv().unwrap());
}

/// Each try fails, and each pause before the next one is over at once.
#[test]
fn an_acquire_lets_a_runtime_end_that_is_shut_down() {
    let (runtime, _tasks) = ShutDown::new();
    let backend = Twisted::new(&Memory::new(runtime.clone()), runtime.clone());
    let client = Client::builder(backend.clone(), runtime.clone()).build().unwrap();
    backend.unreachable.store(true, Ordering::SeqCst);
    runtime.ended.store(true, Ordering::SeqCst);
    let lock = client.lock("a").unwrap();
    comes_back(&mut lock.acquire().boxed());
}

/// A member cannot be paid what it is owed either.
#[test]
fn what_a_quorum_owes_lets_a_runtime_end_that_is_shut_down() {
    let (runtime, mut tasks) = ShutDown::new();
    let stores: Vec<_> = (0..3).map(|_| Memory::new(runtime.clone())).collect();
    let members: Vec<_> = stores
        .iter()
        .map(|store| Twisted::new(store, runtime.clone()))
        .collect();
    let listed = members
        .iter()
        .map(|member| member.clone() as Arc<dyn Lock>)
        .collect();
    let quorum = Quorum::new(listed, runtime.clone(), Duration::from_secs(1)).unwrap();
    let held = |n| LeaseKey::new(LockName::new("a").unwrap(), RequestId::new(n, 1));
    let theirs = Acquire::new(held(1), Duration::from_secs(60));
    for store in &stores[..2] {
        block_on(store.connect().attempt(&theirs)).unwrap();
    }
    members[2].no_release.store(true, Ordering::SeqCst);
    let ours = Acquire::new(held(2), Duration::from_secs(60));
    runtime.ended.store(true, Ordering::SeqCst);
    // Granted by the one and refused by the others: the one is owed the withdrawal.
    assert!(matches!(
        block_on(quorum.attempt(&ours)).unwrap(),
        Attempt::Held(_)
    ));
    comes_back(&mut tasks.try_recv().unwrap());
    // So does a caller that waits until it is paid.
    comes_back(&mut quorum.close());
}
