//! Users and what they may do.

use dlock_core::spi::{Lock as _, Release, Released, RenewItem, RenewOutcome};
use dlock_core::{ErrorKind, Mode};
use dlock_zk::{Access, ZkLock};

use crate::{LONG, SESSION, at_once, config, granted, here, key, start, until, with};
use dlock_testkit::{Proxy, ZkOptions};

#[tokio::test]
async fn nodes_of_the_creator_alone_are_for_its_user_alone() {
    let server = start().await;
    let address = server.address().to_string();
    let own = || config().access(Access::Creator);
    // Nobody yet knows who that would be.
    let nobody = own().servers(&address).connect(here()).await.unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::PermissionDenied, "{nobody}");
    let url = format!("zk://app:hunter2@{address}");
    let by_url = dlock_zk::Config::from_url(&url).unwrap();
    let by_url = by_url.session_timeout(LONG).timeout(LONG).access(Access::Creator);
    let a = by_url.connect(here()).await.unwrap();
    let b = own()
        .login("app", "hunter2")
        .servers(&address)
        .connect(here())
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
    let stranger = config()
        .login("app", "other")
        .servers(&address)
        .connect(here())
        .await
        .unwrap_err();
    assert_eq!(stranger.kind(), ErrorKind::PermissionDenied, "{stranger}");
    assert!(!format!("{stranger} {stranger:?}").contains("other"));
}

/// The line can be made, and no node in it: a server would keep such a container for ever.
#[tokio::test]
async fn a_queue_without_create_rights_is_removed() {
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
    let lock = config()
        .access(may_not_create)
        .servers(&address)
        .connect(here())
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

/// A renewal is a write to the session's own node.
#[tokio::test]
async fn an_access_list_without_the_right_to_renew_is_refused_at_open() {
    let server = start().await;
    let opened = config()
        .access(Access::List("world:anyone:cdr".into()))
        .servers(&server.address().to_string())
        .connect(here())
        .await;
    assert_eq!(opened.err().map(|e| e.kind()), Some(ErrorKind::PermissionDenied));
}

#[cfg(feature = "sasl")]
#[tokio::test]
async fn a_sasl_user_is_let_in_and_one_with_a_wrong_password_is_not() {
    let server = with(ZkOptions::new().user("app", "hunter2")).await;
    let address = server.address().to_string();
    let own = || config().access(Access::Creator);
    let lock = own()
        .sasl_login("app", "hunter2")
        .servers(&address)
        .connect(here())
        .await
        .unwrap();
    granted(&lock, &at_once(&key("x", 1, 1), Mode::Exclusive)).await;
    let e = own()
        .sasl_login("app", "wrong-one")
        .servers(&address)
        .connect(here())
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
    assert!(!format!("{e} {e:?}").contains("wrong-one"));
}

/// Nobody comes in without SASL there.
#[cfg(feature = "sasl")]
#[tokio::test]
async fn a_missing_sasl_login_is_reported() {
    let options = ZkOptions::new()
        .user("app", "hunter2")
        .line("sessionRequireClientSASLAuth=true");
    let server = with(options).await;
    let address = server.address().to_string();
    let e = config().servers(&address).connect(here()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
    let own = config().sasl_login("app", "hunter2");
    let lock = own.servers(&address).connect(here()).await.unwrap();
    granted(&lock, &at_once(&key("x", 1, 1), Mode::Exclusive)).await;
}

/// It lost its session, and the servers let it in no more; and when they do, that is no reason any more.
#[cfg(feature = "sasl")]
#[tokio::test]
async fn why_there_is_no_session_is_told_as_long_as_it_is_so() {
    use std::sync::atomic::{AtomicU64, Ordering};

    use dlock_core::spi::Signal;
    use futures::StreamExt as _;

    let options = ZkOptions::new().user("app", "hunter2");
    let strict = with(options.line("sessionRequireClientSASLAuth=true")).await;
    let server = start().await;
    let proxy = Proxy::start(server.address()).unwrap();
    let address = proxy.address().to_string();
    let lock = config().servers(&address).connect(here()).await.unwrap();
    crate::expire(&server, lock.session_id().unwrap()).await;
    until("it has ended", LONG, async || lock.session_id().is_none()).await;
    proxy.lead_to(strict.address());
    let n = AtomicU64::new(0);
    let kind = async || {
        let k = key("x", 1, n.fetch_add(1, Ordering::SeqCst));
        let asked = lock.attempt(&at_once(&k, Mode::Exclusive)).await;
        asked.err().map(|e| e.kind())
    };
    until("it is told", LONG, async || {
        kind().await == Some(ErrorKind::PermissionDenied)
    })
    .await;
    proxy.lead_to(server.address());
    until("it is let in", LONG, async || kind().await.is_none()).await;
    // The session is there, and no connection any more.
    let mut signals = lock.signals();
    proxy.lead_to(([127, 0, 0, 1], 9).into());
    let told = tokio::time::timeout(LONG, signals.next()).await.unwrap();
    assert!(matches!(told, Some(Signal::Doubt)), "{told:?}");
    assert_eq!(kind().await, Some(ErrorKind::Unavailable));
}

/// A connection does not remember who had the one before.
#[tokio::test]
async fn a_user_is_known_again_when_the_connection_broke() {
    let server = start().await;
    let proxy = Proxy::start(server.address()).unwrap();
    let own = config().access(Access::Creator).login("app", "hunter2");
    let lock = own
        .servers(&proxy.address().to_string())
        .connect(here())
        .await
        .unwrap();
    goes_on(&lock, &proxy).await;
}

/// Cuts its connection; what only its user may do is done in the same session after it.
async fn goes_on(lock: &ZkLock, proxy: &Proxy) {
    let (session, held) = (lock.session_id(), key("x", 1, 1));
    granted(lock, &at_once(&held, Mode::Exclusive)).await;
    proxy.cut();
    until("it is connected again", LONG, async || {
        let renewed = lock
            .renew()
            .unwrap()
            .renew(&[RenewItem::lease(held.clone(), LONG)])
            .await;
        matches!(renewed[..], [RenewOutcome::Renewed(_)])
    })
    .await;
    assert_eq!(
        lock.release(&held, Release::Now).await.unwrap(),
        Released::Released
    );
    granted(lock, &at_once(&key("x", 1, 2), Mode::Exclusive)).await;
    assert_eq!(lock.session_id(), session);
}

#[cfg(feature = "tls")]
mod tls {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;
    use dlock_testkit::{Tls, ZkServer};

    fn authority(server: &ZkServer) -> String {
        let made = server.certificates().unwrap();
        std::fs::read_to_string(made.authority()).unwrap()
    }

    fn at(server: &ZkServer) -> String {
        format!("localhost:{}", server.tls_address().unwrap().port())
    }

    /// Another address of this machine, from which all goes there.
    fn elsewhere(to: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.2:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let server = TcpStream::connect(to).unwrap();
                let ways = [(&client, &server), (&server, &client)];
                for (from, to) in ways.map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap())) {
                    std::thread::spawn(move || std::io::copy(&mut &from, &mut &to));
                }
            }
        });
        address
    }

    #[tokio::test]
    async fn tls_needs_a_trusted_server() {
        let server = with(ZkOptions::new().tls(Tls::Server)).await;
        let trusts = || config().root_certificate(&authority(&server));
        let lock = trusts().servers(&at(&server)).connect(here()).await.unwrap();
        granted(&lock, &at_once(&key("x", 1, 1), Mode::Exclusive)).await;
        let stranger = config().tls().timeout(SESSION);
        let e = stranger.servers(&at(&server)).connect(here()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        // The same server at an address that is not in its certificate.
        let other = elsewhere(server.tls_address().unwrap()).to_string();
        let e = trusts()
            .timeout(SESSION)
            .servers(&other)
            .connect(here())
            .await
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        // Without TLS, where TLS is spoken.
        let e = config()
            .timeout(SESSION)
            .servers(&at(&server))
            .connect(here())
            .await
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    }

    #[tokio::test]
    async fn a_client_certificate_is_accepted() {
        let server = with(ZkOptions::new().tls(Tls::Both)).await;
        let trusts = || config().root_certificate(&authority(&server));
        let (certificate, key_file) = server.certificates().unwrap().client();
        let [certificate, key_file] =
            [certificate, key_file].map(|file| std::fs::read_to_string(file).unwrap());
        let lock = trusts().client_certificate(&certificate, &key_file);
        let lock = lock.servers(&at(&server)).connect(here()).await.unwrap();
        granted(&lock, &at_once(&key("x", 1, 1), Mode::Exclusive)).await;
        let e = trusts()
            .timeout(SESSION)
            .servers(&at(&server))
            .connect(here())
            .await;
        assert_eq!(e.unwrap_err().kind(), ErrorKind::Unavailable);
    }

    /// The connection is broken under it, and made again with all of that.
    #[cfg(feature = "sasl")]
    #[tokio::test]
    async fn a_user_of_tls_and_sasl_is_known_again_after_a_reconnect() {
        let server = with(ZkOptions::new().tls(Tls::Server).user("app", "hunter2")).await;
        let proxy = Proxy::start(server.tls_address().unwrap()).unwrap();
        let own = config()
            .root_certificate(&authority(&server))
            .sasl_login("app", "hunter2")
            .access(Access::Creator);
        let at = format!("localhost:{}", proxy.address().port());
        let lock = own.servers(&at).connect(here()).await.unwrap();
        goes_on(&lock, &proxy).await;
    }
}
