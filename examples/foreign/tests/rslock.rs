//! rslock, a Redlock for Redis, before the kit. `REDIS_URL` names a server for the test.

use std::time::Duration;

use dlock_conformance::{Claims, Harness, Library, OneServer, Reply};
use dlock_core::{Capabilities, Capability, Error, ErrorKind, LockName, Result, runtime};
use futures::FutureExt;
use rslock::{Lock, LockError, LockManager};

struct Rslock(LockManager);

impl Library for Rslock {
    type Guard = Lock;

    fn try_lock<'a>(&'a self, name: &'a LockName, ttl: Duration) -> Reply<'a, Option<Lock>> {
        let mut once = self.0.clone();
        once.set_retry(1, Duration::ZERO);
        async move { free(once.lock(name.as_bytes(), ttl).await) }.boxed()
    }

    fn lock<'a>(&'a self, name: &'a LockName, ttl: Duration) -> Reply<'a, Lock> {
        async move { self.0.acquire_no_guard(name.as_bytes(), ttl).await.map_err(error) }.boxed()
    }

    fn unlock(&self, lock: Lock) -> Reply<'_, bool> {
        // It does not say whether it was held yet.
        lock.release().map(|()| Ok(true)).boxed()
    }

    fn extend<'a>(&'a self, lock: &'a mut Lock, ttl: Duration) -> Reply<'a, bool> {
        async move { Ok(free(self.0.extend(lock, ttl).await)?.map(|new| *lock = new).is_some()) }.boxed()
    }

    fn validity(&self, lock: &Lock) -> Option<Duration> {
        Some(Duration::from_millis(lock.validity_time as u64))
    }
}

fn free(answer: Result<Lock, LockError>) -> Result<Option<Lock>> {
    match answer {
        Err(LockError::Unavailable) => Ok(None), // Its word for "somebody else has it".
        other => other.map(Some).map_err(error),
    }
}

fn error(e: LockError) -> Error {
    Error::new(ErrorKind::Unknown, "rslock failed").with_source(e)
}

fn harness() -> impl Harness {
    let url = std::env::var("REDIS_URL").expect("REDIS_URL is not set: redis://127.0.0.1:6379, for example");
    let host = url.trim_start_matches("redis://").trim_end_matches('/');
    let can = Capabilities::new("rslock").with_all([Capability::Renew, Capability::PerGrantTtl]);
    // "Retries will be delayed by a random amount of time between 0 and retry_delay": 200 ms.
    let claims = Claims::foreign("rslock", "0.10.0", can).wake_p99(Duration::from_millis(250));
    let runtime = runtime::own_thread().expect("a thread");
    OneServer::new(claims, runtime, host, |at| Rslock(LockManager::new(vec![format!("redis://{at}/")])))
}

dlock_conformance::main!(harness());
