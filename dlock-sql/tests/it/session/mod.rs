//! Session locks against real servers, which these tests start, kill, restart and put a pooler before.

#[cfg(feature = "mysql")]
mod config;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod fail_over;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "mysql")]
mod mysql_faults;
#[cfg(feature = "postgres")]
mod pooled;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_faults;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod restarted;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod rights;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod stopped;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::runtime::{Smol, Tokio};
use dlock_core::{Client, Lock, Runtime};
use dlock_sql::session::SessionLock;

/// Longer than a wait in these tests may be, and than a session lasts that is not to be lost because the
/// machine was busy.
const LONG: Duration = Duration::from_secs(20);

thread_local! {
    /// Which runtime the clients of a test are given. The test itself is always on tokio.
    static IS_SMOL: Cell<bool> = const { Cell::new(false) };
}

/// Runs the test twice: with its clients on tokio, and on smol.
#[allow(clippy::print_stdout)] // shown if it fails
fn run<F: Future<Output = ()>>(test: impl Fn() -> F) {
    for is_smol in [false, true] {
        IS_SMOL.set(is_smol);
        println!("on {}", if is_smol { "smol" } else { "tokio" });
        run_once(test());
    }
}

fn run_once<F: Future<Output = ()>>(test: F) {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    tokio.block_on(async { tokio::time::timeout(4 * LONG, test).await.unwrap() });
}

fn here() -> Arc<dyn Runtime> {
    match IS_SMOL.get() {
        true => Smol::global().unwrap(),
        false => Tokio::current().unwrap(),
    }
}

fn client(backend: SessionLock) -> Client {
    Client::builder(Arc::new(backend), here()).build().unwrap()
}

/// What blocks, beside the tasks of the runtime.
fn blocking<T>(what: impl FnOnce() -> std::io::Result<T>) -> T {
    tokio::task::block_in_place(what).unwrap()
}

/// A name that no other test of this program has.
fn fresh() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("session_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Many tasks of that client's take turns; answers how often somebody had it.
async fn take_turns(clients: &[Client], tasks: usize, turns: usize) -> Vec<u64> {
    let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let tokens = Arc::new(std::sync::Mutex::new(Vec::new()));
    let working = (0..tasks).map(|n| {
        let lock: Lock = clients[n % clients.len()].lock("turns").unwrap();
        let (inside, tokens) = (inside.clone(), tokens.clone());
        tokio::spawn(async move {
            use std::sync::atomic::Ordering::SeqCst;
            for _ in 0..turns {
                let guard = lock.acquire_timeout(2 * LONG).await.unwrap();
                assert_eq!(inside.fetch_add(1, SeqCst), 0, "two hold it");
                tokens.lock().unwrap().push(guard.token().unwrap().get());
                tokio::task::yield_now().await;
                assert_eq!(inside.fetch_sub(1, SeqCst), 1, "two hold it");
                guard.release().await.unwrap();
            }
        })
    });
    for task in working.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let tokens = tokens.lock().unwrap().clone();
    assert!(
        tokens.is_sorted_by(|a, b| a < b),
        "tokens do not grow: {tokens:?}"
    );
    tokens
}

/// Retries what the client may answer while a connection is being made.
async fn in_the_end(lock: &Lock, limit: Duration) -> dlock_core::Guard {
    let begun = Instant::now();
    loop {
        match lock.acquire_timeout(limit).await {
            Ok(guard) => return guard,
            Err(e) if e.is_retryable() && begun.elapsed() < limit => {}
            Err(e) => panic!("{e:?}"),
        }
    }
}

/// A client whose every thread stands still, and the guard that it had when it did. It goes on when that is
/// dropped.
struct Frozen {
    guard: dlock_core::Guard,
    _go_on: std::sync::mpsc::Sender<()>,
}

/// Takes the lock by a client on a thread of its own, which then stands still.
fn freeze(backend: impl Future<Output = dlock_core::Result<SessionLock>> + Send + 'static) -> Frozen {
    let (go_on, stay) = std::sync::mpsc::channel::<()>();
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        tokio.block_on(async {
            let client = Client::builder(Arc::new(backend.await.unwrap()), Tokio::current().unwrap());
            let client = client.build().unwrap();
            let guard = client.lock("a").unwrap().acquire().await.unwrap();
            send.send(guard).unwrap();
            // Until the other end is dropped.
            let _ = stay.recv();
        });
    });
    let guard = blocking(|| receive.recv().map_err(std::io::Error::other));
    Frozen { guard, _go_on: go_on }
}
