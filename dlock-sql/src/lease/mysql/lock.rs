//! What is asked of MySQL and MariaDB: ask, release, abandon, and the rest in a line or two each.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{Abandoned, Acquire, Attempt, Converted, Grant, LeaseKey, Raised, Release, Released};
use dlock_core::{Error, Inspection, LockName, LossReason, Mode, Result, Token};
use futures::future::BoxFuture;
use sqlx::Arguments as _;
use sqlx::mysql::{MySqlArguments, MySqlConnection};

use super::transaction::Absent;
use super::watch::Watching;
use super::{Db, Mysql, Statement, sweep};
use crate::admit::{Asked, Turned};
use crate::lease::call::get;
use crate::lease::dialect::Dialect;
use crate::lease::failure::invalid;
use crate::lease::keys::{id_bytes, micros, read_ids};
use crate::lease::wait::{Look, looking};

fn bind<'q, T>(args: &mut MySqlArguments, value: T) -> Result<()>
where
    T: sqlx::Encode<'q, sqlx::MySql> + sqlx::Type<sqlx::MySql> + 'q,
{
    let added = args.add(value);
    added.map_err(|e| invalid(format!("a value cannot be stored: {e}")))
}

/// A look at the row of a name, if there is one, and the ends of its leases.
pub(super) async fn look(db: &Arc<Db>, name: &LockName) -> Result<Option<(Look, [i64; 2])>> {
    let statement = || {
        let mut args = MySqlArguments::default();
        bind(&mut args, name.as_bytes())?;
        Ok(Statement::Prepared(db.sql.look.clone(), args))
    };
    let answer = db.read(statement).await?;
    let Some(row) = answer.rows.first() else {
        return Ok(None);
    };
    let (alone, sharing): (Option<String>, Option<String>) = (get(row, 4)?, get(row, 5)?);
    let offered = alone.iter().chain(&sharing).flat_map(|ids| read_ids(ids));
    let look = Look {
        mark: (get(row, 0)?, 0, get(row, 1)?, get(row, 2)?),
        due: get::<Option<i64>, _>(row, 3)? == Some(1),
        offered: offered.collect(),
    };
    db.note_offers(name, &look.offered);
    Ok(Some((look, [get(row, 6)?, get(row, 7)?])))
}

impl Dialect for Mysql {
    type Driver = sqlx::MySql;
    type Watcher = Watching;

    const BACKEND: &'static str = "mysql";
    const CONTENDED: Duration = Duration::ZERO;
    const PING_AFTER: Option<Duration> = Some(Duration::from_secs(5));
    const LOOK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));
    const RESET: &'static str = "ROLLBACK";

    fn connect(&self) -> BoxFuture<'static, Result<MySqlConnection, sqlx::Error>> {
        self.connecting(self.sql.prepared())
    }

    async fn acquire(db: &Arc<Db>, request: &Acquire, has_row: bool) -> Result<Option<Grant>> {
        let (name, ttl) = (request.key.name.as_bytes(), micros(request.ttl));
        let id = id_bytes(request.key.id);
        let mut args = MySqlArguments::default();
        let taken = |args: &mut MySqlArguments| {
            bind(args, ttl)?;
            bind(args, ttl)?;
            bind(args, request.owner.as_deref())?;
            bind(args, &id[..])
        };
        let text = match has_row {
            true => {
                taken(&mut args)?;
                bind(&mut args, name)?;
                &db.sql.acquire_again
            }
            false => {
                bind(&mut args, name)?;
                taken(&mut args)?;
                taken(&mut args)?;
                &db.sql.acquire
            }
        };
        let (sent, answer) = db.send(Statement::Prepared(text.clone(), args)).await?;
        let token = Token::new(answer.done.last_insert_id());
        Ok(token.map(|token| Grant::new(request.key.clone(), Some(token), sent, request.ttl)))
    }

    async fn release(db: &Arc<Db>, lease: &LeaseKey) -> Result<bool> {
        let mut args = MySqlArguments::default();
        bind(&mut args, lease.name.as_bytes())?;
        bind(&mut args, &id_bytes(lease.id)[..])?;
        let release = Statement::Prepared(db.sql.release.clone(), args);
        Ok(db.send(release).await?.1.done.last_insert_id() != 0)
    }

    async fn attempt(db: &Arc<Db>, request: &Acquire) -> Result<Attempt> {
        let (key, own) = (&request.key, request.clone());
        let asked = db.change(&key.name, Absent::Made, move |name| {
            match name.is_buried(own.key.id) {
                true => Err(Error::lost(LossReason::Refused)),
                false => name.state.attempt(&own, name.now, &mut name.tokens),
            }
        });
        let (sent, asked, mark) = asked.await?;
        let looking = |recheck_in, ahead| {
            let mut wait = looking(db, key, mark);
            (wait.recheck_in, wait.ahead) = (recheck_in, ahead);
            wait
        };
        match asked {
            Some(Asked::Granted { token, expires_in }) => {
                Ok(Attempt::Granted(Grant::new(key.clone(), token, sent, expires_in)))
            }
            Some(Asked::Queued { recheck_in, ahead }) => Ok(Attempt::Queued(looking(recheck_in, ahead))),
            Some(Asked::Held { recheck_in }) => Ok(Attempt::Held(looking(recheck_in, None))),
            Some(Asked::Gone) | None => Err(Error::lost(LossReason::Released)),
        }
    }

    async fn release_in_full(db: &Arc<Db>, lease: &LeaseKey, keep: Duration, bury: bool) -> Result<bool> {
        let absent = if bury { Absent::Made } else { Absent::Left };
        let id = lease.id;
        let how = match keep.is_zero() {
            true => Release::Now,
            false => Release::KeepFor(keep),
        };
        let released = db.change(&lease.name, absent, move |name| {
            let released = name.state.release(id, how, name.now, &mut name.tokens);
            if bury {
                name.bury(id);
            }
            Ok(released)
        });
        Ok(released.await?.1 == Some(Released::Released))
    }

    async fn abandon(db: &Arc<Db>, key: &LeaseKey) -> Result<Abandoned> {
        let id = key.id;
        let abandoned = db.change(&key.name, Absent::Made, move |name| {
            let abandoned = name.state.abandon(id, name.now, &mut name.tokens);
            name.bury(id);
            Ok(abandoned)
        });
        Ok(abandoned.await?.1.unwrap_or(Abandoned::Nothing))
    }

    async fn convert(db: &Arc<Db>, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let id = lease.id;
        let turned = db.change(&lease.name, Absent::Left, move |name| {
            name.state.convert(id, to, name.now, &mut name.tokens)
        });
        let (sent, turned, _) = turned.await?;
        match turned {
            Some(Turned::Done { token, expires_in }) => Ok(Converted::Done(Grant::new(
                lease.clone(),
                token,
                sent,
                expires_in,
            ))),
            Some(Turned::Busy) => Ok(Converted::Busy),
            Some(Turned::WouldDeadlock) => Ok(Converted::WouldDeadlock),
            None => Err(Error::lost(LossReason::Refused)),
        }
    }

    async fn raise(db: &Arc<Db>, lease: &LeaseKey, to: Token) -> Result<Raised> {
        let id = lease.id;
        let raised = db.change(&lease.name, Absent::Left, move |name| {
            Ok(name.state.raise(id, to, &mut name.tokens))
        });
        Ok(raised.await?.1.unwrap_or(Raised::NotHeld))
    }

    async fn look(db: &Arc<Db>, name: &LockName) -> Result<Look> {
        Ok(look(db, name).await?.map(|(look, _)| look).unwrap_or_default())
    }

    async fn inspect(db: &Arc<Db>, name: &LockName) -> Result<Inspection> {
        let loaded = db.look_at(name).await?;
        Ok(loaded.map_or_else(Inspection::default, |loaded| loaded.state.inspect(loaded.now)))
    }

    async fn force_release(db: &Arc<Db>, name: &LockName) -> Result<u32> {
        let forced = db.change(name, Absent::Left, |name| {
            Ok(name.state.force_release(name.now, &mut name.tokens))
        });
        Ok(forced.await?.1.unwrap_or(0))
    }

    async fn is_due(db: &Arc<Db>) -> Result<bool> {
        sweep::is_due(db).await
    }

    async fn sweep(db: &Arc<Db>) -> Result<()> {
        sweep::sweep(db).await
    }
}
