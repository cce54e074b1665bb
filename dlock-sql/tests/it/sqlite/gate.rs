use dlock_core::combinators::Namespaced;
use dlock_core::spi::Lock;
use dlock_core::{Access, Admission, FenceGate};
use dlock_core::{LockName, Token};
use dlock_sql::direct::{Tables, gate};
use dlock_sql::sqlite::{Config, SqliteLock};
use sqlx::Connection as _;

use super::support::*;

fn token(n: u64) -> Token {
    Token::new(n).unwrap()
}

fn resource() -> LockName {
    LockName::new("stock").unwrap()
}

fn gate_of(lock: &SqliteLock) -> &dyn FenceGate {
    let part: &dyn Lock = lock;
    part.fencing().unwrap().gate().unwrap()
}

#[test]
fn it_decides_as_the_rule_does() {
    everywhere(|lock| async move {
        crate::direct::gate::decides_as_the_rule_does(gate_of(&lock)).await;
    });
}

#[test]
fn of_concurrent_writes_the_largest_token_stands() {
    everywhere(|lock| async move {
        let (gate, stock) = (gate_of(&lock), resource());
        let writes = (1..=40u64).map(|n| gate.write(&stock, token((n * 17) % 41), &[]));
        futures::future::join_all(writes).await;
        let kept = gate.read(&stock).await.unwrap().unwrap();
        assert_eq!(kept.max_exclusive, Some(token(40)));
    });
}

#[test]
fn the_gate_remembers_across_a_restart() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
        assert!(
            gate_of(&lock)
                .write(&resource(), token(9), b"v")
                .await
                .unwrap()
                .is_admitted()
        );
        lock.close().await.unwrap();
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        let late = gate_of(&lock)
            .admit(&resource(), token(8), Access::Shared)
            .await
            .unwrap();
        assert_eq!(late, Admission::Refused { highest: token(9) });
    });
}

#[test]
fn inside_a_transaction_the_check_stands_or_falls_with_it() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        let (tables, stock, mut conn) = (Tables::default(), resource(), stranger(&files).await);
        for (n, commit) in [(3, true), (5, false)] {
            let mut tx = conn.begin_with("BEGIN IMMEDIATE").await.unwrap();
            let seen = gate::admit_in(&mut tx, &tables, &stock, token(n), Access::Exclusive)
                .await
                .unwrap();
            assert!(seen.is_admitted());
            if commit {
                tx.commit().await.unwrap();
            } else {
                tx.rollback().await.unwrap();
            }
        }
        // The standalone gate shares what was committed, and not what was rolled back.
        let seen = gate_of(&lock)
            .admit(&stock, token(2), Access::Exclusive)
            .await
            .unwrap();
        assert_eq!(seen, Admission::Refused { highest: token(3) });
        assert!(
            gate_of(&lock)
                .write(&stock, token(4), b"v")
                .await
                .unwrap()
                .is_admitted()
        );
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let seen = gate::admit_in(&mut tx, &tables, &stock, token(3), Access::Exclusive)
            .await
            .unwrap();
        assert_eq!(seen, Admission::Refused { highest: token(4) });
    });
}

#[test]
fn in_a_namespace_the_gates_share_the_stored_name() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        let inside = Namespaced::new(std::sync::Arc::new(lock), "shop").unwrap();
        let part: &dyn Lock = &inside;
        let own = part.fencing().unwrap().gate().unwrap();
        let stored = Namespaced::stored_name("shop", &resource()).unwrap();
        let mut conn = stranger(&files).await;
        let tables = Tables::default();
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let seen = gate::admit_in(&mut tx, &tables, &stored, token(5), Access::Exclusive).await;
        assert!(seen.unwrap().is_admitted());
        tx.commit().await.unwrap();
        let seen = own.admit(&resource(), token(4), Access::Exclusive).await;
        assert_eq!(seen.unwrap(), Admission::Refused { highest: token(5) });
        assert!(
            own.write(&resource(), token(6), b"v")
                .await
                .unwrap()
                .is_admitted()
        );
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let seen = gate::admit_in(&mut tx, &tables, &stored, token(5), Access::Exclusive).await;
        assert_eq!(seen.unwrap(), Admission::Refused { highest: token(6) });
    });
}
