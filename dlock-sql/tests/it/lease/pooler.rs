//! Behind a real PgBouncer in transaction mode, with fewer connections to the server than those who wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dlock_core::spi::{Attempt, Lock, Release, Wake};
use dlock_core::{Client, ErrorKind, Mode, Runtime};
use dlock_sql::lease::Config;

use super::site::*;
use dlock_testkit::{PgBouncer, PoolMode, PostgresServer};

pub(crate) async fn start(mode: PoolMode) -> (PostgresServer, Arc<PgBouncer>) {
    blocking(move || {
        let server = PostgresServer::start()?;
        let pooler = PgBouncer::start(&server, mode, 2)?;
        Ok((server, Arc::new(pooler)))
    })
    .await
}

pub(crate) async fn open(pooler: &PgBouncer, runtime: &Arc<dyn Runtime>) -> Arc<dyn Lock> {
    let config = Config::from_url(&pooler.url()).unwrap();
    let config = config.behind_pooler().connections(8);
    config.connect(runtime.clone()).await.unwrap()
}

#[test]
fn a_hundred_of_two_clients_wait_on_two_sessions() {
    for on in [On::Tokio, On::Smol] {
        run(on, async |runtime| {
            let (_server, pooler) = start(PoolMode::Transaction).await;
            let (first, second) = (open(&pooler, &runtime).await, open(&pooler, &runtime).await);
            let clients = [first, second].map(|lock| {
                let builder = Client::builder(lock, runtime.clone());
                builder.build().unwrap()
            });
            let inside = AtomicU32::new(0);
            let all = (0..100).map(|n: usize| {
                let (client, inside) = (&clients[n % 2], &inside);
                async move {
                    let guard = client.lock("x").unwrap().acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    smol::future::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            });
            futures::future::join_all(all).await;
            for client in &clients {
                client.close().await.unwrap();
            }
        });
    }
}

#[test]
fn a_pooler_that_ends_all_connections_costs_no_hold() {
    run(On::Tokio, async |runtime| {
        let (_server, pooler) = start(PoolMode::Transaction).await;
        let lock = open(&pooler, &runtime).await;
        let a = ask("x");
        let token = granted(&*lock, &a).await.token;
        let b = join("x", Mode::Exclusive);
        let Attempt::Queued(wait) = lock.attempt(&b).await.unwrap() else {
            panic!()
        };
        assert!(matches!(wait.wake, Wake::Poll { .. }), "nobody can listen there");
        let again = pooler.clone();
        blocking(move || again.restart()).await;
        let known = within(ms(20_000), async {
            loop {
                match lock.attempt(&a).await {
                    Ok(Attempt::Granted(grant)) => return grant.token,
                    Ok(other) => panic!("{other:?}"),
                    Err(e) => assert!(
                        matches!(e.kind(), ErrorKind::Unknown | ErrorKind::Unavailable),
                        "{e}"
                    ),
                }
            }
        });
        assert_eq!(known.await, token);
        lock.release(&a.key, Release::Now).await.unwrap();
        assert!(until_asked(&*lock, &b).await > token.unwrap());
    });
}

#[test]
fn an_undeclared_pooler_is_found_at_connect() {
    run(On::Tokio, async |runtime| {
        let (_server, pooler) = start(PoolMode::Transaction).await;
        let e = Config::from_url(&pooler.url())
            .unwrap()
            .connect(runtime)
            .await
            .err()
            .unwrap();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert!(e.to_string().contains("Config::behind_pooler"), "{e}");
    });
}
