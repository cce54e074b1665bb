//! Reads over a connection that breaks, and behind a `sync` that fails.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlock_core::spi::Watch;
use dlock_core::{ErrorKind, Mode};

use crate::frames::{Fails, SYNC, Stop, Way, carry, int, lead};
use crate::{LONG, at_once, config, granted, here, key, listens, open, start};

const X: Mode = Mode::Exclusive;

#[tokio::test]
async fn a_look_whose_connection_breaks_is_repeated() {
    let server = start().await;
    let way = Way::to(server.address()).unwrap();
    let address = way.address.to_string();
    let lock = config().servers(&address).connect(here()).await.unwrap();
    listens(&server, &lock).await;
    let held = key("x", 1, 1);
    granted(&lock, &at_once(&held, X)).await;
    way.stop(Stop::Before(SYNC));
    let losing = async {
        way.stopped().await;
        way.break_off();
    };
    let (seen, ()) = futures::join!(lock.inspect(&held.name), losing);
    assert_eq!(seen.unwrap().holders[0].id, held.id);
}

/// A way on which each `sync` breaks the connection, and how many did.
fn breaks_at_syncs(server: SocketAddr) -> io::Result<(SocketAddr, Arc<AtomicUsize>)> {
    let syncs = Arc::new(AtomicUsize::new(0));
    let counted = syncs.clone();
    let address = lead(server, move |client, server| {
        let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let (line, syncs) = (client.try_clone().unwrap(), counted.clone());
        std::thread::spawn(move || {
            carry(client, server, |frame| {
                if int(frame, 4) == Some(SYNC) {
                    syncs.fetch_add(1, Ordering::SeqCst);
                    let _ = line.shutdown(Shutdown::Both);
                }
            });
        });
        std::thread::spawn(move || carry(back.0, back.1, |_| {}));
    })?;
    Ok((address, syncs))
}

#[tokio::test]
async fn a_look_whose_connection_always_breaks_ends() {
    let server = start().await;
    let (address, syncs) = breaks_at_syncs(server.address()).unwrap();
    let lock = config().servers(&address.to_string());
    let lock = lock.connect(here()).await.unwrap();
    let name = key("x", 1, 1).name;
    let looking = tokio::time::timeout(LONG, lock.inspect(&name));
    let e = looking.await.expect("it ends").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    let syncs = syncs.load(Ordering::SeqCst);
    assert!((2..=8).contains(&syncs), "it asked {syncs} times");
}

/// What is read without it may be old.
#[tokio::test]
async fn what_is_read_behind_a_failed_sync_is_not_told() {
    let server = start().await;
    // As a server says that cannot do it.
    let fails = Fails::at(server.address(), SYNC, -6).unwrap();
    fails.begin();
    let address = fails.address.to_string();
    let lock = config().servers(&address).connect(here()).await.unwrap();
    let other = open(&server).await;
    let held = key("x", 1, 1);
    granted(&other, &at_once(&held, X)).await;
    let e = lock.inspect(&held.name).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    let e = Watch::watch(&lock, &held.name).await.err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
}
