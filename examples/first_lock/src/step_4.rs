//! Fencing: the token is made where the lock is taken, in one step.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Client, RedisResult, Script};
use tokio::time::{sleep, timeout};

const POLL: Duration = Duration::from_millis(10);

const ACQUIRE: &str = "
    if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end
    return false";

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
        let mut redis = client.get_multiplexed_async_connection().await?;
        // One that Redis does not know yet costs three round trips.
        for script in [ACQUIRE, RELEASE, EXTEND] {
            Script::new(script).prepare_invoke().load_async(&mut redis).await?;
        }
        Ok(Self { redis })
    }

    pub async fn try_lock(&self, name: &[u8], ttl: Duration) -> RedisResult<Option<Guard>> {
        let key = [b"lock:", name].concat();
        let value = fastrand::u64(..);
        let until = Instant::now() + ttl;
        let script = Script::new(ACQUIRE);
        let mut script = script.key(&key);
        script.key("token").arg(value).arg(ttl.as_millis() as u64);
        let token: Option<u64> = script.invoke_async(&mut self.redis.clone()).await?;
        Ok(token.map(|token| Guard { key, value, token, until }))
    }

    pub async fn lock(&self, name: &[u8], ttl: Duration) -> RedisResult<Guard> {
        loop {
            match self.try_lock(name, ttl).await? {
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

    /// Whether it was held yet.
    pub async fn unlock(&self, guard: Guard) -> RedisResult<bool> {
        let script = Script::new(RELEASE);
        script.key(guard.key).arg(guard.value).invoke_async(&mut self.redis.clone()).await
    }

    /// Whether it was held yet.
    pub async fn extend(&self, guard: &mut Guard, ttl: Duration) -> RedisResult<bool> {
        let until = Instant::now() + ttl;
        let script = Script::new(EXTEND);
        let mut script = script.key(&guard.key);
        script.arg(guard.value).arg(ttl.as_millis() as u64);
        let held = script.invoke_async(&mut self.redis.clone()).await?;
        if held {
            guard.until = until;
        }
        Ok(held)
    }
}
