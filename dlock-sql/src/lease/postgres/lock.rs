//! The heart: ask, release, abandon.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Grant, LeaseKey, Lock, Part, PartKind, Queueing, Release, Released, Signal,
    Wait, Wake,
};
use dlock_core::{Capabilities, Error, ErrorKind, LossReason, Result, Timestamp};
use futures::future::join_all;
use futures::stream::{BoxStream, StreamExt as _};

use super::call::Value;
use super::connections::Link;
use super::failure::foreign;
use super::probe::RowProbe;
use super::pushes::Waiting;
use super::reply::{Answer, id_bytes};
use crate::lease::check::{capabilities, check_request, micros, mismatch, share};
use crate::lease::retried::{Retried, Sent};

/// How soon whoever has to look looks again, and how late.
const LOOK_MIN: Duration = Duration::from_millis(10);
const LOOK_MAX: Duration = Duration::from_millis(200);

/// Locks in a PostgreSQL database, as leases in rows.
///
/// Clones share the connections.
#[derive(Clone)]
pub struct PostgresLease {
    pub(super) link: Arc<Link>,
    pub(super) retried: Arc<Retried>,
    capabilities: Arc<Capabilities>,
}

impl fmt::Debug for PostgresLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLease")
            .field("at", &self.link.at)
            .finish_non_exhaustive()
    }
}

impl PostgresLease {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            retried: Arc::default(),
            capabilities: Arc::new(capabilities("postgres")),
        }
    }

    async fn try_attempt(&self, request: &Acquire) -> Result<Attempt> {
        check_request(&self.capabilities, request)?;
        let link = &self.link;
        link.open()?;
        let share = share(request.mode)?;
        let joins = request.queue == Queueing::Join;
        // Before the request is sent: a push may overtake the answer. While nobody listens whoever waits looks.
        let waiting = match joins {
            true => link.pushes.wait_for(&request.key),
            false => None,
        };
        let channel = waiting.as_ref().and(link.channel.as_deref());
        let queue = match joins {
            true => micros(request.queue_ttl).max(1_000),
            false => 0,
        };
        let text = match share < 0 {
            true => &link.sql.acquire,
            false => &link.sql.attempt,
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
        let asks = self.retried.asks(&request.key, Sent::Acquire);
        let mut strayed = false;
        let noted = || {
            strayed = true;
            self.retried.note(&request.key, Sent::Acquire, Timestamp::now());
        };
        let (sent, rows) = asks.answered(link.ask_again(text, &values, noted).await)?;
        let answer = Answer::of(&rows)?;
        if strayed && matches!(answer.word.as_str(), "H" | "M") {
            self.bury_stray(&request.key).await?;
        }
        self.read_attempt(request, sent, &answer, waiting)
    }

    /// A copy of a request went unanswered, and the next one was refused: whoever asked takes that as the end of it, and abandons nothing. The first
    /// copy may be on its way yet, and would be granted for nobody when it arrives after the name was let go.
    async fn bury_stray(&self, key: &LeaseKey) -> Result<()> {
        self.try_abandon(key).await.map(drop).map_err(|e| {
            let message = "the lock was refused, but an earlier copy of the request may still be on its way and could not be taken back";
            Error::new(ErrorKind::Unknown, message).with_source(e)
        })
    }

    fn read_attempt(
        &self,
        request: &Acquire,
        sent: Timestamp,
        answer: &Answer,
        waiting: Option<Waiting>,
    ) -> Result<Attempt> {
        self.link.pushes.anchor(sent, answer.at);
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
            probe: Arc::new(RowProbe::new(self.link.clone(), key.clone())),
            min: LOOK_MIN,
            max: LOOK_MAX,
        })
    }

    async fn try_abandon(&self, key: &LeaseKey) -> Result<Abandoned> {
        let id = id_bytes(key.id);
        let values = [Value::Bytes(key.name.as_bytes()), Value::Bytes(&id)];
        let (_, rows) = self
            .link
            .ask_again(&self.link.sql.abandon, &values, || ())
            .await?;
        self.retried.forget(key);
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

    fn part(&self, kind: PartKind) -> Option<Part<'_>> {
        match kind {
            PartKind::RwLock => Some(Part::RwLock(self)),
            PartKind::Fencing => Some(Part::Fencing(self)),
            PartKind::Watch => Some(Part::Watch(self)),
            PartKind::Renew => Some(Part::Renew(self)),
            _ => None,
        }
    }

    /// No lease hangs on a connection: that one broke is a reason to ask again, and no loss.
    fn signals(&self) -> BoxStream<'static, Signal> {
        let signals = self.link.pushes.signals();
        signals.chain(futures::stream::pending()).boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        self.try_attempt(request)
            .await
            .map_err(|e| e.with_name(&request.key.name))
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        let named = |e: Error| e.with_name(&lease.name);
        let keep = match how {
            Release::KeepFor(d) => micros(d),
            _ => 0,
        };
        let link = &self.link;
        let open = self.retried.of(lease);
        let id = id_bytes(lease.id);
        let (name, id) = (Value::Bytes(lease.name.as_bytes()), Value::Bytes(&id));
        let asks = self.retried.asks(lease, Sent::Release);
        let mut perhaps = open.release;
        let noted = || perhaps = true;
        let answered = match keep > 0 || open.acquire {
            // A copy of the acquire may still come: a tombstone keeps it from being heard.
            true => {
                let values = [name, id, Value::Long(keep), Value::Truth(open.acquire)];
                link.ask_again(&link.sql.release_with, &values, noted).await
            }
            false => link.ask_again(&link.sql.release, &[name, id], noted).await,
        };
        let (sent, rows) = asks.answered(answered).map_err(named)?;
        self.retried.forget(lease);
        let answer = Answer::of(&rows).map_err(named)?;
        link.pushes.anchor(sent, answer.at);
        link.sweep_sometimes();
        Ok(match answer.word == "R" || perhaps {
            true => Released::Released,
            false => Released::NotHeld,
        })
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        join_all(requests.iter().map(|key| async move {
            let abandoned = self.try_abandon(key).await;
            abandoned.map_err(|e| e.with_name(&key.name))
        }))
        .await
    }

    async fn close(&self) -> Result<()> {
        if self.link.open().is_err() {
            return Err(Error::new(
                ErrorKind::Closed,
                "this PostgreSQL backend was closed",
            ));
        }
        self.link.close().await;
        Ok(())
    }
}
