//! The requests to MySQL and MariaDB: attempt, release, abandon, and the rest in a line or two each.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Converted, Grant, LeaseKey, Raised, Release, Released, RenewItem, Signal,
};
use dlock_core::{Admission, Error, Inspection, LockName, LossReason, Mode, Result, Token};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use sqlx::mysql::{MySqlArguments, MySqlConnection};

use super::schema::NOW;
use super::state::Loaded;
use super::transaction::Absent;
use super::watch::Watching;
use super::{Db, Mysql, Statement, bytes, renew, sweep};
use crate::admit::Asked;
use crate::driver_url::Options;
use crate::gate::{Pass, admission, pass};
use crate::keys::bind;
use crate::lease::call::get;
use crate::lease::dialect::{Dialect, Look, Outcomes};
use crate::lease::keys::{id_bytes, micros, read_ids};
use crate::listing::{PAGE, Span};
use crate::probe::looking;

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
    db.bells.are_wanted();
    Ok(Some((look, [get(row, 6)?, get(row, 7)?])))
}

impl Dialect for Mysql {
    type Driver = sqlx::MySql;
    type Watcher = Watching;

    const BACKEND: &'static str = "mysql";
    const CONTENDED: Duration = Duration::ZERO;
    const PING_AFTER: Option<Duration> = Some(Duration::from_secs(5));
    const RESET: &'static str = "ROLLBACK";

    fn server(&self) -> Options {
        Options::Mysql(Arc::new(self.options.clone()))
    }

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
                false => Ok((name.settled().attempt(&own)?, name.sent)),
            }
        });
        let (asked, mark) = asked.await?;
        let wake = || looking(db.clone(), key.clone(), mark, db.hang_bell(key.id.client()));
        match asked {
            Some((Asked::Granted(lease), sent)) => Ok(Attempt::Granted(lease.grant(key.clone(), sent))),
            Some((Asked::Queued(place), _)) => Ok(Attempt::Queued(place.wait(wake()))),
            Some((Asked::Held(place), _)) => Ok(Attempt::Held(place.wait(wake()))),
            None => Err(Error::lost(LossReason::Released)),
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
            let released = name.settled().release(id, how);
            if bury {
                name.bury(id);
            }
            Ok(released)
        });
        Ok(released.await?.0 == Some(Released::Released))
    }

    async fn renew(db: &Arc<Db>, items: Vec<(usize, &RenewItem)>) -> Outcomes {
        renew::renew(db, items).await
    }

    async fn abandon(db: &Arc<Db>, key: &LeaseKey) -> Result<Abandoned> {
        let id = key.id;
        let abandoned = db.change(&key.name, Absent::Made, move |name| {
            let abandoned = name.settled().abandon(id);
            name.bury(id);
            Ok(abandoned)
        });
        Ok(abandoned.await?.0.unwrap_or(Abandoned::Nothing))
    }

    async fn convert(db: &Arc<Db>, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let key = lease.clone();
        let convert = move |name: &mut Loaded| {
            let sent = name.sent;
            name.settled().convert(&key, to, sent)
        };
        let (converted, _) = db.change(&lease.name, Absent::Left, convert).await?;
        converted.ok_or_else(|| Error::lost(LossReason::Refused))
    }

    async fn raise(db: &Arc<Db>, lease: &LeaseKey, to: Token) -> Result<Raised> {
        let id = lease.id;
        let raise = move |name: &mut Loaded| Ok(name.settled().raise(id, to));
        let (raised, _) = db.change(&lease.name, Absent::Left, raise).await?;
        Ok(raised.unwrap_or(Raised::NotHeld))
    }

    async fn pass(db: &Arc<Db>, passes: Pass<'_>) -> Result<Admission> {
        let text = pass::<sqlx::MySql>(&db.fence, passes)?;
        let (_, told) = db.tell(format!("START TRANSACTION; {text}; COMMIT")).await?;
        admission::<sqlx::MySql>(&told.rows, passes.1, passes.2)
    }

    async fn look(db: &Arc<Db>, name: &LockName) -> Result<Look> {
        Ok(look(db, name).await?.map(|(look, _)| look).unwrap_or_default())
    }

    async fn inspect(db: &Arc<Db>, name: &LockName) -> Result<Inspection> {
        let loaded = db.look_at(name).await?;
        Ok(loaded.map_or_else(Inspection::default, |loaded| {
            loaded.state.rows.inspect(loaded.now)
        }))
    }

    async fn force_release(db: &Arc<Db>, name: &LockName) -> Result<u32> {
        let force = |name: &mut Loaded| Ok(name.settled().force_release());
        let (forced, _) = db.change(name, Absent::Left, force).await?;
        Ok(forced.unwrap_or(0))
    }

    async fn list(db: &Arc<Db>, span: Span) -> Result<Vec<Vec<u8>>> {
        let (p, from) = (&db.sql.prefix, bytes(&span.from));
        let until = span.until.map(|until| format!("AND k.name < {}", bytes(&until)));
        let until = until.unwrap_or_default();
        let list = format!(
            "SELECT k.name FROM {p}name AS k WHERE k.name >= {from} {until} AND (k.phase > 0 \
                AND k.ends > {NOW} OR k.others > 0 AND EXISTS (SELECT 1 FROM {p}entry AS o \
                WHERE o.name = k.name AND o.phase < 4 AND o.ends > {NOW})) ORDER BY k.name LIMIT {PAGE}"
        );
        let rows = db.read_text(list).await?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        self.bells.rings()
    }

    async fn is_due(db: &Arc<Db>) -> Result<bool> {
        sweep::is_due(db).await
    }

    async fn sweep(db: &Arc<Db>) -> Result<()> {
        sweep::sweep(db).await
    }
}
