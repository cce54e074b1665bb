//! The primary dies, and its standby takes its place and address.

use std::sync::Arc;

use dlock_core::spi::{Attempt, Lock, Release, Released, RenewItem, RenewOutcome};
use dlock_core::{Client, ErrorKind, LockName, LockOptions, Mode, Runtime};
use dlock_sql::lease::postgres::PostgresLease;

use super::faults::{in_the_end, survives, token_of};
use super::site::*;
use crate::servers::{Following, PostgresPair};

async fn start(following: Following) -> Arc<PostgresPair> {
    apart(move || PostgresPair::start(following).map(Arc::new)).await
}

async fn open(url: &str, runtime: &Arc<dyn Runtime>) -> dlock_core::Result<Arc<dyn Lock>> {
    let builder = PostgresLease::builder(url)?;
    Ok(Arc::new(builder.open(runtime.clone()).await?))
}

async fn fail_over(pair: &Arc<PostgresPair>) {
    let pair = Arc::clone(pair);
    apart(move || pair.fail_over()).await;
}

#[test]
fn a_lease_outlives_a_fail_over_to_a_standby_that_is_in_step() {
    run(On::Tokio, async |runtime| {
        let pair = start(Following::InStep).await;
        let lock = open(&pair.url(), &runtime).await.unwrap();
        survives(&*lock, async || fail_over(&pair).await).await;
    });
}

#[test]
fn guards_and_those_who_wait_go_on_through_a_fail_over() {
    for on in [On::Tokio, On::Smol] {
        run(on, async |runtime| {
            let pair = start(Following::InStep).await;
            let mut clients = Vec::new();
            for _ in 0..3 {
                let lock = open(&pair.url(), &runtime).await.unwrap();
                let client = Client::builder(lock, runtime.clone());
                let client = client.defaults(LockOptions::new().ttl(ms(15_000)));
                clients.push(client.build().unwrap());
            }
            let [x, waits, tries] = [0, 1, 2].map(|n: usize| clients[n].lock("x").unwrap());
            let held = x.acquire().await.unwrap();
            let mut waiting = Box::pin(waits.acquire());
            let looks = open(&pair.url(), &runtime).await.unwrap();
            let watch = looks.watch_part().unwrap();
            let name = LockName::new("x").unwrap();
            let queued = async {
                while watch.inspect(&name).await.unwrap().waiting == 0 {
                    smol::Timer::after(ms(20)).await;
                }
            };
            futures::future::select(&mut waiting, Box::pin(queued)).await;
            futures::future::select(&mut waiting, Box::pin(fail_over(&pair))).await;
            // Until the first one's ttl has been over and it has been renewed by the new primary.
            let begun = std::time::Instant::now();
            while begun.elapsed() < ms(6_000) {
                match tries.try_acquire().await {
                    Ok(taken) => assert!(taken.is_none(), "two hold it"),
                    Err(e) => assert!(e.is_retryable() || e.kind() == ErrorKind::Unknown, "{e:?}"),
                }
                smol::Timer::after(ms(100)).await;
            }
            assert!(held.is_valid(), "it was not renewed");
            let first = held.token();
            held.release().await.unwrap();
            let next = within(ms(30_000), waiting).await.unwrap();
            assert!(next.token() > first);
            next.release().await.unwrap();
            for client in clients {
                client.close().await.unwrap();
            }
        });
    }
}

/// Replication that nobody waits for: what the docs say of it.
#[test]
fn a_standby_that_is_behind_forgets_a_grant_and_goes_on_above_its_token() {
    run(On::Tokio, async |runtime| {
        let pair = start(Following::Behind).await;
        let lock = open(&pair.url(), &runtime).await.unwrap();
        let part = Arc::clone(&pair);
        apart(move || part.catch_up().and_then(|()| part.part())).await;
        let (a, b) = (ask("x"), ask("x"));
        let forgotten = granted(&*lock, &a).await.token.unwrap();
        fail_over(&pair).await;
        let next = token_of(&*lock, &b).await;
        assert!(next > forgotten, "{next:?} {forgotten:?}");
        // The first one is told when it asks, and what it writes is refused.
        let outcome = renew(&*lock, RenewItem::lease(a.key.clone(), TTL)).await;
        assert!(matches!(outcome, RenewOutcome::Gone), "{outcome:?}");
        let released = lock.release(&a.key, Release::Now).await.unwrap();
        assert_eq!(released, Released::NotHeld);
        let gate = lock.fencing_part().unwrap().gate().unwrap();
        let stock = LockName::new("stock").unwrap();
        assert!(gate.write(&stock, next, b"next").await.unwrap().is_admitted());
        assert!(
            !gate
                .write(&stock, forgotten, b"late")
                .await
                .unwrap()
                .is_admitted()
        );
        let answer = lock.attempt(&ask("x")).await.unwrap();
        assert!(matches!(answer, Attempt::Held(_)), "{answer:?}");
    });
}

#[test]
fn a_standby_takes_no_locks() {
    run(On::Tokio, async |runtime| {
        let pair = start(Following::Behind).await;
        let lock = open(&pair.url(), &runtime).await.unwrap();
        let before = Arc::clone(&pair);
        apart(move || before.catch_up()).await;
        let at_standby = async {
            let lock = open(&pair.second().url(), &runtime).await?;
            lock.attempt(&ask("x").with_mode(Mode::READER)).await
        };
        let e = at_standby.await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        assert!(e.to_string().contains("standby"), "{e}");
        // The same address, when it is the primary.
        fail_over(&pair).await;
        in_the_end(async || lock.attempt(&ask("x")).await).await;
    });
}
