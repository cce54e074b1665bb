//! The backend itself: attempt, release, abandon.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Fencing, LeaseKey, Lock, Release, Released, Renew, RwLock, Sent, Signal,
    Unanswered, Watch,
};
use dlock_core::{Capabilities, Error, ErrorKind, Finding, LockName, Result, Timestamp};
use futures::future::join_all;
use futures::stream::BoxStream;

use super::connection::{Database, again};
use super::dialect::Dialect;
use super::failure::invalid;
use super::keys::share;
use crate::diagnosis::diagnose;
use crate::requests::{check, round_up};

/// Locks in a database server, as leases in rows.
pub(in crate::lease) struct Lease<D: Dialect> {
    pub(in crate::lease) db: Arc<Database<D>>,
    unanswered: Unanswered,
    pub(in crate::lease) capabilities: Capabilities,
}

impl<D: Dialect> fmt::Debug for Lease<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(D::BACKEND).field(&self.db.at).finish()
    }
}

pub(in crate::lease) fn named<T>(name: &LockName, result: Result<T>) -> Result<T> {
    result.map_err(|e| e.with_name(name))
}

impl<D: Dialect> Lease<D> {
    pub(in crate::lease) fn new(db: Arc<Database<D>>) -> Self {
        let mut capabilities = Capabilities::new(D::BACKEND).with_everything();
        // Leases end by the wall clock of the server: no database has another one.
        capabilities.clock_sensitive = true;
        Self {
            db,
            unanswered: Unanswered::default(),
            capabilities,
        }
    }

    fn check(&self, request: &Acquire) -> Result<Acquire> {
        let checked = check(&self.capabilities, request)?;
        share(request.mode)?;
        // A text of PostgreSQL cannot hold it, and what one server refuses the others do not take either.
        if request.owner.as_deref().is_some_and(|o| o.contains('\0')) {
            return Err(invalid("the owner label contains a zero byte"));
        }
        Ok(checked)
    }

    async fn ask(&self, request: &Acquire) -> Result<Attempt> {
        let (db, name) = (&self.db, &request.key.name);
        let seen = db.contention.of(name, Timestamp::now());
        if request.mode.is_exclusive()
            && !seen.others
            && let Some(grant) = D::acquire(db, request, seen.has_row).await?
        {
            db.contention.tell(name, false, Timestamp::now());
            return Ok(Attempt::Granted(grant));
        }
        // Boxed, as it is larger than what comes before it, and is moved about with that.
        Box::pin(D::attempt(db, request)).await
    }

    async fn try_attempt(&self, request: &Acquire) -> Result<Attempt> {
        let request = &self.check(request)?;
        let key = &request.key;
        self.db.open()?;
        let asks = self.unanswered.asks(key, Sent::Acquire);
        let (mut asked, strayed) = again(|| self.ask(request)).await;
        if strayed {
            self.unanswered.note(key, Sent::Acquire);
            // The first copy may still be in flight. A granted or queued request ends with a release or an
            // abandon, which leave a tombstone. But a refused one abandons nothing: its copy would be granted
            // with no one to hold it if it arrived after a release.
            if let Ok(Attempt::Held(_)) = asked {
                let unknown = |e| {
                    let text = "the lock was refused, but an earlier copy of the request may still be in \
                        flight and could not be withdrawn";
                    Error::new(ErrorKind::Unknown, text).with_source(e)
                };
                asked = Box::pin(self.try_abandon(key)).await.map_err(unknown).and(asked);
            }
        }
        asks.answered(asked)
    }

    async fn let_go(&self, lease: &LeaseKey, keep: Duration, bury: bool) -> Result<bool> {
        let others = || self.db.contention.of(&lease.name, Timestamp::now()).others;
        if keep.is_zero() && !bury && !others() && D::release(&self.db, lease).await? {
            return Ok(true);
        }
        Box::pin(D::release_in_full(&self.db, lease, keep, bury)).await
    }

    async fn try_release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        let keep = match how {
            Release::KeepFor(d) => round_up(d),
            _ => Duration::ZERO,
        };
        // A copy of the acquire may still come: a tombstone keeps it from being heard.
        let open = self.unanswered.of(lease);
        let asks = self.unanswered.asks(lease, Sent::Release);
        let (released, strayed) = again(|| self.let_go(lease, keep, open.acquire)).await;
        let released = asks.answered(released)?;
        self.unanswered.forget(lease);
        self.db.sweep_sometimes();
        Ok(match released || strayed || open.release {
            true => Released::Released,
            false => Released::NotHeld,
        })
    }

    async fn try_abandon(&self, key: &LeaseKey) -> Result<Abandoned> {
        let abandoned = again(|| D::abandon(&self.db, key)).await.0?;
        self.unanswered.forget(key);
        Ok(abandoned)
    }
}

#[async_trait]
impl<D: Dialect> Lock for Lease<D> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn renew(&self) -> Option<&dyn Renew> {
        Some(self)
    }

    fn rwlock(&self) -> Option<&dyn RwLock> {
        Some(self)
    }

    fn fencing(&self) -> Option<&dyn Fencing> {
        Some(self)
    }

    fn watch(&self) -> Option<&dyn Watch> {
        Some(self)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        D::signals(&self.db)
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        named(&request.key.name, self.try_attempt(request).await)
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        named(&lease.name, self.try_release(lease, how).await)
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        let each = requests.iter();
        join_all(each.map(async |key| named(&key.name, self.try_abandon(key).await))).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.db.open()?;
        diagnose(self.db.server(), false, &self.db.at, &self.db.runtime).await
    }

    async fn close(&self) -> Result<()> {
        self.db.close().await
    }
}
