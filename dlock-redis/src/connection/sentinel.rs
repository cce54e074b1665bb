//! Finding the master through sentinels.
//!
//! All sentinels are asked at once, each on its own, and the first that names a master which confirms its
//! role is believed. The driver asks them all at once too, but takes their answers in the order of the URL:
//! if the first one is switched off, each look costs a whole connection timeout, and with a short `timeout`
//! the master is never found.
//!
//! *A sentinel that is cut off with the old master* may be the fastest, and names that one, as it might if it
//! were the first. Such a master is left when it becomes a replica, or breaks; that it served
//! meanwhile is the failover in the table of `docs/redis.md`.

use futures::lock::Mutex;
use futures::stream::{FuturesUnordered, StreamExt as _};
use redis::sentinel::SentinelClient;
use redis::{Client, ErrorKind, RedisError, RedisResult};

/// One client for each sentinel, which keeps its connection.
pub(crate) struct Sentinels(Vec<Mutex<SentinelClient>>);

impl Sentinels {
    pub(crate) fn new(each: impl IntoIterator<Item = SentinelClient>) -> Self {
        Self(each.into_iter().map(Mutex::new).collect())
    }

    /// The master. Dropped, nothing is left but connections that are there already.
    pub(crate) async fn master(&self) -> RedisResult<Client> {
        let mut asked: FuturesUnordered<_> = self.0.iter().map(ask).collect();
        let mut why: Option<RedisError> = None;
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(client) => return Ok(client),
                // That one is not there says less than what another one says.
                Err(e) if why.as_ref().is_none_or(|why| why.kind() == ErrorKind::Io) => why = Some(e),
                Err(_) => {}
            }
        }
        Err(why.unwrap_or_else(|| RedisError::from((ErrorKind::Io, "no sentinel is known"))))
    }
}

async fn ask(one: &Mutex<SentinelClient>) -> RedisResult<Client> {
    one.lock().await.async_get_client().await
}
