//! The same on a server of etcd 3.5.

use dlock_core::spi::{Fencing as _, Lock as _, Release};
use dlock_core::{Access, Change, LockName, Severity};
use dlock_testkit::{EtcdOptions, etcd_35};
use futures::StreamExt as _;

use crate::{SESSION, X, at_once, brief, client_of, granted, key, open, queued, turn, waits, with};

#[tokio::test]
async fn a_server_of_3_5_does_as_one_of_3_4() {
    let server = with(EtcdOptions::new().program(&etcd_35().unwrap())).await;
    let (a, b, dies) = (open(&server).await, open(&server).await, brief(&server).await);
    let (first, second, third) = (key("x", 1, 1), key("x", 2, 1), key("x", 2, 2));
    let mut changes = b.watch().unwrap().watch(&first.name).await.unwrap();
    changes.next().await.unwrap().unwrap();
    let grant = granted(&a, &at_once(&first, X)).await;
    let mut wait = waits(&b, &queued(&second, X)).await;
    a.release(&first, Release::Now).await.unwrap();
    let next = turn(&mut wait).await;
    assert!(next.token > grant.token);
    b.release(&second, Release::Now).await.unwrap();
    // Its lease runs out under it.
    let client = client_of(dies);
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    client.abort();
    let mut wait = waits(&b, &queued(&third, X)).await;
    let from = std::time::Instant::now();
    turn(&mut wait).await;
    assert!(!guard.is_valid());
    assert!(from.elapsed() < SESSION * 2, "{:?}", from.elapsed());
    let mut told = Vec::new();
    for _ in 0..7 {
        told.push(match changes.next().await.unwrap().unwrap() {
            Change::Granted(_) => "granted",
            Change::Released { .. } => "released",
            Change::Expired { .. } => "expired",
            other => panic!("{other:?}"),
        });
    }
    let expected = [
        "granted", "released", "granted", "released", "granted", "expired", "granted",
    ];
    assert_eq!(told, expected);
    let (report, gate) = (LockName::new("report").unwrap(), a.gate().unwrap());
    let [old, new] = [grant.token.unwrap(), next.token.unwrap()];
    assert!(gate.write(&report, new, b"new").await.unwrap().is_admitted());
    assert!(!gate.write(&report, old, b"old").await.unwrap().is_admitted());
    assert!(
        gate.admit(&report, new, Access::Exclusive)
            .await
            .unwrap()
            .is_admitted()
    );
    assert_eq!(gate.read(&report).await.unwrap().unwrap().value, b"new");
    let findings = a.diagnose().await.unwrap();
    let server = findings.iter().find(|f| f.about == "server").unwrap();
    assert!(
        server.severity == Severity::Good && server.text.contains("etcd 3.5."),
        "{server:?}"
    );
}
