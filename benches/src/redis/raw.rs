//! The bare driver: what a script costs at all.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, Script};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::server::Server;
use super::stats::quantile;

/// As long as a token of ours.
const OWNER: &str = "123456789012345678901234567890123456";

/// The lock of the manual: `SET NX PX`, and a delete of what is ours.
#[derive(Clone, Debug)]
pub struct Raw {
    /// For what else is asked of it.
    pub connection: MultiplexedConnection,
    lock: Script,
    unlock: Script,
    hand: Script,
}

impl Raw {
    /// On a connection of its own, and what is pushed to that.
    pub async fn new(server: &Server) -> (Self, UnboundedReceiver<PushInfo>) {
        let (send, receive) = unbounded_channel();
        let url = format!("{}/?protocol=resp3", server.url());
        let client = Client::open(url).expect("a good URL");
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_push_sender(send);
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let raw = Self {
            connection: connection.await.expect("the server is there"),
            lock: Script::new("return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])"),
            unlock: Script::new(
                "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return \
                    0",
            ),
            hand: Script::new(
                "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end \
                 return redis.call('PUBLISH', ARGV[2], ARGV[1])",
            ),
        };
        (raw, receive)
    }

    /// Takes a lock that nobody has.
    pub async fn lock(&mut self, key: &str) {
        let mut lock = self.lock.prepare_invoke();
        lock.key(key).arg(OWNER).arg(30_000);
        let locked: Option<String> = lock.invoke_async(&mut self.connection).await.expect("it answers");
        assert!(locked.is_some(), "nobody else wants it");
    }

    /// Gives it back.
    pub async fn unlock(&mut self, key: &str) {
        let mut unlock = self.unlock.prepare_invoke();
        unlock.key(key).arg(OWNER);
        let unlocked: u32 = unlock
            .invoke_async(&mut self.connection)
            .await
            .expect("it answers");
        assert_eq!(unlocked, 1);
    }

    /// Both.
    pub async fn pair(&mut self, key: &str) {
        self.lock(key).await;
        self.unlock(key).await;
    }

    /// A release that tells somebody.
    pub async fn hand(&mut self, key: &str, channel: &str) {
        let mut hand = self.hand.prepare_invoke();
        hand.key(key).arg(OWNER).arg(channel);
        let heard: u32 = hand.invoke_async(&mut self.connection).await.expect("it answers");
        assert_eq!(heard, 1);
    }
}

/// From a release that publishes to its arrival at a listener: the minimum time of a hand-off.
pub async fn floor(server: &Server, length: Duration) -> Duration {
    let (mut one, _) = Raw::new(server).await;
    let (mut two, mut pushes) = Raw::new(server).await;
    two.connection.subscribe("floor").await.expect("it answers");
    let mut gaps = Vec::new();
    let until = Instant::now() + length;
    while pushes.try_recv().is_ok() {}
    while Instant::now() < until {
        let at = Instant::now();
        let (_, heard) = futures::join!(one.hand("floor", "floor"), async {
            pushes.recv().await;
            at.elapsed()
        });
        gaps.push(heard);
    }
    quantile(&mut gaps, 0.5)
}
