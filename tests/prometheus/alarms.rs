//! Each alarm, provoked once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock::{ErrorKind, LockOptions, LossReason, Memory, Runtime, Timestamp, runtime};
use dlock_testkit::RedisServer;
use futures::future::BoxFuture;

use crate::site::{client_of, in_memory, scraped};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A lease whose end nobody waits for.
fn long() -> LockOptions {
    LockOptions::new().ttl(secs(600))
}

/// A runtime whose clock leaps, as that of a machine that was suspended.
#[derive(Debug)]
struct Leaps {
    runtime: Arc<dyn Runtime>,
    ahead: AtomicU64,
}

impl Leaps {
    fn new() -> Arc<Self> {
        let runtime = runtime::detect().unwrap();
        Arc::new(Self {
            runtime,
            ahead: AtomicU64::new(0),
        })
    }

    fn leap(&self, seconds: u64) {
        self.ahead.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Runtime for Leaps {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.runtime.spawn(task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.runtime.sleep(duration)
    }

    fn now(&self) -> Timestamp {
        self.runtime.now() + secs(self.ahead.load(Ordering::SeqCst))
    }

    fn name(&self) -> &'static str {
        "leaps"
    }
}

#[test]
fn the_first_lock_that_is_lost_is_an_alarm_for_each_reason() {
    scraped(async |site| {
        let machine = Leaps::new();
        let store = Memory::new(machine.clone());
        let client = client_of(&store, machine.clone());
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        site.is_quiet().await;

        machine.leap(31);
        assert_eq!(guard.lost().await, LossReason::Expired);
        site.raises(&[("DlockLockLost", "expired")]).await;
        site.has_scraped("dlock_lost_total{reason='expired'}", 1.0).await;

        let guard = client.lock("b").unwrap().acquire().await.unwrap();
        client.force_release("b").await.unwrap();
        guard.renew().await.unwrap_err();
        assert_eq!(guard.lost().await, LossReason::Refused);
        site.raises(&[("DlockLockLost", "expired"), ("DlockLockLost", "refused")])
            .await;
        site.has_scraped("dlock_lost_total{reason='refused'}", 1.0).await;
    });
}

#[test]
fn a_write_that_a_fence_refuses_is_an_alarm() {
    scraped(async |site| {
        let (_store, client) = in_memory();
        let lock = client.lock("a").unwrap();
        let first = lock.acquire().await.unwrap();
        let old = first.token().unwrap();
        first.release().await.unwrap();
        let new = lock.acquire().await.unwrap().token().unwrap();
        let gate = client.gate().unwrap();
        assert!(gate.write("r", new, b"").await.unwrap().is_admitted());
        site.is_quiet().await;

        assert!(!gate.write("r", old, b"").await.unwrap().is_admitted());
        site.raises(&[("DlockFenceRefusedWrite", "")]).await;
    });
}

#[test]
fn an_absent_store_is_an_alarm_and_so_is_a_lock_lost_by_it() {
    scraped(async |site| {
        let server = tokio::task::spawn_blocking(|| RedisServer::start().unwrap())
            .await
            .unwrap();
        let url = format!("{}?op_timeout=500ms", server.url());
        let client = dlock::connect(url).await.unwrap();
        site.is_quiet().await;

        // Not before: of many renewals that are confirmed, those that fail are a small share.
        let brief = LockOptions::new().ttl(secs(2));
        let brief = client.lock("a").unwrap().options(brief).unwrap();
        let guard = brief.acquire().await.unwrap();
        server.crash().unwrap();
        let refused = client.lock("b").unwrap().acquire().await.unwrap_err();
        assert!(
            matches!(refused.kind(), ErrorKind::Unavailable | ErrorKind::Unknown),
            "{refused}"
        );
        assert_eq!(guard.lost().await, LossReason::Expired);
        site.raises(&[
            ("DlockLockLost", "expired"),
            ("DlockRenewalsFail", ""),
            ("DlockStoreUnavailable", ""),
        ])
        .await;
    });
}

#[test]
fn a_store_that_refuses_what_must_not_be_refused_is_an_alarm() {
    scraped(async |site| {
        let (store, client) = in_memory();
        let lock = client.lock("a").unwrap();
        site.is_quiet().await;

        store.spoil(lock.name(), "what another program wrote");
        assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::BackendData);
        site.raises(&[("DlockStoreRefuses", "backend_data")]).await;
    });
}

#[test]
fn renewals_that_fail_are_an_alarm_before_anything_is_lost() {
    scraped(async |site| {
        let (_store, client) = in_memory();
        let guard = client
            .lock("a")
            .unwrap()
            .options(long())
            .unwrap()
            .acquire()
            .await
            .unwrap();
        guard.renew().await.unwrap();
        site.is_quiet().await;

        client.backend().close().await.unwrap();
        guard.renew().await.unwrap_err();
        assert!(guard.is_valid());
        site.raises(&[("DlockRenewalsFail", "")]).await;
    });
}

#[test]
fn waits_that_time_out_are_an_alarm() {
    scraped(async |site| {
        let (_store, client) = in_memory();
        let lock = client.lock("a").unwrap();
        let _held = lock.acquire().await.unwrap();
        site.is_quiet().await;

        let given_up = lock.acquire_timeout(Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(given_up.kind(), ErrorKind::Timeout);
        site.raises(&[("DlockWaitsTimeOut", "")]).await;
    });
}

#[test]
fn waits_that_become_long_are_an_alarm() {
    scraped(async |site| {
        let machine = Leaps::new();
        let store = Memory::new(machine.clone());
        let client = client_of(&store, machine.clone());
        let lock = client.lock("a").unwrap().options(long()).unwrap();
        let held = lock.acquire().await.unwrap();
        site.is_quiet().await;

        let later = async {
            assert_eq!(store.sizes().queued, 1);
            machine.leap(40);
            held.release().await.unwrap();
        };
        let (waited, ()) = futures::join!(lock.acquire(), later);
        waited.unwrap().release().await.unwrap();
        site.raises(&[("DlockWaitsLong", "")]).await;
    });
}

#[test]
fn waiting_for_an_unseen_holder_is_an_alarm_until_a_forced_end() {
    scraped(async |site| {
        let (store, client) = in_memory();
        let of_its_machine = store.clone();
        // On a thread of its own nothing that it does is counted here.
        let crashed = std::thread::spawn(move || {
            let tokio = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            tokio.block_on(async {
                let client = client_of(&of_its_machine, runtime::detect().unwrap());
                let lock = client.lock("a").unwrap().options(long()).unwrap();
                let _held = lock.acquire().await.unwrap();
                client.abort();
            });
        });
        crashed.join().unwrap();
        site.is_quiet().await;

        let lock = client.lock("a").unwrap();
        let operator = async {
            site.raises(&[("DlockNothingGranted", "")]).await;
            client.force_release("a").await.unwrap();
        };
        let (granted, ()) = futures::join!(lock.acquire(), operator);
        let _held = granted.unwrap();
        site.raises(&[]).await;
    });
}

#[test]
fn a_hold_that_comes_to_its_limit_is_an_alarm() {
    scraped(async |site| {
        let (_store, client) = in_memory();
        let limit = LockOptions::new().max_hold(Duration::from_millis(100));
        let lock = client.lock("a").unwrap().options(limit).unwrap();
        site.is_quiet().await;

        let guard = lock.acquire().await.unwrap();
        assert_eq!(guard.lost().await, LossReason::MaxHold);
        site.raises(&[("DlockHeldTooLong", "max_hold")]).await;
    });
}
