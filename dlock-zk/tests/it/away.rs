//! Servers that are away, or answer nobody: how long a client asks them for a session, and how often.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::spi::{Attempt, Lock as _};
use dlock_core::{ErrorKind, Mode};
use dlock_zk::ZkLock;

use crate::bent::Bent;
use crate::{LONG, at_once, config, expire, granted, here, key, start, until};
use dlock_testkit::ZkServer;

/// How often a server is named to the driver: so many connections are one try.
const NAMED: usize = 16;

/// A way to a server that may be away: then each connection is counted, and ends.
struct Gate {
    address: SocketAddr,
    is_away: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Gate {
    fn to(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let gate = Self {
            address: listener.local_addr()?,
            is_away: Arc::default(),
            asked: Arc::default(),
        };
        let (is_away, asked) = (gate.is_away.clone(), gate.asked.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if is_away.load(Ordering::SeqCst) {
                    asked.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                let ends = client.and_then(|client| Ok((client, TcpStream::connect(server)?)));
                let Ok((client, server)) = ends else { return };
                let ways = [(&client, &server), (&server, &client)];
                for (from, to) in ways.map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap())) {
                    std::thread::spawn(move || {
                        let _ = io::copy(&mut &from, &mut &to);
                        to.shutdown(std::net::Shutdown::Both)
                    });
                }
            }
        });
        Ok(gate)
    }

    fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }

    /// How many tries there were up to now.
    fn tries(&self) -> usize {
        self.asked.load(Ordering::SeqCst).div_ceil(NAMED)
    }

    /// Whether nobody tries any more.
    async fn is_left_alone(&self) {
        // The longest pause, after which it is seen that nobody wants a session, and a try.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let before = self.tries();
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert_eq!(self.tries(), before, "somebody tries");
    }
}

/// A client that has lost its session, and whose servers are away from then on.
async fn without_session(server: &Arc<ZkServer>) -> (Gate, ZkLock) {
    let gate = Gate::to(server.address()).unwrap();
    let address = gate.address.to_string();
    let lock = config().servers(&address).connect(here()).await.unwrap();
    expire(server, lock.session_id().unwrap()).await;
    until("it has ended", LONG, async || lock.session_id().is_none()).await;
    gate.set_away(true);
    (gate, lock)
}

/// One task at a time tries, with pauses that grow, and as long as there is a user.
#[tokio::test]
async fn a_session_is_tried_for_as_long_as_there_is_a_user() {
    let server = start().await;
    let (gate, lock) = without_session(&server).await;
    let user = lock.signals();
    let request = at_once(&key("x", 1, 1), Mode::Exclusive);
    // Each of them finds that somebody tries.
    for _ in 0..3 {
        let e = lock.attempt(&request).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    }
    // After 0, 50, 150, 350, 750, 1550 and 3150 ms.
    let tries = gate.tries();
    assert!((3..=9).contains(&tries), "{tries} tries");
    until("it tries once more", LONG, async || gate.tries() > tries).await;
    drop(user);
    gate.is_left_alone().await;
    gate.set_away(false);
    until("it is had", LONG, async || {
        matches!(lock.attempt(&request).await, Ok(Attempt::Granted(_)))
    })
    .await;
}

#[tokio::test]
async fn a_client_that_was_closed_tries_for_no_session() {
    let server = start().await;
    let (gate, lock) = without_session(&server).await;
    let _user = lock.signals();
    let request = at_once(&key("x", 1, 1), Mode::Exclusive);
    lock.attempt(&request).await.unwrap_err();
    lock.close().await.unwrap();
    gate.is_left_alone().await;
}

/// It waits for a connection, and is told at once, and not when its patience is at an end.
#[tokio::test]
async fn who_waits_for_a_session_is_told_of_the_close() {
    let server = start().await;
    let runtime = Bent::new();
    let gate = Gate::to(server.address()).unwrap();
    let address = gate.address.to_string();
    let lock = config().servers(&address).connect(runtime.clone()).await.unwrap();
    granted(&lock, &at_once(&key("x", 1, 0), Mode::Exclusive)).await;
    expire(&server, lock.session_id().unwrap()).await;
    until("it has ended", LONG, async || lock.session_id().is_none()).await;
    gate.set_away(true);
    runtime.endless.store(true, Ordering::SeqCst);
    let request = at_once(&key("x", 1, 1), Mode::Exclusive);
    let mut asking = lock.attempt(&request);
    assert!(futures::poll!(&mut asking).is_pending());
    lock.close().await.unwrap();
    let told = tokio::time::timeout(LONG, asking).await.expect("it is told");
    assert_eq!(told.unwrap_err().kind(), ErrorKind::Closed);
}
