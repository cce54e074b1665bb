//! The network: what was not answered is asked again, and what comes late is refused.

use std::time::{Duration, Instant};
use std::{io, mem};

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, FromRedisValue, RedisError, RedisResult, Script, ScriptInvocation};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

const POLL: Duration = Duration::from_millis(10);

/// How long a request may take, and for how long it is made again.
const REQUEST: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(3);
/// How much later than its limit a wait may end, for the answer of the last request.
const GRACE: Duration = Duration::from_millis(100);

const ACQUIRE: &str = "
    if redis.call('EXISTS', KEYS[3]) == 1 then return false end
    if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('INCR', KEYS[2]) end
    if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end
    return false";

/// What is over is remembered for a minute: its acquire may be on its way yet.
const RELEASE: &str = "
    redis.call('SET', KEYS[2], '', 'PX', 60000)
    if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
    return 0";

const EXTEND: &str = "
    if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
    return 0";

pub struct Lock {
    redis: ConnectionManager,
    runtime: Handle,
}

pub struct Guard {
    redis: ConnectionManager,
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
            let (redis, key, value, until) =
                (self.redis.clone(), mem::take(&mut self.key), self.value, self.until);
            self.runtime.spawn(async move { release(redis, &key, value, until, until).await });
        }
    }
}

/// Asks until it is answered, and says whether that was at once. If it never is, the error is that of a
/// request which may have arrived, if there was one.
async fn ask<T: FromRedisValue>(
    mut redis: ConnectionManager,
    script: &ScriptInvocation<'_>,
    give_up: Instant,
) -> RedisResult<(T, bool)> {
    let mut first = None;
    loop {
        let error = match script.invoke_async(&mut redis).await {
            Ok(answer) => return Ok((answer, first.is_none())),
            Err(error) if !error.is_io_error() => return Err(error),
            Err(error) => error,
        };
        first = first.filter(|first: &RedisError| !first.is_connection_refusal()).or(Some(error));
        match first {
            Some(error) if Instant::now() >= give_up => return Err(error),
            _ => sleep(POLL).await,
        }
    }
}

async fn release(
    redis: ConnectionManager,
    key: &[u8],
    value: u64,
    until: Instant,
    give_up: Instant,
) -> RedisResult<bool> {
    let script = Script::new(RELEASE);
    let mut script = script.key(key);
    script.key(gone(value)).arg(value);
    let (held, at_once) = ask(redis, &script, give_up).await?;
    // Before that nobody else can have ended it: an earlier request has.
    Ok(held || (!at_once && Instant::now() < until))
}

fn gone(value: u64) -> String {
    format!("gone:{value}")
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
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(1)
            .set_connection_timeout(Some(REQUEST))
            .set_response_timeout(Some(REQUEST));
        let mut redis = ConnectionManager::new_with_config(client, config).await?;
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
        script.key("token").key(gone(guard.value)).arg(guard.value).arg(ttl.as_millis() as u64);
        let give_up = Instant::now() + PATIENCE;
        let (token, at_once): (Option<u64>, _) = ask(self.redis.clone(), &script, give_up).await?;
        match token {
            Some(token) => guard.token = token,
            // Refused; but an earlier request, which was not answered, may arrive yet.
            None => guard.is_over = at_once,
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
            // One that is not answered in time is dropped, and so undone.
            let left = limit.saturating_sub(begun.elapsed());
            let answer = timeout(left.saturating_add(GRACE), self.try_lock(name, ttl)).await;
            if let Some(guard) = answer.map_err(io::Error::from)?? {
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
        let give_up = Instant::now() + PATIENCE;
        let held = release(self.redis.clone(), &guard.key, guard.value, guard.until, give_up).await?;
        guard.is_over = true;
        Ok(held)
    }

    /// Whether it was held yet.
    pub async fn extend(&self, guard: &mut Guard, ttl: Duration) -> RedisResult<bool> {
        let until = Instant::now() + ttl;
        let script = Script::new(EXTEND);
        let mut script = script.key(&guard.key);
        script.arg(guard.value).arg(ttl.as_millis() as u64);
        let (held, _) = ask(self.redis.clone(), &script, Instant::now() + PATIENCE).await?;
        if held {
            guard.until = until;
        }
        Ok(held)
    }
}
