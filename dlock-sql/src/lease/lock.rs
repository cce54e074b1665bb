//! The backend itself: attempt, release, abandon.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Fencing, Grant, LeaseKey, Lock, Release, Released, Renew, RwLock, Sent,
    Signal, Unanswered, Watch,
};
use dlock_core::{Capabilities, Error, ErrorKind, LockName, Result, Timestamp};
use futures::future::join_all;
use futures::stream::BoxStream;

use super::connection::Database;
use super::dialect::{Dialect, Server};
use super::failure::invalid;
use super::keys::share;
use crate::requests::{check, round_up};

/// Locks in a database server, as leases in rows.
pub(in crate::lease) struct Lease<D: Dialect> {
    pub(in crate::lease) db: Arc<Database<D>>,
    unanswered: Unanswered,
    pub(in crate::lease) capabilities: Capabilities,
}

impl<D: Dialect> fmt::Debug for Lease<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(D::BACKEND)
            .field("at", &self.db.at)
            .finish_non_exhaustive()
    }
}

pub(in crate::lease) fn named<T>(name: &LockName, result: Result<T>) -> Result<T> {
    result.map_err(|e| e.with_name(name))
}

impl<D: Server> Lease<D> {
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

    async fn try_attempt(&self, request: &Acquire) -> Result<Attempt> {
        let request = &self.check(request)?;
        let (db, key) = (&self.db, &request.key);
        db.open()?;
        let asks = self.unanswered.asks(key, Sent::Acquire);
        let mut strayed = false;
        let asked = async {
            let seen = db.contention.of(&key.name, Timestamp::now());
            if request.mode.is_exclusive() && !seen.others {
                let statement = || db.acquire(request, seen.has_row);
                let noted = || self.note_stray(key, &mut strayed);
                let (sent, answer) = db.send_again(statement, noted).await?;
                if let Some(token) = D::acquired(&answer)? {
                    db.contention.tell(&key.name, false, Timestamp::now());
                    let grant = Grant::new(key.clone(), Some(token), sent, request.ttl);
                    return Ok(Attempt::Granted(grant));
                }
            }
            let asked = D::attempt(db, request, || self.note_stray(key, &mut strayed)).await;
            match strayed {
                true => self.after_stray(key, asked).await,
                false => asked,
            }
        };
        asks.answered(asked.await)
    }

    /// A copy of that acquire went unanswered, and may be on its way yet.
    fn note_stray(&self, key: &LeaseKey, strayed: &mut bool) {
        *strayed = true;
        self.unanswered.note(key, Sent::Acquire);
    }

    /// A copy of a request went unanswered, and the next one was refused, or did nothing: whoever asked takes
    /// that as the end of it, and abandons nothing. The first copy would be granted for nobody if it arrived
    /// after the name was let go. One that was granted or queued ends with a release or an abandon, which
    /// leave the tombstone.
    async fn after_stray(&self, key: &LeaseKey, asked: Result<Attempt>) -> Result<Attempt> {
        let unknown = |e: Error| {
            let text = "the lock was refused, but an earlier copy of the request may still be on its way and \
                could not be taken back";
            Error::new(ErrorKind::Unknown, text).with_source(e)
        };
        match asked {
            Ok(Attempt::Held(wait)) => {
                self.try_abandon(key).await.map_err(unknown)?;
                Ok(Attempt::Held(wait))
            }
            // It has a tombstone, or its outcome is looked after already.
            Err(e) if matches!(e.kind(), ErrorKind::Lost | ErrorKind::Unknown) => Err(e),
            Err(e) => Err(unknown(e)),
            Ok(asked) => Ok(asked),
        }
    }

    async fn try_release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        let keep = match how {
            Release::KeepFor(d) => round_up(d),
            _ => Duration::ZERO,
        };
        let db = &self.db;
        let open = self.unanswered.of(lease);
        let asks = self.unanswered.asks(lease, Sent::Release);
        let mut perhaps = open.release;
        let asked = async {
            let alone = || !db.contention.of(&lease.name, Timestamp::now()).others;
            if !open.acquire && keep.is_zero() && alone() {
                let released = db.send_again(|| D::release(db, lease), || perhaps = true);
                if D::is_released(&released.await?.1) {
                    return Ok(true);
                }
            }
            // A copy of the acquire may still come: a tombstone keeps it from being heard.
            D::release_in_full(db, lease, keep, open.acquire, || perhaps = true).await
        };
        let released = asks.answered(asked.await)?;
        self.unanswered.forget(lease);
        db.sweep_sometimes();
        Ok(match released || perhaps {
            true => Released::Released,
            false => Released::NotHeld,
        })
    }

    async fn try_abandon(&self, key: &LeaseKey) -> Result<Abandoned> {
        let abandoned = D::abandon(&self.db, key).await?;
        self.unanswered.forget(key);
        Ok(abandoned)
    }
}

#[async_trait]
impl<D: Server> Lock for Lease<D> {
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

    async fn close(&self) -> Result<()> {
        self.db.close().await
    }
}
