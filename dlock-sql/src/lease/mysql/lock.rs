//! The heart: ask, release, abandon.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Fencing, Grant, LeaseKey, Lock, Queueing, Release, Released, Renew, RwLock,
    Sent, Signal, Unanswered, Wait, Wake, Watch,
};
use dlock_core::{Capabilities, Error, LossReason, Mode, Result, Token};
use futures::future::join_all;
use futures::stream::{self, BoxStream, StreamExt as _};
use sqlx::Arguments as _;
use sqlx::mysql::MySqlArguments;

use super::connection::Db;
use super::state::Mark;
use super::text::id_bytes;
use super::transaction::Absent;
use super::wait::RowProbe;
use crate::admit::{Asked, WATCH};
use crate::lease::contention::Seen;
use crate::lease::request::{capabilities, check_request, invalid, micros};
use crate::lease::resent::after_resent;

/// How soon whoever waits looks again, and how late.
const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(100);

/// Locks in a MySQL or MariaDB database, as leases in rows.
///
/// Clones share the connections.
#[derive(Clone)]
pub struct MysqlLease {
    pub(super) db: Arc<Db>,
    pub(super) unanswered: Arc<Unanswered>,
    capabilities: Arc<Capabilities>,
}

impl fmt::Debug for MysqlLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlLease")
            .field("at", &self.db.at)
            .finish_non_exhaustive()
    }
}

/// The values of a statement.
pub(super) fn values() -> MySqlArguments {
    MySqlArguments::default()
}

pub(super) fn bind<'q, T>(args: &mut MySqlArguments, value: T) -> Result<()>
where
    T: sqlx::Encode<'q, sqlx::MySql> + sqlx::Type<sqlx::MySql> + 'q,
{
    args.add(value)
        .map_err(|e| invalid(format!("a value cannot be stored: {e}")))
}

/// As the admission rule takes it: rounded up to the granularity.
pub(super) fn round_up(d: Duration) -> Duration {
    Duration::from_micros(u64::try_from(micros(d)).unwrap_or(0))
}

impl MysqlLease {
    pub(super) fn new(db: Arc<Db>) -> Self {
        Self {
            db,
            unanswered: Arc::default(),
            capabilities: Arc::new(capabilities("mysql")),
        }
    }

    fn looking(
        &self,
        key: &LeaseKey,
        mark: Option<Mark>,
        recheck_in: Option<Duration>,
        ahead: Option<u32>,
    ) -> Wait {
        let mut wait = Wait::new(Wake::Poll {
            probe: Arc::new(RowProbe::new(self.db.clone(), key.clone(), mark)),
            min: LOOK_MIN,
            max: LOOK_MAX,
        });
        wait.recheck_in = recheck_in;
        wait.ahead = ahead;
        wait
    }

    /// Takes a name alone that nobody else is at: one statement, which finds nothing otherwise, and nothing
    /// either if it is to find a row and there is none. `strayed` is set where a copy of it may be on its way
    /// yet.
    async fn take(&self, row: bool, request: &Acquire, strayed: &mut bool) -> Result<Option<Grant>> {
        let ttl = micros(request.ttl);
        let id = id_bytes(request.key.id);
        let name = request.key.name.as_bytes();
        let taken = |args: &mut MySqlArguments| {
            bind(args, ttl)?;
            bind(args, ttl)?;
            bind(args, request.owner.as_deref())?;
            bind(args, &id[..])
        };
        let args = || {
            let mut args = values();
            if !row {
                bind(&mut args, name)?;
                taken(&mut args)?;
            }
            taken(&mut args)?;
            if row {
                bind(&mut args, name)?;
            }
            Ok(args)
        };
        let noted = || {
            *strayed = true;
            self.unanswered.note(&request.key, Sent::Acquire);
        };
        let sql = &self.db.sql;
        let by = if row { &sql.acquire_again } else { &sql.acquire };
        let (sent, token) = self.db.ask_again(by, args, noted).await?;
        let Some(token) = Token::new(token) else {
            return Ok(None);
        };
        self.db.contention.tell(&request.key.name, Seen::Alone);
        let life = round_up(request.ttl);
        Ok(Some(Grant::new(request.key.clone(), Some(token), sent, life)))
    }

    async fn try_attempt(&self, request: &Acquire) -> Result<Attempt> {
        check_request(&self.capabilities, request)?;
        if request.key.id == WATCH {
            return Err(invalid(
                "the largest of all request ids is the backend's own".to_owned(),
            ));
        }
        self.db.open()?;
        let asks = self.unanswered.asks(&request.key, Sent::Acquire);
        let mut strayed = false;
        let asked = async {
            let seen = self.db.contention.of(&request.key.name);
            if request.mode == Mode::Exclusive
                && seen != Some(Seen::Others)
                && let Some(grant) = self.take(seen.is_some(), request, &mut strayed).await?
            {
                return Ok(Attempt::Granted(grant));
            }
            let asked = self.attempt_in_full(request).await;
            match strayed {
                true => after_resent(asked, self.try_abandon(&request.key)).await,
                false => asked,
            }
        };
        asks.answered(asked.await)
    }

    async fn attempt_in_full(&self, request: &Acquire) -> Result<Attempt> {
        let mut checked = request.clone();
        checked.ttl = round_up(request.ttl);
        checked.queue_ttl = round_up(request.queue_ttl);
        let key = &request.key;
        let (sent, asked, mark) = self
            .db
            .change_and_mark(std::slice::from_ref(&key.name), Absent::Made, move |view| {
                let now = view.now;
                let name = view.made(&checked.key.name)?;
                if name.is_buried(checked.key.id) {
                    return Err(Error::lost(LossReason::Refused));
                }
                name.state.attempt(&checked, now, &mut name.tokens)
            })
            .await?;
        Ok(match asked {
            Asked::Granted { token, expires_in } => {
                Attempt::Granted(Grant::new(key.clone(), token, sent, expires_in))
            }
            Asked::Queued { recheck_in, ahead } => {
                debug_assert!(request.queue == Queueing::Join);
                Attempt::Queued(self.looking(key, mark, recheck_in, ahead))
            }
            Asked::Held { recheck_in } => Attempt::Held(self.looking(key, mark, recheck_in, None)),
            Asked::Gone => return Err(Error::lost(LossReason::Released)),
        })
    }

    /// Lets go of a name that nobody else is at.
    async fn let_go(&self, lease: &LeaseKey, noted: impl FnOnce() + Send) -> Result<bool> {
        let id = id_bytes(lease.id);
        let args = || {
            let mut args = values();
            bind(&mut args, lease.name.as_bytes())?;
            bind(&mut args, &id[..])?;
            Ok(args)
        };
        let (_, token) = self.db.ask_again(&self.db.sql.release, args, noted).await?;
        Ok(token != 0)
    }

    async fn try_release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        let how = match how {
            Release::KeepFor(d) if !d.is_zero() => Release::KeepFor(round_up(d)),
            _ => Release::Now,
        };
        let open = self.unanswered.of(lease);
        let asks = self.unanswered.asks(lease, Sent::Release);
        let mut perhaps = open.release;
        let asked = async {
            let short = how == Release::Now
                && !open.acquire
                && self.db.contention.of(&lease.name) != Some(Seen::Others);
            if short && self.let_go(lease, || perhaps = true).await? {
                return Ok(Released::Released);
            }
            // A copy of the acquire may still come: a tombstone keeps it from being heard.
            let absent = if open.acquire { Absent::Made } else { Absent::Left };
            let (key, strayed) = (lease.clone(), open.acquire);
            let released = self
                .db
                .change(std::slice::from_ref(&lease.name), absent, move |view| {
                    let now = view.now;
                    let Some(name) = view.name(&key.name)? else {
                        return Ok(Released::NotHeld);
                    };
                    let released = name.state.release(key.id, how, now, &mut name.tokens);
                    if strayed {
                        name.bury(key.id, now);
                    }
                    Ok(released)
                })
                .await?;
            Ok(released.1)
        };
        let released = asks.answered(asked.await)?;
        self.unanswered.forget(lease);
        self.db.sweep_sometimes();
        Ok(match released {
            Released::NotHeld if perhaps => Released::Released,
            released => released,
        })
    }

    async fn try_abandon(&self, key: &LeaseKey) -> Result<Abandoned> {
        let own = key.clone();
        let (_, abandoned) = self
            .db
            .change(std::slice::from_ref(&key.name), Absent::Made, move |view| {
                let now = view.now;
                let name = view.made(&own.name)?;
                let abandoned = name.state.abandon(own.id, now, &mut name.tokens);
                name.bury(own.id, now);
                Ok(abandoned)
            })
            .await?;
        self.unanswered.forget(key);
        Ok(abandoned)
    }
}

#[async_trait]
impl Lock for MysqlLease {
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

    /// No lease hangs on a connection, and nothing is pushed.
    fn signals(&self) -> BoxStream<'static, Signal> {
        stream::pending().boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        let attempt = self.try_attempt(request).await;
        attempt.map_err(|e| e.with_name(&request.key.name))
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
