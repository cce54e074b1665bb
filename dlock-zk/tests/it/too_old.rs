//! Servers that know no containers: before ZooKeeper 3.5, or something else that speaks its protocol.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use dlock_core::spi::Lock as _;
use dlock_core::{ErrorKind, Mode};

use crate::frames::{EXISTS, carry, int, lead};
use crate::{at_once, children, config, here, key, start};

const CREATE_CONTAINER: i32 = 19;
const UNIMPLEMENTED: i32 = -6;

/// Stands before a server, and refuses containers as one does that never heard of them.
fn refusing(server: SocketAddr) -> io::Result<SocketAddr> {
    lead(server, |client, server| {
        // The numbers of the requests that are refused.
        let refused = Arc::new(Mutex::new(HashSet::new()));
        let (to_server, to_client) = (refused.clone(), refused);
        let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || {
            carry(client, server, |frame| {
                if int(frame, 4) == Some(CREATE_CONTAINER) {
                    to_server.lock().unwrap().insert(int(frame, 0));
                    // A question in its place, so that the answers keep their order.
                    frame.truncate(4);
                    frame.extend_from_slice(&EXISTS.to_be_bytes());
                    frame.extend_from_slice(&1_i32.to_be_bytes());
                    frame.extend_from_slice(b"/\0");
                }
            })
        });
        std::thread::spawn(move || {
            carry(back.0, back.1, |frame| {
                if to_client.lock().unwrap().remove(&int(frame, 0)) {
                    frame.truncate(12);
                    frame.extend_from_slice(&UNIMPLEMENTED.to_be_bytes());
                }
            })
        });
    })
}

#[tokio::test]
async fn a_server_without_containers_is_told_to_be_too_old() {
    let server = start().await;
    let at = refusing(server.address()).unwrap().to_string();
    let lock = config().servers(&at).connect(here()).await.unwrap();
    for n in 1..=2 {
        let e = lock.attempt(&at_once(&key("x", 1, n), Mode::Exclusive)).await;
        let e = e.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert!(e.to_string().contains("3.5"), "{e}");
    }
    let lines = children(&server, "/dlock/locks").await;
    assert!(lines.is_empty(), "{lines:?}");
}
