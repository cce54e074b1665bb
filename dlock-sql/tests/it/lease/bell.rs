//! MariaDB's doorbell: a release wakes the next waiter's poll, and no other.

use dlock_core::spi::{Acquire, LeaseKey, Release, Signal};
use dlock_core::{LockName, RequestId};
use dlock_sql::lease::Config;
use futures::future::join;
use futures::{FutureExt as _, StreamExt as _};

use super::server::{Kind, Server};
use super::site::*;

/// How many connections sleep for that client.
async fn sleepers(server: &Server, client: u128) -> usize {
    let sql = format!(
        "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '/*dlock bell {client:032x}*/%'"
    );
    server.ask(&sql).await.trim().parse().unwrap()
}

async fn until_sleepers(server: &Server, client: u128, many: usize) {
    let asking = async {
        while sleepers(server, client).await != many {
            smol::Timer::after(ms(20)).await;
        }
    };
    within(ms(60_000), asking).await;
}

#[test]
fn a_release_rings_for_the_next_and_the_bell_ends() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::MariaDb).await;
        let holder = server.open(&runtime).await;
        let first = ask("x");
        granted(&*holder, &first).await;
        // Numbers that no other test has.
        let clients = [1, 2].map(|n| (first.key.id.client() << 8) | n);
        let (mut backends, mut requests) = (Vec::new(), Vec::new());
        for client in clients {
            let backend = server.open(&runtime).await;
            let key = LeaseKey::new(LockName::new("x").unwrap(), RequestId::new(client, 1));
            let request = Acquire::new(key, TTL).with_queue(TTL);
            queued(&*backend, &request).await;
            until_sleepers(&server, client, 1).await;
            backends.push(backend);
            requests.push(request);
        }
        let [mut next, mut last] = [0, 1].map(|n| backends[n].signals());
        holder.release(&first.key, Release::Now).await.unwrap();
        let heard = within(ms(60_000), next.next()).await;
        assert!(matches!(heard, Some(Signal::Changed)), "{heard:?}");
        assert!(last.next().now_or_never().is_none(), "it is not its turn");
        assert!(asked(&*backends[0], &requests[0]).await.is_some());
        backends[0].release(&requests[0].key, Release::Now).await.unwrap();
        let heard = within(ms(60_000), last.next()).await;
        assert!(matches!(heard, Some(Signal::Changed)), "{heard:?}");
        // Nobody looks any more.
        for client in clients {
            until_sleepers(&server, client, 0).await;
        }
    });
}

/// The only connection is taken by a request that waits, as soon as the release is done.
#[test]
fn ringing_takes_no_connection_from_requests() {
    run(On::Tokio, async |runtime| {
        let server = Server::start(Kind::MariaDb).await;
        let config = Config::from_url(&server.url()).unwrap();
        let config = config.connections(1).lock_wait(ms(60_000));
        let holder = config.connect(runtime.clone()).await.unwrap();
        let (held, other) = (ask("x"), ask("y"));
        granted(&*holder, &other).await;
        holder.release(&other.key, Release::Now).await.unwrap();
        granted(&*holder, &held).await;
        let next = server.open(&runtime).await;
        let client = (held.key.id.client() << 8) | 1;
        let key = LeaseKey::new(LockName::new("x").unwrap(), RequestId::new(client, 1));
        queued(&*next, &Acquire::new(key, TTL).with_queue(TTL)).await;
        until_sleepers(&server, client, 1).await;
        let mut rings = next.signals();
        let mut hand = server.hand().await;
        hand.run("START TRANSACTION; SELECT * FROM dlock_name WHERE name = 'y' FOR UPDATE")
            .await
            .unwrap();
        let other = ask("y");
        holder.release(&held.key, Release::Now).await.unwrap();
        let working = holder.attempt(&other);
        let hearing = async {
            let heard = within(ms(20_000), rings.next()).await;
            hand.run("ROLLBACK").await.unwrap();
            heard
        };
        let (tried, heard) = join(working, hearing).await;
        assert!(matches!(heard, Some(Signal::Changed)), "{heard:?}");
        assert!(tried.is_ok());
    });
}
