//! The blocking API, on a runtime that runs on a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dlock_core::blocking::Client;
use dlock_core::{Change, ErrorKind, LockOptions, Memory, runtime};

/// Two clients of one store.
fn two() -> (Client, Client) {
    let runtime = runtime::own_thread().unwrap();
    let store = Memory::new(runtime.clone());
    let client = || {
        let builder = dlock_core::Client::builder(store.connect(), runtime.clone());
        builder.build().unwrap().blocking()
    };
    (client(), client())
}

fn ttl(ms: u64) -> LockOptions {
    LockOptions::new().ttl(Duration::from_millis(ms))
}

#[test]
fn body_runs_under_the_lock_alone() {
    let (one, two) = two();
    let lock = one.lock("a").unwrap();
    let seen = lock.with(|held| {
        assert!(held.is_valid());
        assert!(two.lock("a").unwrap().try_acquire().unwrap().is_none());
        17
    });
    assert_eq!(seen.unwrap(), 17);
    assert!(two.lock("a").unwrap().try_acquire().unwrap().is_some());
}

#[test]
fn body_that_outlived_its_lock_fails_with_lost() {
    let (one, two) = two();
    let lock = one.lock("a").unwrap().options(ttl(60)).unwrap();
    let outcome = lock.with(|held| {
        assert_eq!(two.force_release("a").unwrap(), 1);
        while held.is_valid() {
            thread::yield_now();
        }
    });
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn panicking_body_releases_the_lock() {
    let (one, two) = two();
    let lock = one.lock("a").unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        lock.with(|_| std::panic::resume_unwind(Box::new("on purpose")))
    }));
    assert!(panicked.is_err());
    let other = two.lock("a").unwrap();
    drop(other.acquire_timeout(Duration::from_secs(10)).unwrap());
}

#[test]
fn an_owner_goes_from_thread_to_thread() {
    let (one, two) = two();
    let owner = one.owner();
    let lock = one.lock("a").unwrap().reentrant(&owner).unwrap();
    let outer = lock.acquire().unwrap();
    let inner = thread::spawn(move || lock.acquire().unwrap()).join().unwrap();
    assert_eq!(outer.token(), inner.token());
    outer.release().unwrap();
    assert!(two.lock("a").unwrap().try_acquire().unwrap().is_none());
    inner.release().unwrap();
    assert!(two.lock("a").unwrap().try_acquire().unwrap().is_some());
}

#[test]
fn a_thread_that_watches_sees_the_changes_as_they_come() {
    let (one, two) = two();
    let mut changes = one.watch("a").unwrap();
    let (send, seen) = mpsc::channel();
    let watching = thread::spawn(move || {
        while let Some(Ok(change)) = changes.next() {
            let last = matches!(change, Change::Released { .. });
            send.send(change).unwrap();
            if last {
                return;
            }
        }
    });
    let next = || seen.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(matches!(next(), Change::Snapshot { now, .. } if now.holders.is_empty()));
    let guard = two.lock("a").unwrap().acquire().unwrap();
    assert!(matches!(next(), Change::Granted(holder) if holder.id == guard.id()));
    assert_eq!(one.inspect("a").unwrap().holders[0].id, guard.id());
    let id = guard.id();
    guard.release().unwrap();
    assert!(matches!(next(), Change::Released { id: of } if of == id));
    watching.join().unwrap();
}
