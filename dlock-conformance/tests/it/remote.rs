//! The protocol, and what a fault is to the driver.

use std::sync::Arc;
use std::time::Duration;

use dlock_conformance::network::{Fault, Network};
use dlock_conformance::proxy::ProxyNetwork;
use dlock_conformance::remote::{RemoteLock, RemoteServer};
use dlock_core::memory::Survives;
use dlock_core::runtime::own_thread;
use dlock_core::spi::{Acquire, Attempt, LeaseKey, Lock, Release, Released};
use dlock_core::{Client, ErrorKind, LockName, RequestId};
use futures::StreamExt;

fn start() -> (RemoteServer, ProxyNetwork, RemoteLock) {
    let server = RemoteServer::start(own_thread().unwrap()).unwrap();
    let net = ProxyNetwork::start(&[server.address().into()]).unwrap();
    let address = net.addresses()[0].tcp().unwrap();
    let lock = RemoteLock::new(address, server.capabilities(), own_thread().unwrap());
    (server, net, lock)
}

fn request(n: u64) -> Acquire {
    let key = LeaseKey::new(LockName::new("remote").unwrap(), RequestId::new(7, n));
    Acquire::new(key, Duration::from_secs(30))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    futures::executor::block_on(future)
}

#[test]
fn a_lock_is_granted_queued_for_and_handed_over() {
    let (server, _net, lock) = start();
    let other = RemoteLock::new(server.address(), server.capabilities(), own_thread().unwrap());
    block_on(async {
        let first = Client::builder(Arc::new(lock), own_thread().unwrap())
            .build()
            .unwrap();
        let second = Client::builder(Arc::new(other), own_thread().unwrap())
            .build()
            .unwrap();
        let held = first.lock("a").unwrap().acquire().await.unwrap();
        let token = held.token();
        let waiter = second.lock("a").unwrap();
        assert!(waiter.try_acquire().await.unwrap().is_none());
        let mut changes = first.watch("a").await.unwrap();
        assert!(changes.next().await.unwrap().is_ok());
        let (next, released) = futures::join!(waiter.acquire(), async {
            smol::Timer::after(Duration::from_millis(20)).await;
            held.release().await
        });
        released.unwrap();
        assert!(next.unwrap().token() > token);
        assert!(changes.next().await.unwrap().is_ok());
    });
}

#[test]
fn what_was_not_sent_is_unavailable_and_what_was_not_answered_unknown() {
    let (_server, net, lock) = start();
    block_on(async {
        let away = net.begin(Fault::Away);
        let error = lock.attempt(&request(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(std::error::Error::source(&error).is_some());
        away.heal();
        assert!(matches!(
            lock.attempt(&request(1)).await.unwrap(),
            Attempt::Granted(_)
        ));
        let swallow = net.begin(Fault::SwallowNextReply);
        let error = lock.release(&request(1).key, Release::Now).await.unwrap_err();
        assert_eq!((error.kind(), swallow.hits()), (ErrorKind::Unknown, 1));
        let again = lock.release(&request(1).key, Release::Now).await.unwrap();
        assert_eq!(again, Released::Released, "it was carried out, and says so again");
        lock.close().await.unwrap();
        let error = lock.attempt(&request(2)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
    });
}

#[test]
fn a_crash_keeps_the_leases_or_not() {
    let (server, _net, lock) = start();
    block_on(async {
        for (memory, granted) in [(Survives::Memory, false), (Survives::Nothing, true)] {
            let n = u64::from(granted) * 2;
            assert!(matches!(
                lock.attempt(&request(n)).await.unwrap(),
                Attempt::Granted(_)
            ));
            server.crash(memory);
            assert!(lock.attempt(&request(n + 1)).await.is_err());
            server.restart().unwrap();
            // The first may find the old connection dead only when it uses it.
            let answer = match lock.attempt(&request(n + 1)).await {
                Err(_) => lock.attempt(&request(n + 1)).await.unwrap(),
                Ok(answer) => answer,
            };
            assert_eq!(matches!(answer, Attempt::Granted(_)), granted, "{memory:?}");
            let _ = lock.abandon(&[request(n).key, request(n + 1).key]).await;
        }
    });
}

#[test]
fn a_server_can_be_slow_deaf_and_wrong_about_the_time() {
    let (server, _net, lock) = start();
    block_on(async {
        server.slow(Duration::from_millis(50));
        let from = std::time::Instant::now();
        assert!(matches!(
            lock.attempt(&request(1)).await.unwrap(),
            Attempt::Granted(_)
        ));
        assert!(from.elapsed() >= Duration::from_millis(50));
        server.slow(Duration::ZERO);
        server.set_clock_ahead(Duration::from_secs(2 * 3600));
        let next = lock.attempt(&request(2)).await.unwrap();
        assert!(
            matches!(next, Attempt::Granted(_)),
            "its clock says that the first is over"
        );
        server.drop_requests(1);
        let key = request(2).key;
        let deaf = lock.release(&key, Release::Now);
        let patience = smol::Timer::after(Duration::from_millis(50));
        let first = futures::future::select(deaf, patience).await;
        assert!(matches!(first, futures::future::Either::Right(_)));
        assert_eq!(
            lock.release(&key, Release::Now).await.unwrap(),
            Released::Released
        );
    });
}
