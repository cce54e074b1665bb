//! Users and what they may do.

use std::time::Duration;

use dlock_core::spi::{Abandoned, Fencing as _, Lock as _, Release, RenewItem, RenewOutcome, RwLock as _};
use dlock_core::{Access, Error, ErrorKind, LockName, Mode, Result};
use dlock_etcd::{Config, EtcdLock};
use dlock_testkit::{EtcdOptions, EtcdServer};
use futures::StreamExt as _;

use crate::{
    LONG, X, at_once, client_of, config, etcdctl, granted, granted_in_the_end, hands, here, key, queued,
    turn, waits, with,
};

const USER: [&str; 2] = ["app", "hunter2"];

fn options() -> EtcdOptions {
    EtcdOptions::new().user(USER[0], USER[1], "dlock")
}

async fn enter(server: &EtcdServer) -> Result<EtcdLock> {
    config(server.address())
        .login(USER[0], USER[1])
        .connect(here())
        .await
}

fn is_without_secrets(e: &Error) {
    let text = format!("{e} {e:?}");
    assert!(!text.contains("hunter2") && !text.contains("wrong-one"), "{text}");
}

async fn refused(config: Config) -> Error {
    let e = config.connect(here()).await.unwrap_err();
    is_without_secrets(&e);
    e
}

/// All that a client does, once each.
async fn everything(lock: &EtcdLock) {
    let (a, b, c) = (key("x", 1, 1), key("x", 1, 2), key("x", 1, 3));
    let watch = lock.watch().unwrap();
    let mut changes = watch.watch(&a.name).await.unwrap();
    let grant = granted(lock, &queued(&a, X).with_owner("label".into())).await;
    let mut reader = waits(lock, &queued(&b, Mode::READER)).await;
    let given_up = waits(lock, &queued(&c, X)).await;
    drop(given_up);
    let items = [
        RenewItem::lease(a.clone(), LONG),
        RenewItem::queued(b.clone(), LONG),
    ];
    let renewed = lock.renew().unwrap().renew(&items).await;
    assert!(
        matches!(
            renewed[..],
            [RenewOutcome::Renewed(_), RenewOutcome::Queued { .. }]
        ),
        "{renewed:?}"
    );
    let abandoned = lock.abandon(std::slice::from_ref(&c)).await.remove(0);
    assert_eq!(abandoned.unwrap(), Abandoned::Withdrawn);
    lock.convert(&a, Mode::READER).await.unwrap();
    turn(&mut reader).await;
    lock.release(&a, Release::Now).await.unwrap();
    let permit = Mode::permit(2.try_into().unwrap());
    granted(lock, &at_once(&key("permits", 1, 4), permit)).await;
    assert_eq!(watch.inspect(&b.name).await.unwrap().holders.len(), 1);
    assert_eq!(watch.force_release(&b.name).await.unwrap(), 1);
    assert_eq!(watch.list(b"per", None).await.unwrap().names.len(), 1);
    let report = LockName::new("report").unwrap();
    let gate = lock.gate().unwrap();
    let token = grant.token.unwrap();
    assert!(gate.write(&report, token, b"value").await.unwrap().is_admitted());
    let admitted = gate.admit(&report, token, Access::Shared).await.unwrap();
    assert!(admitted.is_admitted());
    assert_eq!(gate.read(&report).await.unwrap().unwrap().value, b"value");
    for _ in 0..3 {
        changes.next().await.unwrap().unwrap();
    }
    lock.diagnose().await.unwrap();
}

#[tokio::test]
async fn a_role_for_the_prefix_alone_is_enough_for_everything() {
    let server = with(options()).await;
    let lock = enter(&server).await.unwrap();
    everything(&lock).await;
    let url = format!("etcd://{}:{}@{}/dlock", USER[0], USER[1], server.address());
    let by_url = Config::from_url(&url).unwrap().connect(here()).await.unwrap();
    granted(&by_url, &at_once(&key("x", 2, 1), X)).await;
    by_url.close().await.unwrap();
    lock.close().await.unwrap();
    assert_eq!(etcdctl(&server, &["lease", "list"]).await, "found 0 leases");
}

/// The message says what is missing, and nobody is let in who could not do all of it.
#[tokio::test]
async fn a_role_for_less_is_refused_when_a_client_begins() {
    let server = with(
        EtcdOptions::new()
            .user("app", "hunter2", "dlock/")
            .user("other", "hunter2", "other"),
    )
    .await;
    for name in ["app", "other"] {
        let e = refused(config(server.address()).login(name, "hunter2")).await;
        assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
        let text = e.to_string();
        assert!(text.contains("all keys with the prefix"), "{text}");
    }
    assert_eq!(etcdctl(&server, &["lease", "list"]).await, "found 0 leases");
}

#[tokio::test]
async fn a_right_that_is_taken_away_later_is_missed_by_name() {
    let server = with(options()).await;
    let lock = enter(&server).await.unwrap();
    granted(&lock, &at_once(&key("x", 1, 1), X)).await;
    etcdctl(
        &server,
        &["role", "revoke-permission", "--prefix=true", "app", "dlock"],
    )
    .await;
    let e = lock.attempt(&at_once(&key("y", 1, 2), X)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
    is_without_secrets(&e);
    etcdctl(
        &server,
        &[
            "role",
            "grant-permission",
            "--prefix=true",
            "app",
            "readwrite",
            "dlock",
        ],
    )
    .await;
    granted(&lock, &at_once(&key("y", 1, 2), X)).await;
}

#[tokio::test]
async fn a_wrong_user_or_password_is_told_from_a_server_that_is_away() {
    let server = with(options()).await;
    let at = || config(server.address());
    for wrong in [
        at().login("app", "wrong-one"),
        at().login("nobody", "wrong-one"),
        at(),
    ] {
        let e = refused(wrong).await;
        assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
        assert!(e.to_string().contains("password"), "{e}");
    }
    let open = crate::start().await;
    let e = refused(config(open.address()).login("app", "hunter2")).await;
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
    assert!(e.to_string().contains("authentication disabled"), "{e}");
}

/// They live for a second without being used, and renewals and watches do not use them.
#[tokio::test]
async fn tokens_that_expire_do_not_disturb() {
    let server = with(options().token_ttl(1)).await;
    let lock = enter(&server).await.unwrap();
    let (lease, client) = (lock.lease_id(), client_of(lock.clone()));
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    let mut wait = waits(&lock, &queued(&key("x", 1, 1), X)).await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    // Each of these comes first after a pause.
    client.lock("y").unwrap().acquire().await.unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    client.inspect(&LockName::new("x").unwrap()).await.unwrap();
    assert!(guard.is_valid(), "{:?}", guard.loss());
    guard.release().await.unwrap();
    turn(&mut wait).await;
    assert_eq!(lock.lease_id(), lease);
}

/// A server that is started again knows no token any more, and a change of users makes them old.
#[tokio::test]
async fn a_user_is_known_again_by_a_server_that_forgot_it() {
    let server = with(options()).await;
    let lock = enter(&server).await.unwrap();
    let (lease, k) = (lock.lease_id(), key("x", 1, 1));
    let before = granted(&lock, &at_once(&k, X)).await;
    hands(&server, |s| {
        s.crash()?;
        s.start_again()
    })
    .await;
    let again = granted_in_the_end(&lock, &at_once(&k, X)).await;
    assert_eq!((again.token, lock.lease_id()), (before.token, lease));
    etcdctl(&server, &["user", "add", "new:of-no-matter"]).await;
    etcdctl(&server, &["user", "grant-role", "new", "app"]).await;
    granted(&lock, &at_once(&key("y", 1, 2), X)).await;
    lock.release(&k, Release::Now).await.unwrap();
}

#[cfg(feature = "tls")]
mod tls {
    use std::sync::Arc;

    use super::*;
    use dlock_testkit::{RedisOptions, RedisServer, Tls};

    fn text(file: std::path::PathBuf) -> String {
        std::fs::read_to_string(file).unwrap()
    }

    fn at(server: &Arc<EtcdServer>) -> Config {
        let address = format!("localhost:{}", server.tls_address().unwrap().port());
        Config::new(&address).timeout(LONG).session_timeout(LONG)
    }

    fn trusts(server: &Arc<EtcdServer>) -> Config {
        at(server).root_certificate(&text(server.certificates().unwrap().authority()))
    }

    #[tokio::test]
    async fn tls_needs_a_trusted_server() {
        let server = with(options().tls(Tls::Server)).await;
        let login = |config: Config| config.login(USER[0], USER[1]);
        let lock = login(trusts(&server)).connect(here()).await.unwrap();
        everything(&lock).await;
        let other = dlock_testkit::Certificates::new().unwrap();
        for stranger in [
            // The certificates that the system trusts.
            at(&server).tls(),
            at(&server).root_certificate(&text(other.authority())),
            // Without TLS, where TLS is spoken.
            at(&server),
        ] {
            let e = refused(login(stranger.timeout(LONG / 8))).await;
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        }
        let e = refused(login(trusts(&server)).login("app", "wrong-one")).await;
        assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
    }

    /// The login is not sent to it.
    #[tokio::test]
    async fn a_server_that_speaks_no_http_2_is_named() {
        let options = RedisOptions::new().tls(Tls::Server);
        let server = RedisServer::with(options).unwrap();
        let address = format!("localhost:{}", server.tls_address().unwrap().port());
        let authority = text(server.certificates().unwrap().authority());
        let config = Config::new(&address).root_certificate(&authority);
        let e = refused(config.login(USER[0], USER[1])).await;
        let why = std::error::Error::source(&e).map(ToString::to_string);
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        assert!(why.is_some_and(|why| why.contains("no HTTP/2")), "{e}");
    }

    #[tokio::test]
    async fn a_client_certificate_is_accepted() {
        let server = with(EtcdOptions::new().tls(Tls::Both)).await;
        let made = server.certificates().unwrap();
        let (certificate, key_file) = made.client();
        let own = trusts(&server).client_certificate(&text(certificate.clone()), &text(key_file.clone()));
        let lock = own.connect(here()).await.unwrap();
        everything(&lock).await;
        let not_its_key = text(made.authority());
        let mixed = trusts(&server).client_certificate(&not_its_key, &text(key_file.clone()));
        assert_eq!(mixed.check().unwrap_err().kind(), ErrorKind::InvalidInput);
        let url = format!(
            "etcds://localhost:{}/dlock?ca={}&cert={}&key={}",
            server.tls_address().unwrap().port(),
            made.authority().display(),
            certificate.display(),
            key_file.display()
        );
        let by_url = Config::from_url(&url).unwrap().connect(here()).await.unwrap();
        granted(&by_url, &at_once(&key("x", 2, 1), X)).await;
        let e = refused(trusts(&server).timeout(LONG / 8)).await;
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    }

    /// The connection is broken under it, and made again with all of that.
    #[tokio::test]
    async fn a_connection_with_tls_is_made_again() {
        let server = with(options().tls(Tls::Server)).await;
        let proxy = dlock_testkit::Proxy::start(server.tls_address().unwrap()).unwrap();
        let authority = text(server.certificates().unwrap().authority());
        let config = config(proxy.address()).root_certificate(&authority);
        let lock = config.login(USER[0], USER[1]).connect(here()).await.unwrap();
        let (lease, k) = (lock.lease_id(), key("x", 1, 1));
        let before = granted(&lock, &at_once(&k, X)).await;
        for _ in 0..3 {
            proxy.cut();
            let again = granted_in_the_end(&lock, &at_once(&k, X)).await;
            assert_eq!((again.token, lock.lease_id()), (before.token, lease));
        }
    }
}

#[cfg(feature = "tls")]
#[test]
fn an_unreadable_certificate_is_refused_before_connecting() {
    let garbage = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
    let e = dlock_etcd::Config::new("localhost")
        .root_certificate(garbage)
        .check()
        .unwrap_err();
    assert_eq!(e.kind(), dlock_core::ErrorKind::InvalidInput, "{e}");
    assert!(e.to_string().contains("the root certificate"), "{e}");
    // What no certificate can name.
    let e = dlock_etcd::Config::new("etcd-a,etcd-b-")
        .tls()
        .check()
        .unwrap_err();
    assert!(e.to_string().contains("etcd-b-"), "{e}");
}
