//! The bare driver hands a lock over: the minimum time of a hand-off to a queue.
//!
//! The waiters are in a list; a release gives the lock to the first and tells it, which needs no further
//! request. It is no lock for use: a dead waiter is given the lock all the same, there are no tokens, and
//! nothing is renewed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue as _, Script};
use tokio::sync::oneshot::{Sender, channel};

use super::crowd::Contender;
use super::raw::Raw;
use super::server::Server;

type Waiting = Arc<Mutex<HashMap<String, Sender<()>>>>;

/// One of those who take turns.
#[derive(Clone, Debug)]
pub struct Direct {
    connection: MultiplexedConnection,
    waiting: Waiting,
    channel: String,
    id: String,
    lock: Script,
    unlock: Script,
}

impl Direct {
    /// That many, over that many connections.
    ///
    /// # Panics
    /// If the server is not there.
    pub async fn many(server: &Server, clients: usize, tasks: usize) -> Vec<Self> {
        let mut all = Vec::new();
        for client in 0..clients {
            let (mut raw, mut pushes) = Raw::new(server).await;
            let channel = format!("direct-{client}");
            let subscribed = raw.connection.subscribe(&channel).await;
            subscribed.expect("it answers");
            let waiting = Waiting::default();
            let told = Arc::clone(&waiting);
            tokio::spawn(async move {
                while let Some(push) = pushes.recv().await {
                    let id = push.data.into_iter().nth(1);
                    let id = id.and_then(|id| String::from_redis_value(id).ok());
                    let waiter = id.and_then(|id| told.lock().expect("no panic").remove(&id));
                    let _ = waiter.map(|waiter| waiter.send(()));
                }
            });
            all.extend((client..tasks).step_by(clients).map(|task| Self {
                connection: raw.connection.clone(),
                waiting: Arc::clone(&waiting),
                channel: channel.clone(),
                id: format!("123456789012345678901234567890-{task:05}"),
                lock: Script::new(
                    "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 30000) then return 1 end \
                     redis.call('RPUSH', KEYS[2], ARGV[1] .. ARGV[2]) return 0",
                ),
                unlock: Script::new(
                    "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
                     local next = redis.call('LPOP', KEYS[2]) \
                     if not next then return redis.call('DEL', KEYS[1]) end \
                     redis.call('SET', KEYS[1], next:sub(1, 36), 'PX', 30000) \
                     return redis.call('PUBLISH', next:sub(37), next:sub(1, 36))",
                ),
            }));
        }
        all
    }
}

impl Contender for Direct {
    type Held = ();

    async fn acquire(&mut self) {
        let (told, hears) = channel();
        self.waiting
            .lock()
            .expect("no panic")
            .insert(self.id.clone(), told);
        let mut lock = self.lock.prepare_invoke();
        lock.key("direct")
            .key("direct-queue")
            .arg(&self.id)
            .arg(&self.channel);
        let at_once: u32 = lock.invoke_async(&mut self.connection).await.expect("it answers");
        if at_once == 0 {
            hears.await.expect("it is told");
        }
    }

    async fn release(&mut self, (): ()) {
        let mut unlock = self.unlock.prepare_invoke();
        unlock.key("direct").key("direct-queue").arg(&self.id);
        let done: u32 = unlock
            .invoke_async(&mut self.connection)
            .await
            .expect("it answers");
        assert_eq!(done, 1, "it was held");
    }
}
