//! Ownership: each hold has a value of its own, and its value is needed to end or extend it.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, Client, RedisResult, Script, cmd};
use tokio::time::{sleep, timeout};

const POLL: Duration = Duration::from_millis(10);

const RELEASE: &str = "
    if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
    return 0";

const EXTEND: &str = "
    if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
    return 0";

pub struct Lock {
    redis: MultiplexedConnection,
}

pub struct Guard {
    key: Vec<u8>,
    value: u64,
    token: u64,
    until: Instant,
}

impl Guard {
    /// How long it is held yet.
    pub fn remaining(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// A number that grows with each hold.
    pub fn token(&self) -> u64 {
        self.token
    }
}

impl Lock {
    pub async fn connect(address: &str) -> RedisResult<Self> {
        let client = Client::open(format!("redis://{address}"))?;
        Ok(Self { redis: client.get_multiplexed_async_connection().await? })
    }

    pub async fn try_lock(&self, name: &[u8], ttl: Duration) -> RedisResult<Option<Guard>> {
        let token = self.redis.clone().incr("token", 1).await?;
        self.take(name, ttl, token).await
    }

    pub async fn lock(&self, name: &[u8], ttl: Duration) -> RedisResult<Guard> {
        let token = self.redis.clone().incr("token", 1).await?;
        loop {
            match self.take(name, ttl, token).await? {
                Some(guard) => return Ok(guard),
                None => sleep(POLL).await,
            }
        }
    }

    pub async fn lock_timeout(
        &self,
        name: &[u8],
        ttl: Duration,
        limit: Duration,
    ) -> RedisResult<Option<Guard>> {
        match timeout(limit, self.lock(name, ttl)).await {
            Ok(guard) => guard.map(Some),
            Err(_) => Ok(None),
        }
    }

    async fn take(&self, name: &[u8], ttl: Duration, token: u64) -> RedisResult<Option<Guard>> {
        let key = [b"lock:", name].concat();
        let value = fastrand::u64(..);
        let mut set = cmd("SET");
        set.arg(&key).arg(value).arg("NX").arg("PX").arg(ttl.as_millis() as u64);
        let taken: bool = set.query_async(&mut self.redis.clone()).await?;
        Ok(taken.then(|| Guard { key, value, token, until: Instant::now() + ttl }))
    }

    /// Whether it was held yet.
    pub async fn unlock(&self, guard: Guard) -> RedisResult<bool> {
        let script = Script::new(RELEASE);
        script.key(guard.key).arg(guard.value).invoke_async(&mut self.redis.clone()).await
    }

    /// Whether it was held yet.
    pub async fn extend(&self, guard: &mut Guard, ttl: Duration) -> RedisResult<bool> {
        let script = Script::new(EXTEND);
        let mut script = script.key(&guard.key);
        script.arg(guard.value).arg(ttl.as_millis() as u64);
        let held = script.invoke_async(&mut self.redis.clone()).await?;
        if held {
            guard.until = Instant::now() + ttl;
        }
        Ok(held)
    }
}
