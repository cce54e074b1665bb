//! A client that is stopped past its session, as by a long garbage collection or a virtual machine that is
//! moved.
//!
//! The client is a process of its own, stopped by a signal. What it does first when it goes on lies in its
//! input already, so nothing but its clock tells it that time has passed.

use std::fs;
use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dlock_core::Client;
use dlock_core::runtime::Tokio;
use dlock_sql::session::{Config, SessionLock};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::{LONG, blocking, client, here, in_the_end, run_once};
use dlock_testkit::{Folder, MariaDbServer, PostgresServer, until};

/// In the environment of the child: where it writes to, and the URL of the server.
const TOLD: &str = "DLOCK_SESSION_CHILD";

/// The shortest of MariaDB.
const TTL: Duration = Duration::from_secs(3);

async fn open(url: &str, ttl: Duration) -> SessionLock {
    let config = Config::from_url(url).unwrap().session_ttl(ttl).timeout(LONG);
    config.connect(here()).await.unwrap()
}

/// The process that is stopped. As a test of its own it does nothing.
#[test]
fn child_that_is_stopped() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let (file, url) = told.split_once(' ').unwrap();
    run_once(async {
        let backend = open(url, TTL).await;
        let client = Client::builder(std::sync::Arc::new(backend), Tokio::current().unwrap());
        let guard = client
            .build()
            .unwrap()
            .lock("a")
            .unwrap()
            .acquire()
            .await
            .unwrap();
        let mut out = fs::File::create(file).unwrap();
        writeln!(out, "{}", guard.token().unwrap().get()).unwrap();
        // The runtime goes on renewing meanwhile.
        let word = tokio::task::block_in_place(|| std::io::stdin().lock().lines().next());
        assert_eq!(word.unwrap().unwrap(), "look");
        let is_valid = guard.is_valid();
        let lost = tokio::time::timeout(TTL, guard.lost()).await;
        writeln!(out, "valid={is_valid} lost={}", lost.is_ok()).unwrap();
    });
}

struct Stopped(Child);

impl Stopped {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Until it stands still: the signal alone is only a request.
    fn stop(&self) -> std::io::Result<()> {
        self.signal(Signal::STOP);
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let pid = WaitId::Pid(Pid::from_child(&self.0));
        until("the child stands still", LONG, || {
            Ok(waitid(pid.clone(), stopped)?.is_some())
        })
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
    // Written to its end.
    text.split_inclusive('\n')
        .nth(n)
        .filter(|l| l.ends_with('\n'))
        .map(|l| l.trim().to_owned())
}

async fn is_out_before_the_next_one_is_in(url: &str) {
    let folder = blocking(|| Folder::new("session-child"));
    let file = folder.file("told");
    let mut child = blocking(|| {
        Command::new(std::env::current_exe()?)
            .args(["--exact", "session::stopped::child_that_is_stopped"])
            .env(TOLD, format!("{} {url}", file.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map(Stopped)
    });
    blocking(|| until("the child holds it", LONG, || Ok(line(&file, 0).is_some())));
    let theirs: u64 = line(&file, 0).unwrap().parse().unwrap();
    let next = client(open(url, LONG).await);
    let lock = next.lock("a").unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none(), "two hold it");
    blocking(|| child.stop());
    let guard = in_the_end(&lock, LONG).await;
    assert!(guard.is_valid() && guard.token().unwrap().get() > theirs);
    blocking(|| writeln!(child.0.stdin.as_mut().unwrap(), "look"));
    child.signal(Signal::CONT);
    blocking(|| until("the child has looked", LONG, || Ok(line(&file, 1).is_some())));
    assert_eq!(line(&file, 1).unwrap(), "valid=false lost=true");
    assert!(guard.is_valid());
}

#[test]
fn a_stopped_process_is_out_before_the_next_is_in_on_postgres() {
    run_once(async {
        let server = blocking(PostgresServer::start);
        is_out_before_the_next_one_is_in(&server.url()).await;
    });
}

#[test]
fn a_stopped_process_is_out_before_the_next_is_in_on_mariadb() {
    run_once(async {
        let server = blocking(MariaDbServer::start);
        is_out_before_the_next_one_is_in(&server.url()).await;
    });
}
