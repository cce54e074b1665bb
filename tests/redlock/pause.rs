//! A client that is stopped past its lease, as by a long garbage collection or a virtual machine that is
//! moved; Kleppmann's first story, and the one that no lock service can prevent.
//!
//! The client is a process of its own, stopped by a signal. What it does first when it goes on lies in its
//! input already, so nothing but itself tells it that time has passed.

use std::fs;
use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dlock::redis::Config;
use dlock::{Admission, FenceGate as _};
use dlock::{LockName, Token, runtime};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::site::{NAME, SLACK, Site, TTL, client};
use dlock_testkit::{RedisOptions, RedisServer, until};

/// In the environment of the child: where it writes to, where the resource is, and where the members are.
const TOLD: &str = "DLOCK_REDLOCK_CHILD";

/// Whether a write with that token comes through. The resource is a Redis server too, and no member.
async fn writes(resource: SocketAddr, token: Option<Token>) -> bool {
    let resource = Config::new(&resource.ip().to_string(), resource.port());
    let resource = resource.connect(runtime::detect().unwrap()).await;
    let name = LockName::new(NAME).unwrap();
    let written = resource.unwrap().write(&name, token.unwrap(), b"sold").await;
    written.unwrap() == Admission::Admitted
}

/// The process that is stopped. As a test of its own it does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn child_that_is_stopped() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let mut told = told.split(' ');
    let file = told.next().unwrap();
    let mut places: Vec<SocketAddr> = told.map(|at| at.parse().unwrap()).collect();
    let resource = places.remove(0);
    let client = client(&places, |config| config, TTL).await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let mut out = fs::File::create(file).unwrap();
    writeln!(out, "held").unwrap();
    // The runtime goes on renewing meanwhile.
    let word = tokio::task::block_in_place(|| std::io::stdin().lock().lines().next());
    assert_eq!(word.unwrap().unwrap(), "write");
    // As one that never looks: the write goes out first.
    let valid = guard.is_valid();
    let came_through = writes(resource, guard.token()).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_stopped_past_its_lease_is_told_and_cannot_write() {
    let site = Site::new(5, &RedisOptions::new());
    let resource = RedisServer::start().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("says");
    let places = [vec![resource.address()], site.addresses()].concat();
    let places: Vec<_> = places.iter().map(ToString::to_string).collect();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "pause::child_that_is_stopped", "--nocapture"])
        .env(TOLD, format!("{} {}", file.display(), places.join(" ")))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    let mut child = Stopped(child.unwrap());
    until("the child holds the lock", Duration::from_secs(20), || {
        Ok(line(&file, 0).is_some())
    })
    .unwrap();

    let other = site.party(TTL).await;
    // It renews: past its first ttl it holds the lock yet.
    tokio::time::sleep(TTL + TTL / 4).await;
    assert!(other.tries().await.is_none());
    child.stop();
    child.0.stdin.take().unwrap().write_all(b"write\n").unwrap();
    let guard = other.tries_until_granted(TTL + SLACK * 2).await;
    assert!(writes(resource.address(), guard.token()).await);

    child.signal(Signal::CONT);
    until("the child has written", Duration::from_secs(20), || {
        Ok(line(&file, 1).is_some())
    })
    .unwrap();
    assert_eq!(line(&file, 1).unwrap(), "valid=false written=false lost=true");
    assert!(
        guard.is_valid(),
        "the second is not disturbed by what the first does: {:?}",
        guard.loss()
    );
}
