//! Who comes by a URL with TLS and SASL, in a program that may talk to other stores by TLS as well.

use crate::site::{acquired, blocking};
use dlock_testkit::{Tls, ZkOptions, ZkServer};

#[tokio::test(flavor = "multi_thread")]
async fn a_url_connects_with_tls_and_sasl() {
    let options = ZkOptions::new().tls(Tls::Both).user("app", "h&nter/2");
    let server = blocking(|| ZkServer::with(options).unwrap()).await;
    let made = server.certificates().unwrap();
    let (certificate, key) = made.client();
    let url = format!(
        "zks://localhost:{}/apps?access=creator&sasl_user=app&sasl_password=h%26nter%2F2&ca={}&cert={}&key={}\
         &session_timeout=10s&ttl=30s&timeout=20s",
        server.tls_address().unwrap().port(),
        made.authority().display(),
        certificate.display(),
        key.display(),
    );
    let client = dlock::connect(&url).await.unwrap();
    let guard = acquired(&client).await;
    guard.release().await.unwrap();
    let wrong = url.replace("h%26nter%2F2", "wrong-one");
    // The server closes the connection on which it refuses. Where the end of that is seen before the refusal,
    // nobody knows why: it is tried again.
    let mut tries = 0..5;
    let e = loop {
        let e = dlock::connect(&wrong).await.unwrap_err();
        assert!(!format!("{e} {e:?}").contains("wrong-one"));
        if e.kind() != dlock::ErrorKind::Unavailable || tries.next().is_none() {
            break e;
        }
    };
    assert_eq!(e.kind(), dlock::ErrorKind::PermissionDenied, "{e}");
}
