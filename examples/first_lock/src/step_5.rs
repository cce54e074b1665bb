//! Cancellation: the guard is there before the request, so that dropping either undoes it.

use std::mem;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Client, RedisResult, Script};
use tokio::runtime::Handle;
use tokio::time::sleep;

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
    runtime: Handle,
}

pub struct Guard {
    redis: MultiplexedConnection,
    runtime: Handle,
    key: Vec<u8>,
    value: u64,
    token: u64,
    until: Instant,
    is_over: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_over {
            let (redis, key, value) = (self.redis.clone(), mem::take(&mut self.key), self.value);
            self.runtime.spawn(async move { release(redis, &key, value).await });
        }
    }
}

async fn release(mut redis: MultiplexedConnection, key: &[u8], value: u64) -> RedisResult<bool> {
    Script::new(RELEASE).key(key).arg(value).invoke_async(&mut redis).await
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
        Ok(Self { redis, runtime: Handle::current() })
    }

    pub async fn try_lock(&self, name: &[u8], ttl: Duration) -> RedisResult<Option<Guard>> {
        // Dropped before it is answered, or with an answer that is too late, it frees the name.
        let mut guard = Guard {
            redis: self.redis.clone(),
            runtime: self.runtime.clone(),
            key: [b"lock:", name].concat(),
            value: fastrand::u64(..),
            token: 0,
            until: Instant::now() + ttl,
            is_over: false,
        };
        let script = Script::new(ACQUIRE);
        let mut script = script.key(&guard.key);
        script.key("token").arg(guard.value).arg(ttl.as_millis() as u64);
        match script.invoke_async::<Option<u64>>(&mut self.redis.clone()).await? {
            Some(token) => guard.token = token,
            None => guard.is_over = true,
        }
        Ok((guard.token > 0 && !guard.remaining().is_zero()).then_some(guard))
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
        let begun = Instant::now();
        loop {
            if let Some(guard) = self.try_lock(name, ttl).await? {
                return Ok(Some(guard));
            }
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            sleep(POLL.min(left)).await;
        }
    }

    /// Whether it was held yet.
    pub async fn unlock(&self, mut guard: Guard) -> RedisResult<bool> {
        let held = release(self.redis.clone(), &guard.key, guard.value).await?;
        guard.is_over = true;
        Ok(held)
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
