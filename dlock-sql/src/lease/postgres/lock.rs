//! The heart: ask, release, abandon.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Fencing, Grant, LeaseKey, Lock, Queueing, Release, Released, Renew, RwLock,
    Sent, Signal, Unanswered, Wait, Wake, Watch,
};
use dlock_core::{Capabilities, Error, LossReason, Result, Timestamp};
use futures::future::join_all;
use futures::stream::{BoxStream, StreamExt as _};

use super::call::Value;
use super::connection::Db;
use super::failure::foreign;
use super::pushes::Waiting;
use super::reply::{Answer, id_bytes, token_of};
use super::wait::RowProbe;
use crate::lease::contention::Seen;
use crate::lease::request::{capabilities, check_request, micros, mismatch, share};
use crate::lease::resent::after_resent;

/// How soon whoever has to look looks again, and how late.
const LOOK_MIN: Duration = Duration::from_millis(10);
const LOOK_MAX: Duration = Duration::from_millis(200);

/// Locks in a PostgreSQL database, as leases in rows.
///
/// Clones share the connections.
#[derive(Clone)]
pub struct PostgresLease {
    pub(super) db: Arc<Db>,
    pub(super) unanswered: Arc<Unanswered>,
    capabilities: Arc<Capabilities>,
}

impl fmt::Debug for PostgresLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLease")
            .field("at", &self.db.at)
            .finish_non_exhaustive()
    }
}

impl PostgresLease {
    pub(super) fn new(db: Arc<Db>) -> Self {
        Self {
            db,
            unanswered: Arc::default(),
            capabilities: Arc::new(capabilities("postgres")),
        }
    }

    /// Takes a name alone by a statement that answers nothing if others are there. `strayed` is set where a
    /// copy of it may be on its way yet.
    async fn take(&self, by: &Arc<str>, request: &Acquire, strayed: &mut bool) -> Result<Option<Grant>> {
        let (db, ttl) = (&self.db, micros(request.ttl));
        let id = id_bytes(request.key.id);
        let values = [
            Value::Bytes(request.key.name.as_bytes()),
            Value::Bytes(&id),
            Value::Long(ttl),
            Value::Text(request.owner.as_deref()),
        ];
        let noted = || self.note_stray(&request.key, strayed);
        let (sent, rows) = db.ask_again(by, &values, noted).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        db.contention.tell(&request.key.name, Seen::Alone);
        let life = Duration::from_micros(u64::try_from(ttl).unwrap_or(0));
        let token = token_of(row)?;
        Ok(Some(Grant::new(request.key.clone(), Some(token), sent, life)))
    }

    fn note_stray(&self, key: &LeaseKey, strayed: &mut bool) {
        *strayed = true;
        self.unanswered.note(key, Sent::Acquire);
    }

    async fn try_attempt(&self, request: &Acquire) -> Result<Attempt> {
        check_request(&self.capabilities, request)?;
        self.db.open()?;
        let share = share(request.mode)?;
        let asks = self.unanswered.asks(&request.key, Sent::Acquire);
        let mut strayed = false;
        let asked = async {
            let sql = &self.db.sql;
            let short = match self.db.contention.of(&request.key.name) {
                _ if share >= 0 => None,
                None => Some(&sql.acquire),
                Some(Seen::Alone) => Some(&sql.acquire_again),
                Some(Seen::Others) => None,
            };
            if let Some(short) = short
                && let Some(grant) = self.take(short, request, &mut strayed).await?
            {
                return Ok(Attempt::Granted(grant));
            }
            let asked = self.attempt_in_full(request, share, &mut strayed).await;
            match strayed {
                true => after_resent(asked, self.try_abandon(&request.key)).await,
                false => asked,
            }
        };
        asks.answered(asked.await)
    }

    async fn attempt_in_full(&self, request: &Acquire, share: i32, strayed: &mut bool) -> Result<Attempt> {
        let db = &self.db;
        let joins = request.queue == Queueing::Join;
        // Before the request is sent: a push may overtake the answer. While nobody listens whoever waits
        // looks.
        let waiting = match joins {
            true => db.pushes.wait_for(&request.key),
            false => None,
        };
        let channel = waiting.as_ref().and(db.channel.as_deref());
        let queue = match joins {
            true => micros(request.queue_ttl).max(1_000),
            false => 0,
        };
        let id = id_bytes(request.key.id);
        let values = [
            Value::Bytes(request.key.name.as_bytes()),
            Value::Bytes(&id),
            Value::Number(share),
            Value::Long(micros(request.ttl)),
            Value::Long(queue),
            Value::Number(i32::from(request.priority)),
            Value::Text(channel),
            Value::Text(request.owner.as_deref()),
        ];
        let noted = || self.note_stray(&request.key, strayed);
        let (sent, rows) = db.ask_again(&db.sql.attempt, &values, noted).await?;
        let answer = Answer::of(&rows)?;
        // Where somebody else holds it the short statement finds nothing either.
        let others = answer.others > 0 || answer.word == "H";
        db.contention.tell(&request.key.name, Seen::others(others));
        self.read_attempt(request, sent, &answer, waiting)
    }

    fn read_attempt(
        &self,
        request: &Acquire,
        sent: Timestamp,
        answer: &Answer,
        waiting: Option<Waiting>,
    ) -> Result<Attempt> {
        self.db.pushes.anchor(sent, answer.at);
        match answer.word.as_str() {
            "G" => {
                let (token, life) = (answer.token()?, answer.life()?);
                let grant = Grant::new(request.key.clone(), Some(token), sent, life);
                Ok(Attempt::Granted(grant))
            }
            "Q" => {
                let mut wait = match waiting {
                    Some(waiting) => Wait::new(Wake::Push(waiting.boxed())),
                    None => self.looking(&request.key),
                };
                wait.recheck_in = answer.recheck();
                wait.ahead = answer.ahead();
                Ok(Attempt::Queued(wait))
            }
            "H" => {
                let mut wait = self.looking(&request.key);
                wait.recheck_in = answer.recheck();
                Ok(Attempt::Held(wait))
            }
            "M" => Err(mismatch(answer.number(), request.mode)),
            "A" => Err(Error::lost(LossReason::Refused)),
            "R" => Err(Error::lost(LossReason::Released)),
            _ => Err(foreign("an unknown word")),
        }
    }

    fn looking(&self, key: &LeaseKey) -> Wait {
        Wait::new(Wake::Poll {
            probe: Arc::new(RowProbe::new(self.db.clone(), key.clone())),
            min: LOOK_MIN,
            max: LOOK_MAX,
        })
    }

    /// Lets go of a name that nobody else is at.
    async fn let_go(&self, lease: &LeaseKey, noted: impl FnOnce() + Send) -> Result<bool> {
        let id = id_bytes(lease.id);
        let values = [Value::Bytes(lease.name.as_bytes()), Value::Bytes(&id)];
        let (_, rows) = self.db.ask_again(&self.db.sql.release, &values, noted).await?;
        Ok(rows.count > 0)
    }

    async fn try_release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        let keep = match how {
            Release::KeepFor(d) => micros(d),
            _ => 0,
        };
        let db = &self.db;
        let open = self.unanswered.of(lease);
        let asks = self.unanswered.asks(lease, Sent::Release);
        let mut perhaps = open.release;
        let asked = async {
            let short = keep == 0 && !open.acquire && db.contention.of(&lease.name) != Some(Seen::Others);
            if short && self.let_go(lease, || perhaps = true).await? {
                return Ok(true);
            }
            // A copy of the acquire may still come: a tombstone keeps it from being heard.
            let id = id_bytes(lease.id);
            let values = [
                Value::Bytes(lease.name.as_bytes()),
                Value::Bytes(&id),
                Value::Long(keep),
                Value::Truth(open.acquire),
            ];
            let released = db.ask_again(&db.sql.release_in_full, &values, || perhaps = true);
            let (sent, rows) = released.await?;
            let answer = Answer::of(&rows)?;
            // Otherwise there is no row.
            if answer.at.is_some() {
                db.contention.tell(&lease.name, Seen::others(answer.others > 0));
            }
            db.pushes.anchor(sent, answer.at);
            Ok(answer.word == "R")
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
        let id = id_bytes(key.id);
        let values = [Value::Bytes(key.name.as_bytes()), Value::Bytes(&id)];
        let (_, rows) = self.db.ask_again(&self.db.sql.abandon, &values, || ()).await?;
        self.unanswered.forget(key);
        let answer = Answer::of(&rows)?;
        Ok(match answer.word.as_str() {
            "W" => Abandoned::Withdrawn,
            "G" => Abandoned::WasGranted(Some(answer.token()?)),
            _ => Abandoned::Nothing,
        })
    }
}

#[async_trait]
impl Lock for PostgresLease {
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

    /// No lease hangs on a connection: that one broke is a reason to ask again, and no loss.
    fn signals(&self) -> BoxStream<'static, Signal> {
        let signals = self.db.pushes.signals();
        signals.chain(futures::stream::pending()).boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        self.try_attempt(request)
            .await
            .map_err(|e| e.with_name(&request.key.name))
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        let released = self.try_release(lease, how).await;
        released.map_err(|e| e.with_name(&lease.name))
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        join_all(requests.iter().map(|key| async move {
            let abandoned = self.try_abandon(key).await;
            abandoned.map_err(|e| e.with_name(&key.name))
        }))
        .await
    }

    async fn close(&self) -> Result<()> {
        self.db.close().await
    }
}
