//! The primary dies, and its standby takes its place and address.

use std::sync::Arc;

use dlock_core::spi::{Attempt, Lock, Release, Released, RenewItem, RenewOutcome};
use dlock_core::{Client, ErrorKind, LockName, LockOptions, Mode, Runtime};
use dlock_sql::lease::Config;
use futures::FutureExt as _;
use futures::channel::oneshot;

use super::faults::{survives, token_of};
use super::server::{BOTH, Kind};
use super::site::*;
use dlock_testkit::{Following, MariaDbPair, PostgresPair};

#[derive(Clone)]
enum Pair {
    Postgres(Arc<PostgresPair>),
    MariaDb(Arc<MariaDbPair>),
}

impl Pair {
    async fn start(kind: Kind, following: Following) -> Self {
        blocking(move || {
            Ok(match kind {
                Kind::Postgres => Self::Postgres(PostgresPair::start(following)?.into()),
                Kind::MariaDb => Self::MariaDb(MariaDbPair::start(following)?.into()),
            })
        })
        .await
    }

    /// At the address of the primary, whichever it is.
    async fn open(&self, runtime: &Arc<dyn Runtime>) -> Arc<dyn Lock> {
        let url = match self {
            Self::Postgres(pair) => pair.url(),
            Self::MariaDb(pair) => pair.url(),
        };
        self.open_at(&url, runtime).await.unwrap()
    }

    async fn open_at(&self, url: &str, runtime: &Arc<dyn Runtime>) -> dlock_core::Result<Arc<dyn Lock>> {
        Config::from_url(url)?.connect(runtime.clone()).await
    }

    /// The second one has all that the first has, and hears of nothing more.
    async fn part(&self) {
        let pair = self.clone();
        blocking(move || match pair {
            Self::Postgres(pair) => pair.catch_up().and_then(|()| pair.part()),
            Self::MariaDb(pair) => pair.catch_up().and_then(|()| pair.part()),
        })
        .await;
    }

    async fn fail_over(&self) {
        let pair = self.clone();
        blocking(move || match pair {
            Self::Postgres(pair) => pair.fail_over(),
            Self::MariaDb(pair) => pair.fail_over(),
        })
        .await;
    }
}

#[test]
fn a_lease_outlives_a_fail_over_to_a_standby_that_is_in_step() {
    for kind in BOTH {
        run(On::Tokio, async |runtime| {
            let pair = Pair::start(kind, Following::InStep).await;
            let lock = pair.open(&runtime).await;
            survives(&*lock, async || pair.fail_over().await).await;
        });
    }
}

#[test]
fn guards_and_waiters_survive_a_fail_over() {
    for (kind, on) in [(Kind::Postgres, On::Tokio), (Kind::MariaDb, On::Smol)] {
        run(on, async |runtime| {
            let pair = Pair::start(kind, Following::InStep).await;
            let mut clients = Vec::new();
            for _ in 0..3 {
                let client = Client::builder(pair.open(&runtime).await, runtime.clone());
                // Longer than a fail-over takes on a busy machine, and so is what the first one has of its
                // lease when it begins.
                let client = client.op_timeout(ms(30_000));
                let client = client.defaults(LockOptions::new().ttl(ms(30_000)));
                clients.push(client.build().unwrap());
            }
            let [x, waits, tries] = [0, 1, 2].map(|n: usize| clients[n].lock("x").unwrap());
            let held = x.acquire().await.unwrap();
            let (send, next) = oneshot::channel();
            let waiting = async move {
                // The caller has given up.
                let _ = send.send(waits.acquire().await);
            };
            runtime.spawn(waiting.boxed());
            let looks = pair.open(&runtime).await;
            let watch = looks.watch().unwrap();
            let name = LockName::new("x").unwrap();
            within(ms(30_000), async {
                while watch.inspect(&name).await.unwrap().waiting == 0 {
                    smol::Timer::after(ms(20)).await;
                }
            })
            .await;
            let before = held.deadline();
            pair.fail_over().await;
            let mut next = next.fuse();
            // Until the lease has been renewed by the new primary.
            within(ms(60_000), async {
                while held.deadline() == before {
                    assert!(held.is_valid());
                    match tries.try_acquire().await {
                        Ok(taken) => assert!(taken.is_none(), "two hold it"),
                        Err(e) => assert!(e.is_retryable() || e.kind() == ErrorKind::Unknown, "{e:?}"),
                    }
                    smol::Timer::after(ms(100)).await;
                }
            })
            .await;
            assert!(held.is_valid());
            assert!((&mut next).now_or_never().is_none(), "two hold it");
            let first = held.token();
            held.release().await.unwrap();
            let next = within(ms(60_000), next).await.unwrap().unwrap();
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
fn a_lagging_standby_forgets_a_grant_and_goes_above_its_token() {
    for kind in BOTH {
        run(On::Tokio, async |runtime| {
            let pair = Pair::start(kind, Following::Behind).await;
            let lock = pair.open(&runtime).await;
            pair.part().await;
            let (a, b) = (ask("x"), ask("x"));
            let forgotten = granted(&*lock, &a).await.token.unwrap();
            pair.fail_over().await;
            let next = token_of(&*lock, &b).await;
            assert!(next > forgotten, "{next:?} {forgotten:?}");
            // The first one is told when it asks, and what it writes is refused.
            let outcome = renew(&*lock, RenewItem::lease(a.key.clone(), TTL)).await;
            assert!(matches!(outcome, RenewOutcome::Gone), "{outcome:?}");
            let released = lock.release(&a.key, Release::Now).await.unwrap();
            assert_eq!(released, Released::NotHeld);
            let gate = lock.fencing().unwrap().gate().unwrap();
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
}

#[test]
fn a_standby_of_postgres_takes_no_locks_until_it_is_the_primary() {
    run(On::Tokio, async |runtime| {
        let pair = Pair::start(Kind::Postgres, Following::Behind).await;
        pair.open(&runtime).await;
        pair.part().await;
        let Pair::Postgres(servers) = &pair else { panic!() };
        let at_standby = servers.second().url();
        let refused = async {
            let lock = pair.open_at(&at_standby, &runtime).await?;
            lock.attempt(&ask("x").with_mode(Mode::READER)).await
        };
        let e = refused.await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        assert!(e.to_string().contains("standby"), "{e}");
        pair.fail_over().await;
        let lock = pair.open_at(&at_standby, &runtime).await.unwrap();
        token_of(&*lock, &ask("x")).await;
    });
}
