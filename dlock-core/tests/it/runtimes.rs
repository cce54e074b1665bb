//! Every adaptor does what the trait says, on the real runtime.

// Without any runtime there is nothing to run the claims on.
#![cfg_attr(
    not(any(feature = "tokio", feature = "smol", feature = "async-std")),
    allow(dead_code, unused_imports)
)]

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use dlock_core::{Runtime, runtime};
use futures::FutureExt as _;
use futures::executor::block_on;

/// Longer than any of these tests should take, shorter than anybody's patience.
const SOON: Duration = Duration::from_secs(20);

/// Runs the claims that hold for every runtime, from a thread that has entered none.
fn is_a_runtime(rt: Arc<dyn Runtime>) {
    spawned_tasks_run_to_their_end(&*rt);
    sleeps_take_as_long_as_they_say(&*rt);
    sleeps_nest_in_tasks(&rt);
    a_panicking_task_harms_no_other(&*rt);
    dropping_an_unfinished_sleep_is_quiet(&*rt);
    random_bytes_differ(&*rt);
    let before = rt.now();
    assert!(rt.now() >= before);
    // The last reference goes on a thread that the runtime knows nothing of.
    std::thread::spawn(move || drop(rt)).join().unwrap();
}

fn spawned_tasks_run_to_their_end(rt: &dyn Runtime) {
    let (send, recv) = mpsc::channel();
    for n in 0..100 {
        let send = send.clone();
        rt.spawn(async move { send.send(n).unwrap() }.boxed());
    }
    let mut seen: Vec<i32> = (0..100).map(|_| recv.recv_timeout(SOON).unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
}

fn sleeps_take_as_long_as_they_say(rt: &dyn Runtime) {
    let started = Instant::now();
    let wanted = Duration::from_millis(30);
    block_on(rt.sleep(wanted));
    assert!(started.elapsed() >= wanted, "woke after {:?}", started.elapsed());
    assert!(started.elapsed() < SOON);
    // No duration is too long to ask for, and one that is not over is pending.
    assert!(rt.sleep(Duration::MAX).now_or_never().is_none());
    assert!(rt.sleep(SOON).now_or_never().is_none());
}

fn sleeps_nest_in_tasks(rt: &Arc<dyn Runtime>) {
    let (send, recv) = mpsc::channel();
    let inner = rt.clone();
    rt.spawn(
        async move {
            inner.sleep(Duration::from_millis(5)).await;
            let again = inner.clone();
            inner.spawn(
                async move {
                    again.sleep(Duration::from_millis(5)).await;
                    send.send(()).unwrap();
                }
                .boxed(),
            );
        }
        .boxed(),
    );
    recv.recv_timeout(SOON).unwrap();
}

fn a_panicking_task_harms_no_other(rt: &dyn Runtime) {
    rt.spawn(async { std::panic::resume_unwind(Box::new("on purpose")) }.boxed());
    spawned_tasks_run_to_their_end(rt);
}

fn dropping_an_unfinished_sleep_is_quiet(rt: &dyn Runtime) {
    let mut sleep = rt.sleep(SOON);
    assert!((&mut sleep).now_or_never().is_none());
    std::thread::spawn(move || drop(sleep)).join().unwrap();
}

fn random_bytes_differ(rt: &dyn Runtime) {
    let (mut a, mut b) = ([0; 32], [0; 32]);
    rt.fill_random(&mut a);
    rt.fill_random(&mut b);
    assert_ne!(a, b);
}

/// Waits until that is so, or fails.
#[cfg(target_os = "linux")]
fn eventually(what: &str, so: impl Fn() -> bool) {
    let started = Instant::now();
    while !so() {
        assert!(started.elapsed() < SOON, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs the future on a thread that has entered no runtime, whatever the test itself runs on.
fn elsewhere<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    std::thread::spawn(|| block_on(future)).join().unwrap()
}

#[cfg(feature = "tokio")]
mod on_tokio {
    use super::*;
    use dlock_core::ErrorKind;
    use dlock_core::runtime::Tokio;
    use tokio::runtime::{Builder, Runtime as TokioRuntime};

    fn current_thread() -> TokioRuntime {
        Builder::new_current_thread().enable_time().build().unwrap()
    }

    fn multi_thread() -> TokioRuntime {
        Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build()
            .unwrap()
    }

    #[test]
    fn tokio_multi_thread_is_a_runtime_for_foreign_threads() {
        let tokio = multi_thread();
        let rt = tokio.block_on(async { Tokio::current().unwrap() });
        is_a_runtime(rt);
    }

    #[test]
    fn tokio_current_thread_is_a_runtime_while_it_is_driven() {
        let tokio = current_thread();
        let rt = Tokio::from_handle(tokio.handle().clone()).unwrap();
        let (done, wait) = futures::channel::oneshot::channel();
        let claims = std::thread::spawn(move || {
            is_a_runtime(rt);
            done.send(()).unwrap();
        });
        tokio.block_on(wait).unwrap();
        claims.join().unwrap();
    }

    #[test]
    fn without_a_current_tokio_the_error_says_what_to_do() {
        let e = Tokio::current().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
        assert!(e.to_string().contains("own_thread"), "{e}");
    }

    #[test]
    fn a_tokio_without_timers_is_an_error_not_a_panic() {
        let tokio = Builder::new_current_thread().build().unwrap();
        let e = Tokio::from_handle(tokio.handle().clone()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
        assert!(e.to_string().contains("enable_time"), "{e}");
    }

    #[test]
    fn the_current_tokio_is_detected_before_any_other() {
        let tokio = current_thread();
        assert_eq!(
            tokio.block_on(async { runtime::detect().unwrap() }).name(),
            "tokio"
        );
    }

    #[test]
    fn after_shutdown_spawning_drops_the_task_and_nothing_panics() {
        for tokio in [current_thread(), multi_thread()] {
            let rt = Tokio::from_handle(tokio.handle().clone()).unwrap();
            let pending_over_the_shutdown = rt.sleep(SOON);
            let mut polled_before_it = rt.sleep(SOON);
            assert!((&mut polled_before_it).now_or_never().is_none());
            drop(tokio);
            let (send, recv) = mpsc::channel::<()>();
            rt.spawn(async move { send.send(()).unwrap() }.boxed());
            assert_eq!(recv.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected));
            // All of these end at once rather than never.
            let started = Instant::now();
            block_on(pending_over_the_shutdown);
            block_on(polled_before_it);
            block_on(rt.sleep(SOON));
            assert!(started.elapsed() < SOON);
        }
    }

    #[test]
    fn a_sleeper_on_a_foreign_executor_is_woken_by_the_shutdown() {
        let tokio = multi_thread();
        let rt = Tokio::from_handle(tokio.handle().clone()).unwrap();
        let sleeper = std::thread::spawn(move || {
            let started = Instant::now();
            block_on(rt.sleep(SOON * 10));
            started.elapsed()
        });
        std::thread::sleep(Duration::from_millis(50));
        drop(tokio);
        assert!(sleeper.join().unwrap() < SOON);
    }
}

#[cfg(feature = "smol")]
#[test]
fn smol_is_a_runtime() {
    is_a_runtime(runtime::Smol::global().unwrap());
}

#[cfg(feature = "async-std")]
#[test]
fn async_std_is_a_runtime() {
    is_a_runtime(runtime::AsyncStd::global().unwrap());
}

#[cfg(feature = "smol")]
#[test]
fn away_from_tokio_smol_is_detected() {
    assert_eq!(runtime::detect().unwrap().name(), "smol");
}

#[cfg(all(feature = "async-std", not(feature = "smol")))]
#[test]
fn away_from_tokio_async_std_is_detected() {
    assert_eq!(runtime::detect().unwrap().name(), "async-std");
}

#[cfg(not(any(feature = "smol", feature = "async-std")))]
#[test]
fn without_a_runtime_the_error_says_which_feature_to_enable() {
    use dlock_core::ErrorKind;
    let e = runtime::detect().unwrap_err();
    let kind = if cfg!(feature = "tokio") {
        ErrorKind::InvalidInput
    } else {
        ErrorKind::Unsupported
    };
    assert_eq!(e.kind(), kind);
    assert!(e.to_string().contains("enable the feature"), "{e}");
}

#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
mod on_a_thread_of_its_own {
    use super::*;

    #[test]
    fn own_thread_is_a_runtime() {
        is_a_runtime(runtime::own_thread().unwrap());
    }

    #[test]
    fn tasks_outlive_the_last_reference_to_their_runtime() {
        let rt = runtime::own_thread().unwrap();
        let (send, recv) = mpsc::channel();
        let pause = rt.sleep(Duration::from_millis(50));
        rt.spawn(
            async move {
                pause.await;
                send.send(()).unwrap();
            }
            .boxed(),
        );
        drop(rt);
        recv.recv_timeout(SOON).unwrap();
    }

    #[test]
    fn a_sleep_outlives_the_last_reference_to_its_runtime() {
        let rt = runtime::own_thread().unwrap();
        let wanted = Duration::from_millis(50);
        let started = Instant::now();
        let sleep = rt.sleep(wanted);
        drop(rt);
        elsewhere(sleep);
        assert!(started.elapsed() >= wanted);
    }

    #[test]
    fn the_last_reference_may_go_on_the_thread_itself() {
        let rt = runtime::own_thread().unwrap();
        let (send, recv) = mpsc::channel();
        let held = rt.clone();
        rt.spawn(
            async move {
                drop(held);
                send.send(()).unwrap();
            }
            .boxed(),
        );
        drop(rt);
        recv.recv_timeout(SOON).unwrap();
    }

    /// The thread is found by the id that it reports itself, so other tests' threads do not disturb.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_thread_ends_when_runtime_and_tasks_are_gone() {
        let rt = runtime::own_thread().unwrap();
        let (send, recv) = mpsc::channel();
        rt.spawn(
            async move {
                let path = std::fs::read_link("/proc/thread-self").unwrap();
                send.send(std::path::Path::new("/proc").join(path)).unwrap();
            }
            .boxed(),
        );
        let thread = recv.recv_timeout(SOON).unwrap();
        assert_eq!(
            std::fs::read_to_string(thread.join("comm")).unwrap().trim(),
            "dlock-runtime"
        );
        let task_is_over = rt.sleep(Duration::from_millis(50));
        rt.spawn(task_is_over);
        drop(rt);
        assert!(thread.exists(), "a task still runs");
        eventually("the thread ends", || !thread.exists());
    }
}
