//! Real processes: this test program runs itself again.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::runtime::Tokio;
use dlock_core::{Client, LockOptions};
use dlock_sql::sqlite::Config;

use super::support::*;

const ROLE: &str = "DLOCK_TEST_CHILD_ROLE";
const PLACE: &str = "DLOCK_TEST_CHILD_FILE";
const ROUNDS: u32 = 40;

async fn client(path: &Path) -> Client {
    let runtime = Tokio::current().unwrap();
    let lock = Config::new(path).connect(runtime.clone()).await.unwrap();
    Client::builder(Arc::new(lock), runtime).build().unwrap()
}

fn start(role: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sqlite::processes::the_part_of_a_child", "--nocapture"])
        .env(ROLE, role)
        .env(PLACE, path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Does nothing unless it was started by one of the tests below.
#[test]
fn the_part_of_a_child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let path = std::path::PathBuf::from(std::env::var_os(PLACE).unwrap());
    tokio().block_on(async {
        let client = client(&path).await;
        let lock = client.lock("counter").unwrap();
        match role.as_str() {
            "count" => {
                for _ in 0..ROUNDS {
                    let guard = lock.acquire().await.unwrap();
                    add_one(&path.with_extension("count"));
                    guard.release().await.unwrap();
                }
                client.close().await.unwrap();
            }
            "hold" => {
                let ttl = LockOptions::new().ttl(ms(600));
                let _guard = lock.options(ttl).unwrap().acquire().await.unwrap();
                std::fs::write(path.with_extension("held"), "").unwrap();
                std::future::pending::<()>().await;
            }
            other => panic!("no such role: {other}"),
        }
    });
}

/// Reads, and writes later: two at once lose one.
fn add_one(file: &Path) {
    let before: u32 = std::fs::read_to_string(file).map_or(0, |t| t.parse().unwrap());
    std::thread::yield_now();
    std::fs::write(file, (before + 1).to_string()).unwrap();
}

#[test]
fn processes_exclude_one_another() {
    let files = Files::new();
    let mut children: Vec<_> = (0..3).map(|_| start("count", &files.path())).collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    let count = std::fs::read_to_string(files.path().with_extension("count")).unwrap();
    assert_eq!(count, (3 * ROUNDS).to_string());
}

#[test]
fn the_lock_of_a_killed_process_is_free_after_its_ttl() {
    let files = Files::new();
    let mut child = start("hold", &files.path());
    let begun = Instant::now();
    while !files.path().with_extension("held").exists() {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "the child never held the lock"
        );
        std::thread::sleep(ms(5));
    }
    tokio().block_on(async {
        let client = client(&files.path()).await;
        let lock = client.lock("counter").unwrap();
        // It renews itself, so it outlives its ttl as long as the process lives.
        std::thread::sleep(ms(900));
        assert!(lock.try_acquire().await.unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        let killed = Instant::now();
        let guard = lock.acquire_timeout(Duration::from_secs(20)).await.unwrap();
        assert!(
            killed.elapsed() < Duration::from_secs(10),
            "{:?}",
            killed.elapsed()
        );
        guard.release().await.unwrap();
    });
}
