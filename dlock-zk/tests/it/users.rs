//! Users and what they may do.

use dlock_core::spi::{Lock as _, Release};
use dlock_core::{ErrorKind, Mode};
use dlock_zk::Access;

use crate::{at_once, builder, granted, here, key, start};

#[tokio::test]
async fn nodes_of_the_creator_alone_are_for_its_user_alone() {
    let server = start().await;
    let address = server.address().to_string();
    let own = || builder().access(Access::Creator);
    // Nobody yet knows who that would be.
    let nobody = own().open(&address, here()).await.unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::PermissionDenied, "{nobody}");
    let url = format!("zk://app:hunter2@{address}");
    let a = own().open(&url, here()).await.unwrap();
    let b = own()
        .login("app", "hunter2")
        .open(&address, here())
        .await
        .unwrap();
    let k = key("x", 1, 1);
    granted(&a, &at_once(&k, Mode::Exclusive)).await;
    let held = b
        .attempt(&at_once(&key("x", 2, 1), Mode::Exclusive))
        .await
        .unwrap();
    assert!(matches!(held, dlock_core::spi::Attempt::Held(_)));
    a.release(&k, Release::Now).await.unwrap();
    let stranger = builder()
        .login("app", "other")
        .open(&address, here())
        .await
        .unwrap_err();
    assert_eq!(stranger.kind(), ErrorKind::PermissionDenied, "{stranger}");
    assert!(!format!("{stranger} {stranger:?}").contains("other"));
}

/// The line can be made, and no node in it: a server would keep such a container for ever.
#[tokio::test]
async fn a_line_in_which_nobody_may_stand_does_not_stay() {
    let server = start().await;
    crate::hands(&server, |s| {
        s.with_session(|s| {
            for path in ["/dlock", "/dlock/locks", "/dlock/sessions"] {
                s.create(path, b"")?;
            }
            Ok(())
        })
    })
    .await;
    let may_not_create = Access::List("world:anyone:rdw".into());
    let address = server.address().to_string();
    let lock = builder()
        .access(may_not_create)
        .open(&address, here())
        .await
        .unwrap();
    let e = lock
        .attempt(&at_once(&key("x", 1, 1), Mode::Exclusive))
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
    let lines = crate::children(&server, "/dlock/locks").await;
    assert!(lines.is_empty(), "{lines:?}");
}

#[cfg(feature = "sasl")]
#[tokio::test]
async fn a_user_of_sasl_comes_in_and_one_with_a_wrong_password_does_not() {
    use crate::servers::{ZkOptions, ZkServer};

    let options = ZkOptions::new().user("app", "hunter2");
    let server = tokio::task::spawn_blocking(|| ZkServer::with(options).unwrap())
        .await
        .unwrap();
    let address = server.address().to_string();
    let own = || builder().access(Access::Creator);
    let lock = own()
        .sasl_login("app", "hunter2")
        .open(&address, here())
        .await
        .unwrap();
    granted(&lock, &at_once(&key("x", 1, 1), Mode::Exclusive)).await;
    let e = own()
        .sasl_login("app", "wrong-one")
        .open(&address, here())
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
    assert!(!format!("{e} {e:?}").contains("wrong-one"));
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_server_with_tls_is_reached_by_whoever_trusts_it() {
    use crate::servers::{Tls, ZkOptions, ZkServer};

    let options = ZkOptions::new().tls(Tls::Server);
    let server = tokio::task::spawn_blocking(|| ZkServer::with(options).unwrap())
        .await
        .unwrap();
    let port = server.tls_address().unwrap().port();
    let root = server.certificates().unwrap();
    let pem = std::fs::read_to_string(root.authority()).unwrap();
    let url = format!("zks://localhost:{port}");
    let lock = builder().root_certificate(&pem).open(&url, here()).await.unwrap();
    granted(&lock, &at_once(&key("x", 1, 1), Mode::Exclusive)).await;
    let e = builder().open(&url, here()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
}
