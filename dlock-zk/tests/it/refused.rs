//! Requests that came to nothing are forgotten: a session with nothing else in it is closed with its last
//! user.

use std::sync::Arc;

use dlock_core::spi::{Attempt, Lock as _};
use dlock_core::{ErrorKind, Mode};
use dlock_testkit::ZkServer;
use dlock_zk::{Access, Config, ZkLock};

use crate::{LONG, at_once, children, config, granted, hands, here, key, start, until};

const X: Mode = Mode::Exclusive;

/// Rights to read, write and delete, and not to create.
const NOT_CREATE: i32 = 0b01011;
const ALL: i32 = 0b11111;

/// Nothing keeps the session of that client but its user, who goes.
async fn is_closed(server: &Arc<ZkServer>, lock: &ZkLock, what: &str) {
    let before = children(server, "/dlock/sessions").await.len();
    drop(lock.signals());
    until(what, LONG / 4, async || {
        children(server, "/dlock/sessions").await.len() == before - 1
    })
    .await;
}

#[tokio::test]
async fn a_request_that_is_not_permitted_is_forgotten() {
    let fair: fn() -> Config = config;
    let unfair: fn() -> Config = || config().unfair();
    let no_line = || config().access(Access::List("world:anyone:rdw".into()));
    // What is there beside the sessions, and may be changed how.
    for (what, config, nodes) in [
        ("no directory of the lines", fair, &[][..]),
        ("no line", fair, &[("/dlock/locks", NOT_CREATE)]),
        ("no node in a line", no_line, &[("/dlock/locks", ALL)]),
        ("no directory of the locks", unfair, &[]),
        (
            "no lock",
            unfair,
            &[("/dlock/unfair", NOT_CREATE), ("/dlock/holders", ALL)],
        ),
    ] {
        let server = start().await;
        hands(&server, move |s| {
            s.with_session(|s| {
                s.create_with("/dlock", NOT_CREATE)?;
                for (path, rights) in [("/dlock/sessions", ALL), ("/dlock/forced", ALL)] {
                    s.create_with(path, rights)?;
                }
                for (path, rights) in nodes {
                    s.create_with(path, *rights)?;
                }
                Ok(())
            })
        })
        .await;
        let config = config().servers(&server.address().to_string());
        let lock = config.connect(here()).await.unwrap();
        let e = lock.attempt(&at_once(&key("x", 1, 1), X)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{what}: {e}");
        is_closed(&server, &lock, what).await;
    }
}

#[tokio::test]
async fn a_request_that_was_held_up_or_abandoned_is_forgotten() {
    let server = start().await;
    let address = server.address().to_string();
    for config in [config(), config().unfair()] {
        let open = async || config.clone().servers(&address).connect(here()).await.unwrap();
        let (holder, lock) = (open().await, open().await);
        granted(&holder, &at_once(&key("x", 1, 1), X)).await;
        let second = at_once(&key("x", 2, 1), X);
        let told = lock.attempt(&second).await.unwrap();
        assert!(matches!(told, Attempt::Held(_)), "{told:?}");
        let third = at_once(&key("y", 2, 2), X);
        lock.abandon(std::slice::from_ref(&third.key))
            .await
            .remove(0)
            .unwrap();
        let e = lock.attempt(&third).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Lost, "{e}");
        is_closed(&server, &lock, "nothing is left").await;
    }
}
