//! Locks that are shared with Apache Curator, the real one: `InterProcessMutex` in a Java process beside
//! clients of dlock.
#![allow(clippy::unwrap_used)] // in a test, a panic is the report

mod worker;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::{Client, LockOptions, runtime};
use dlock_zk::{Config, Layout};
use futures::FutureExt as _;

use self::worker::Worker;
use dlock_testkit::{ZkServer, until};

const SESSION: Duration = Duration::from_secs(3);
/// The path of Curator's mutex.
const MUTEX: &str = "/shop/stock-42";
/// Below which path both have everything in one of the tests, as it stands behind the servers in the address
/// of either.
const CHROOT: &str = "/apps";
/// The same as root and name.
const ROOT: &str = "/shop";
const NAME: &str = "stock-42";

/// Of each side; after a release a task queues behind the other side, so that turns nearly always alternate.
const ROUNDS: usize = 510;
/// Curator's, which may have two or three in a row.
const CURATORS: usize = 4 * ROUNDS;
const TURNS: usize = 1000;

const LONG: Duration = Duration::from_secs(120);

async fn client(address: &str) -> Client {
    let runtime = runtime::detect().unwrap();
    let config = Config::new(address)
        .layout(Layout::Curator)
        .root(ROOT)
        .session_timeout(SESSION);
    let backend = config.connect(runtime.clone()).await;
    let backend = Arc::new(backend.unwrap());
    let options = LockOptions::new().ttl(Duration::from_secs(10));
    Client::builder(backend, runtime)
        .defaults(options)
        .build()
        .unwrap()
}

/// What it does itself when it is alone.
fn work(beside: &Worker, n: usize) {
    let inside = beside.file("inside");
    let alone = OpenOptions::new().write(true).create_new(true).open(&inside);
    alone.expect("nobody else is inside");
    let ledger = OpenOptions::new()
        .create(true)
        .append(true)
        .open(beside.file("ledger"));
    let mut ledger = ledger.unwrap();
    writeln!(ledger, "dlock {n}").unwrap();
    std::fs::remove_file(inside).unwrap();
}

fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> impl Future<Output = T> {
    let done = tokio::task::spawn_blocking(work);
    async { done.await.unwrap() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dlock_and_curator_exclude_one_another_over_a_thousand_turns() {
    let server = Arc::new(blocking(|| ZkServer::start().unwrap()).await);
    let address = format!("{}{CHROOT}", server.address());
    let client = client(&address).await;
    let lock = client.lock(NAME).unwrap();
    // Curator lines up behind it: from here on they take turns.
    let first = lock.acquire().await.unwrap();
    let worker = Worker::start(&address, MUTEX, SESSION, &CURATORS.to_string()).unwrap();
    wait_for_line(&server, &format!("{CHROOT}{MUTEX}"), 2).await;
    first.release().await.unwrap();
    let mut last = None;
    for n in 0..ROUNDS {
        let guard = lock.acquire().await.unwrap();
        assert!(guard.is_valid());
        assert!(last < Some(guard.token()), "tokens grow");
        last = Some(guard.token());
        work(&worker, n);
        // Not a turn of its own: a wait that is given up leaves nothing in the way.
        if n % 10 == 0 {
            assert!(lock.acquire().now_or_never().is_none());
        }
        // Each turn of ours is followed by one of Curator's, however the machine is busy.
        let since = Instant::now();
        while client.inspect(NAME).await.unwrap().waiting == 0 {
            assert!(since.elapsed() < LONG, "Curator lines up again");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        guard.release().await.unwrap();
    }
    let worker = blocking(move || worker.wait(LONG).map(|()| worker))
        .await
        .unwrap();
    let ledger = std::fs::read_to_string(worker.file("ledger")).unwrap();
    let who: Vec<_> = ledger.lines().map(|l| l.split(' ').next().unwrap()).collect();
    assert_eq!(who.len(), ROUNDS + CURATORS, "every one was here every time");
    let turns = who.windows(2).filter(|two| two[0] != two[1]).count();
    assert!(turns >= TURNS, "{turns} turns of the other");
    assert!(lock.try_acquire().await.unwrap().is_some());
}

/// Waits until the queue has that many entries, with the holder.
async fn wait_for_line(server: &Arc<ZkServer>, line: &str, length: usize) {
    let (server, line) = (server.clone(), line.to_owned());
    let waited = blocking(move || {
        until("somebody lines up", LONG, || {
            let line = server.with_session(|s| s.children(&line))?;
            Ok(line.unwrap_or_default().len() == length)
        })
    });
    waited.await.unwrap();
}

async fn wait_until_it_holds(worker: &Worker) {
    let held = worker.file("held");
    let is_held = blocking(move || until("Curator has it", LONG, || Ok(held.exists())));
    is_held.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dlock_follows_a_killed_curator_when_its_session_is_over() {
    let server = Arc::new(blocking(|| ZkServer::start().unwrap()).await);
    let address = server.address().to_string();
    let worker = Worker::start(&address, MUTEX, SESSION, "hold").unwrap();
    wait_until_it_holds(&worker).await;
    let client = client(&address).await;
    let lock = client.lock(NAME).unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    let killed = Instant::now();
    drop(worker);
    let guard = lock.acquire().await.unwrap();
    let waited = killed.elapsed();
    assert!(guard.is_valid());
    // It was heard of a third of a session before at the earliest.
    assert!(waited > SESSION / 2 && waited < SESSION * 2, "{waited:?}");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_whose_session_is_ended_is_followed_by_curator() {
    let server = Arc::new(blocking(|| ZkServer::start().unwrap()).await);
    let address = server.address().to_string();
    let client = client(&address).await;
    let lock = client.lock(NAME).unwrap();
    let guard = lock.acquire().await.unwrap();
    let session = server.clients().unwrap()[0].session;
    let worker = Worker::start(&address, MUTEX, SESSION, "hold").unwrap();
    wait_for_line(&server, MUTEX, 2).await;
    assert!(!worker.file("held").exists());
    let ended = server.clone();
    blocking(move || ended.expire(session).unwrap()).await;
    // By the next connection, which is refused, or by its deadline.
    tokio::time::timeout(SESSION, guard.lost()).await.unwrap();
    assert!(!guard.is_valid());
    wait_until_it_holds(&worker).await;
    assert!(lock.try_acquire().await.unwrap().is_none());
    drop(worker);
}
