//! By TLS.

use dlock_core::ErrorKind;

use crate::{client_of, config, here};
use dlock_testkit::{RedisOptions, RedisServer, Tls};

fn url(server: &RedisServer) -> String {
    format!("rediss://localhost:{}", server.tls_address().unwrap().port())
}

#[tokio::test]
async fn a_server_whose_certificate_is_trusted_is_used() {
    let server = RedisServer::with(RedisOptions::new().tls(Tls::Server)).unwrap();
    let ca = std::fs::read(server.certificates().unwrap().authority()).unwrap();
    let lock = config(&url(&server))
        .root_certificate(ca)
        .connect(here())
        .await
        .unwrap();
    let client = client_of(lock);
    let held = client.lock("x").unwrap().acquire().await.unwrap();
    assert!(client.lock("x").unwrap().try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
}

#[tokio::test]
async fn one_whose_certificate_is_not_is_refused() {
    let server = RedisServer::with(RedisOptions::new().tls(Tls::Server)).unwrap();
    let e = config(&url(&server)).connect(here()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
}

#[tokio::test]
async fn a_client_certificate_is_sent() {
    let server = RedisServer::with(RedisOptions::new().tls(Tls::Both)).unwrap();
    let certificates = server.certificates().unwrap();
    let ca = std::fs::read(certificates.authority()).unwrap();
    let nobody = config(&url(&server)).root_certificate(ca.clone());
    nobody.connect(here()).await.unwrap_err();
    let (certificate, key) = certificates.client();
    let (certificate, key) = (std::fs::read(certificate).unwrap(), std::fs::read(key).unwrap());
    let known = config(&url(&server))
        .root_certificate(ca)
        .client_certificate(certificate, key);
    let client = client_of(known.connect(here()).await.unwrap());
    client.lock("x").unwrap().acquire().await.unwrap();
}
