//! What becomes of locks when something goes wrong with the server: each time a typed outcome, and never two
//! who hold.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{Attempt, Lock, Release, Released, RenewItem, RenewOutcome};
use dlock_core::{Client, ErrorKind, LockName, Mode, Runtime};

use super::server::{BOTH, Kind, Server};
use super::site::*;
use dlock_testkit::ReadOnly;

/// Asked as often as it takes until it is answered; what went wrong meanwhile was typed as something that
/// passes.
async fn in_the_end<T>(mut ask: impl AsyncFnMut() -> dlock_core::Result<T>) -> T {
    within(ms(30_000), async {
        loop {
            match ask().await {
                Ok(done) => return done,
                Err(e) => assert!(
                    matches!(e.kind(), ErrorKind::Unknown | ErrorKind::Unavailable),
                    "{e:?}"
                ),
            }
            smol::Timer::after(ms(50)).await;
        }
    })
    .await
}

pub(super) async fn token_of(lock: &dyn Lock, a: &dlock_core::spi::Acquire) -> dlock_core::Token {
    in_the_end(async || {
        lock.attempt(a).await.map(|attempt| match attempt {
            Attempt::Granted(grant) => grant.token.unwrap(),
            other => panic!("not granted: {other:?}"),
        })
    })
    .await
}

/// A lease outlives the connection, the server's order and the server's crash, and nobody else has it
/// meanwhile.
pub(super) async fn survives(lock: &dyn Lock, break_it: impl AsyncFnOnce()) {
    let (a, b) = (ask("x"), ask("x"));
    let token = token_of(lock, &a).await;
    break_it().await;
    let refused = in_the_end(async || lock.attempt(&b).await).await;
    assert!(matches!(refused, Attempt::Held(_)), "{refused:?}");
    assert_eq!(token_of(lock, &a).await, token, "it is known again");
    let renewed = in_the_end(
        async || match renew(lock, RenewItem::lease(a.key.clone(), TTL)).await {
            RenewOutcome::Renewed(renewed) => Ok(renewed),
            RenewOutcome::Failed(e) => Err(e),
            other => panic!("{other:?}"),
        },
    );
    assert!(renewed.await.expires_in > TTL - ms(10_000));
    let released = in_the_end(async || lock.release(&a.key, Release::Now).await).await;
    assert_eq!(released, Released::Released);
    // A try that was refused may be buried, as one whose first copy was not answered is: the next one is
    // another.
    let next = ask("x");
    assert!(token_of(lock, &next).await > token);
    in_the_end(async || lock.release(&next.key, Release::Now).await).await;
}

#[test]
fn a_lease_outlives_connections_restarts_and_crashes() {
    for kind in BOTH {
        run(On::Tokio, async |runtime| {
            // What was answered is written, if not to the disk: a crash of the server's processes keeps it.
            let server = Server::start(kind).await;
            let lock = server.open(&runtime).await;
            survives(&*lock, async || server.end_all().await).await;
            survives(&*lock, async || server.restart(false).await).await;
            survives(&*lock, async || server.restart(true).await).await;
        });
    }
}

#[test]
fn waiters_are_granted_after_all_connections_ended() {
    for (kind, on) in [(Kind::Postgres, On::Tokio), (Kind::MariaDb, On::Smol)] {
        run(on, async |runtime: Arc<dyn Runtime>| {
            let server = Server::start(kind).await;
            let lock = server.open(&runtime).await;
            let client = Client::builder(lock.clone(), runtime.clone())
                .defaults(dlock_core::LockOptions::new().ttl(ms(10_000)))
                .build()
                .unwrap();
            let held = client.lock("x").unwrap().acquire().await.unwrap();
            let name = client.lock("x").unwrap();
            let mut waiting = Box::pin(name.acquire());
            let watch = lock.watch().unwrap();
            let x = LockName::new("x").unwrap();
            let queued = async {
                while watch.inspect(&x).await.unwrap().waiting == 0 {
                    smol::Timer::after(ms(20)).await;
                }
            };
            futures::future::select(&mut waiting, Box::pin(queued)).await;
            server.end_all().await;
            let first = held.token();
            assert!(held.is_valid());
            // What the release says may be unknown; then the lease is undone, or runs out.
            let _ = held.release().await;
            let next = within(ms(30_000), waiting).await.unwrap();
            assert!(next.token() > first);
            client.close().await.unwrap();
        });
    }
}

#[test]
fn a_server_that_ends_idle_sessions_is_not_noticed() {
    let settings: [(Kind, &'static [(&str, &str)]); 2] = [
        (Kind::Postgres, &[("idle_session_timeout", "500ms")]),
        (Kind::MariaDb, &[("wait_timeout", "1")]),
    ];
    for (kind, settings) in settings {
        run(On::Tokio, async |runtime| {
            let server = Server::with(kind, settings).await;
            let lock = server.open(&runtime).await;
            let a = ask("x");
            let token = granted(&*lock, &a).await.token;
            within(ms(20_000), async {
                while server.connections().await > 1 {
                    smol::Timer::after(ms(100)).await;
                }
            })
            .await;
            assert_eq!(granted(&*lock, &a).await.token, token, "{kind:?}");
            let released = lock.release(&a.key, Release::Now).await.unwrap();
            assert_eq!(released, Released::Released);
        });
    }
}

#[test]
fn a_row_kept_locked_is_unavailable_and_nothing_was_done() {
    for kind in BOTH {
        run(On::Tokio, async |runtime| {
            let server = Server::start(kind).await;
            let lock = server.open(&runtime).await;
            granted(&*lock, &ask("x")).await;
            let mut hand = server.hand().await;
            hand.run("BEGIN; SELECT * FROM dlock_name FOR UPDATE")
                .await
                .unwrap();
            for a in [ask("x"), join("x", Mode::READER)] {
                let e = lock.attempt(&a).await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
                assert!(e.to_string().contains("did not release"), "{e}");
            }
            // Others go on meanwhile.
            hand.run("ROLLBACK").await.unwrap();
            let x = LockName::new("x").unwrap();
            let seen = lock.watch().unwrap().inspect(&x).await.unwrap();
            assert_eq!(seen.waiting, 0);
        });
    }
}

/// Somebody else's transaction locks two names in another order. (PostgreSQL: no statement of ours waits for
/// a name while it has another.)
#[test]
fn a_deadlock_is_unavailable_and_passes() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::MariaDb).await;
        let lock = server.open(&runtime).await;
        let all = ["a", "b"].map(|name| join(name, Mode::Exclusive));
        for (name, a) in ["a", "b"].iter().zip(&all) {
            granted(&*lock, &ask(name)).await;
            queued(&*lock, a).await;
        }
        let mut hand = server.hand().await;
        // It has written more than ours, so ours is chosen to end.
        hand.run(
            "CREATE TABLE heavy (n INT PRIMARY KEY); BEGIN; INSERT INTO heavy SELECT seq FROM seq_1_to_1000; \
             SELECT * FROM dlock_name WHERE name = 'b' FOR UPDATE",
        )
        .await
        .unwrap();
        let items = all.each_ref().map(|a| RenewItem::queued(a.key.clone(), TTL));
        let renewing = lock.renew().unwrap();
        let renewing = renewing.renew(&items);
        let crossing = async {
            server.wait_until_blocked(1).await;
            hand.run("SELECT * FROM dlock_name WHERE name = 'a' FOR UPDATE; ROLLBACK")
                .await
        };
        let (outcomes, crossed) = futures::future::join(renewing, crossing).await;
        crossed.unwrap();
        for outcome in &outcomes {
            let RenewOutcome::Failed(e) = outcome else {
                panic!("{outcome:?}")
            };
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
            assert!(e.to_string().contains("conflict with another"), "{e}");
        }
        for outcome in lock.renew().unwrap().renew(&items).await {
            assert!(matches!(outcome, RenewOutcome::Queued { .. }), "{outcome:?}");
        }
    });
}

#[test]
fn a_server_that_takes_no_writes_is_unavailable_until_it_does() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::MariaDb).await;
        let Server::MariaDb(hands) = &server else { panic!() };
        // Who may do everything may write nevertheless.
        let user = "CREATE USER app@'%' IDENTIFIED BY 'app'; GRANT ALL ON dlock.* TO app@'%'";
        server.ask(user).await;
        let lock = server
            .try_open(&server.url_of("app", "app"), &runtime)
            .await
            .unwrap();
        let (a, b) = (ask("x"), ask("y").with_mode(Mode::READER));
        hands.set_read_only(ReadOnly::On).unwrap();
        for a in [&a, &b] {
            let e = lock.attempt(a).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
            assert!(e.to_string().contains("read-only"), "{e}");
        }
        hands.set_read_only(ReadOnly::Off).unwrap();
        granted(&*lock, &a).await;
        granted(&*lock, &b).await;
    });
    run(On::Tokio, async |runtime| {
        use dlock_sql::lease::Config;
        let server = Server::start(Kind::Postgres).await;
        let Server::Postgres(hands) = &server else {
            panic!()
        };
        // On its own connections a backend asks for writes; behind a pooler it cannot.
        let config = Config::from_url(&hands.url()).unwrap().behind_pooler();
        let lock = config.connect(runtime).await.unwrap();
        hands.set_read_only(ReadOnly::On).unwrap();
        let a = ask("x");
        let e = lock.attempt(&a).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        assert!(e.to_string().contains("read-only"), "{e}");
        hands.set_read_only(ReadOnly::Off).unwrap();
        granted(&*lock, &a).await;
    });
}

/// Nobody but the server knows what time it is: its clock is an hour before or behind that of this program.
#[test]
fn a_client_whose_clock_is_an_hour_off_notices_nothing() {
    for kind in BOTH {
        for off in [-3_600_i64, 3_600] {
            run(On::Tokio, async |runtime| {
                let server = Server::own_clock(kind).await;
                let clock = match &server {
                    Server::Postgres(server) => server.clock().unwrap(),
                    Server::MariaDb(server) => server.clock().unwrap(),
                };
                clock.set(off * 1_000).unwrap();
                let lock = server.open(&runtime).await;
                let mut a = ask("x");
                a.ttl = ms(1_500);
                let first = granted(&*lock, &a).await;
                assert_eq!(first.expires_in, a.ttl, "{kind:?} {off}");
                held(&*lock, &ask("x")).await;
                let b = join("x", Mode::Exclusive);
                queued(&*lock, &b).await;
                let second = until_asked(&*lock, &b).await;
                assert!(second > first.token.unwrap());
                let RenewOutcome::Renewed(r) = renew(&*lock, RenewItem::lease(b.key.clone(), TTL)).await
                else {
                    panic!()
                };
                assert!(r.expires_in <= TTL && r.expires_in > TTL - Duration::from_secs(5));
                let client = Client::builder(lock, runtime).build().unwrap();
                let guard = client.lock("y").unwrap().acquire().await.unwrap();
                assert!(guard.is_valid());
                guard.release().await.unwrap();
                client.close().await.unwrap();
            });
        }
    }
}
