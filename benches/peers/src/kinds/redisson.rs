//! The algorithm of Redisson's `RLock`, rendered by us from its documentation: Redisson itself is for Java.
//!
//! A lock is a hash of its owner and how often that holds it. Who finds it taken subscribes to the lock's
//! channel, tries again, and then waits for a message, or for the holder's time to run out. A release
//! publishes one message, which reaches each *client* that has waiters, and wakes one waiter of each: all but
//! one of those try in vain.
//!
//! What the real one does besides is left out, and so in its favour: it looks after its leases by a timer,
//! and remembers for each release that it was done, which takes a third command.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex as Short};
use std::time::Duration;

use dlock_benches::redis::{Contender, Server};
use redis::aio::{MultiplexedConnection, SendError};
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, Script, from_redis_value};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

use super::TTL;
use crate::peer::Kind;

/// Nothing where it was taken, else how many milliseconds the holder has left.
const TAKE: &str = "\
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return false
end
return redis.call('PTTL', KEYS[1])";

/// 1 where it is free now, 0 where it is still held, nothing where it was not held.
const GIVE: &str = "\
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return false end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[2], 0)
return 1";

/// Of each channel that somebody of this client waits at: what a message is put into.
type Latches = Short<HashMap<String, Arc<Semaphore>>>;

struct Inner {
    connection: MultiplexedConnection,
    take: Script,
    give: Script,
    latches: Arc<Latches>,
    /// How many wait at each channel. Kept while a subscription changes, so that nobody takes it for there
    /// too early.
    waiting: Mutex<HashMap<String, usize>>,
    id: usize,
    tasks: Short<usize>,
}

pub(crate) struct Redisson(Rc<Inner>);

impl Kind for Redisson {
    const NAME: &'static str = "Redisson's algorithm";
    const WHAT: &'static str = "the documented scheme of its `RLock`, Lua and publish/subscribe, rendered \
        by us in Rust on redis 1.8: not Redisson \
         itself. Its renewal and its third command for each cycle are left out. No fencing token";
    type Lock = RedissonLock;

    async fn connect(server: &Server) -> Self {
        let latches = Arc::<Latches>::default();
        let woken = Arc::clone(&latches);
        // The driver itself wakes the waiter, sooner than the releasing task can ask again: its hand-offs
        // depend on that. A channel between them reverses the order, and nearly nothing is handed over
        // without a hold.
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_push_sender(move |push| -> Result<(), SendError> {
                hear(push, &woken);
                Ok(())
            });
        let client = Client::open(format!("{}/?protocol=resp3", server.url())).expect("a good URL");
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let id = server.wire().ask(&["INCR", "redisson-clients"]);
        Self(Rc::new(Inner {
            connection: connection.await.expect("the server is there"),
            take: Script::new(TAKE),
            give: Script::new(GIVE),
            latches,
            waiting: Mutex::default(),
            id: id.parse().expect("a number"),
            tasks: Short::default(),
        }))
    }

    fn lock(&self, name: &str) -> RedissonLock {
        let mut tasks = self.0.tasks.lock().expect("no panic");
        *tasks += 1;
        RedissonLock {
            client: self.0.clone(),
            connection: self.0.connection.clone(),
            name: name.to_owned(),
            channel: format!("redisson_lock__channel:{{{name}}}"),
            // As long as theirs: a UUID, and the number of a thread.
            owner: format!("{:036}:{tasks}", self.0.id),
        }
    }
}

/// Puts a message into the latch of its channel.
fn hear(PushInfo { kind, data }: PushInfo, latches: &Latches) {
    if kind != PushKind::Message {
        return;
    }
    let channel = data.into_iter().next().expect("a message names its channel");
    let channel: String = from_redis_value(channel).expect("a name");
    if let Some(latch) = latches.lock().expect("no panic").get(&channel) {
        latch.add_permits(1);
    }
}

pub(crate) struct RedissonLock {
    client: Rc<Inner>,
    connection: MultiplexedConnection,
    name: String,
    channel: String,
    owner: String,
}

impl RedissonLock {
    /// The milliseconds that the holder has left, unless it is ours now.
    async fn attempt(&mut self) -> Option<u64> {
        let mut take = self.client.take.prepare_invoke();
        take.key(&self.name).arg(&self.owner).arg(TTL.as_millis() as u64);
        let left: Option<i64> = take.invoke_async(&mut self.connection).await.expect("it answers");
        // A key that went in between has -2 left.
        left.map(|left| left.max(0) as u64)
    }

    /// The first of the client subscribes for all of them.
    async fn subscribe(&mut self) -> Arc<Semaphore> {
        let mut waiting = self.client.waiting.lock().await;
        let here = waiting.entry(self.channel.clone()).or_default();
        *here += 1;
        let first = *here == 1;
        let latch = {
            let mut latches = self.client.latches.lock().expect("no panic");
            let none = || Arc::new(Semaphore::new(0));
            Arc::clone(latches.entry(self.channel.clone()).or_insert_with(none))
        };
        if first {
            let subscribed = self.connection.subscribe(&self.channel).await;
            subscribed.expect("it answers");
        }
        latch
    }

    /// The last of the client unsubscribes.
    async fn unsubscribe(&mut self) {
        let mut waiting = self.client.waiting.lock().await;
        let here = waiting.entry(self.channel.clone()).or_default();
        *here -= 1;
        if *here == 0 {
            self.client
                .latches
                .lock()
                .expect("no panic")
                .remove(&self.channel);
            let unsubscribed = self.connection.unsubscribe(&self.channel).await;
            unsubscribed.expect("it answers");
        }
    }
}

impl Contender for RedissonLock {
    type Held = ();

    async fn acquire(&mut self) {
        if self.attempt().await.is_none() {
            return;
        }
        let latch = self.subscribe().await;
        while let Some(left) = self.attempt().await {
            let woken = timeout(Duration::from_millis(left), latch.acquire()).await;
            if let Ok(permit) = woken {
                permit.expect("it is never closed").forget();
            }
        }
        self.unsubscribe().await;
    }

    async fn release(&mut self, (): ()) {
        let mut give = self.client.give.prepare_invoke();
        give.key(&self.name)
            .key(&self.channel)
            .arg(&self.owner)
            .arg(TTL.as_millis() as u64);
        let free: Option<u8> = give.invoke_async(&mut self.connection).await.expect("it answers");
        assert_eq!(free, Some(1));
    }
}
