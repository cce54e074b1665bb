//! A client that is stopped past its session, as by a long garbage collection or a virtual machine that is
//! moved.
//!
//! The client is a process of its own, stopped by a signal. What it does first when it goes on lies in its
//! input already, so nothing but itself tells it that time has passed.

use std::fs;
use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dlock::{Admission, Client, LockName, Token};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::site::{LONG, NAME, SESSION, SLACK, acquired, alone, client, ensemble};
use dlock_testkit::until;

/// In the environment of the child: where it writes to, and where the servers are.
const TOLD: &str = "DLOCK_ZOOKEEPER_CHILD";

async fn writes(client: &Client, token: Option<Token>) -> bool {
    let name = LockName::new(NAME).unwrap();
    let written = client.gate().unwrap().write(&name, token.unwrap(), b"sold").await;
    matches!(written, Ok(Admission::Admitted))
}

/// The process that is stopped. As a test of its own it does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn child_that_is_stopped() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let (file, places) = told.split_once(' ').unwrap();
    let places: Vec<SocketAddr> = places.split(' ').map(|at| at.parse().unwrap()).collect();
    let client = client(&places).await;
    let guard = acquired(&client).await;
    let mut out = fs::File::create(file).unwrap();
    writeln!(out, "held").unwrap();
    // The runtime goes on renewing meanwhile.
    let word = tokio::task::block_in_place(|| std::io::stdin().lock().lines().next());
    assert_eq!(word.unwrap().unwrap(), "write");
    // As one that never looks: the write goes out first.
    let valid = guard.is_valid();
    let came_through = writes(&client, guard.token()).await;
    writeln!(
        out,
        "valid={valid} written={came_through} lost={}",
        guard.loss().is_some()
    )
    .unwrap();
}

struct Stopped(Child);

impl Stopped {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Until it stands still: the signal alone is only a request.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let pid = WaitId::Pid(Pid::from_child(&self.0));
        until("the child stands still", SLACK, || {
            Ok(waitid(pid.clone(), stopped)?.is_some())
        })
        .unwrap();
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn line(file: &Path, n: usize) -> Option<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    // A line that is not ended is not written yet.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().nth(n).map(str::to_owned)
}

async fn a_client_is_stopped(addresses: Vec<SocketAddr>) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("says");
    let places: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "stopped::child_that_is_stopped", "--nocapture"])
        .env(TOLD, format!("{} {}", file.display(), places.join(" ")))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    let mut child = Stopped(child.unwrap());
    until("the child holds the lock", LONG, || Ok(line(&file, 0).is_some())).unwrap();

    let other = client(&addresses).await;
    let lock = other.lock(NAME).unwrap();
    // It renews: past its first ttl it holds the lock yet.
    tokio::time::sleep(SESSION + SESSION / 4).await;
    assert!(lock.try_acquire().await.unwrap().is_none());
    child.stop();
    let stopped = Instant::now();
    child.0.stdin.take().unwrap().write_all(b"write\n").unwrap();
    let guard = tokio::time::timeout(LONG, lock.acquire()).await.unwrap().unwrap();
    let waited = stopped.elapsed();
    assert!(waited < SESSION + SLACK, "granted after {waited:?}");
    assert!(writes(&other, guard.token()).await);

    child.signal(Signal::CONT);
    until("the child has written", LONG, || Ok(line(&file, 1).is_some())).unwrap();
    assert_eq!(line(&file, 1).unwrap(), "valid=false written=false lost=true");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(
        guard.is_valid(),
        "the second is not disturbed by what the first does: {:?}",
        guard.loss()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_stopped_past_its_session_is_told_and_cannot_write() {
    let server = alone().await;
    a_client_is_stopped(vec![server.address()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_with_an_ensemble() {
    let all = ensemble().await;
    a_client_is_stopped(all.addresses()).await;
}
