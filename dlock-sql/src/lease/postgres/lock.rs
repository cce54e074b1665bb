//! What is asked of PostgreSQL: ask, release, abandon, and the rest in a line or two each.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Converted, LeaseKey, Queueing, Raised, RenewItem, Signal, Wait, Wake,
};
use dlock_core::{
    Access, Admission, Change, Error, ErrorKind, FencedValue, Holder, Inspection, LockName, LossReason, Mode,
    Result, Token,
};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt as _};
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Row as _};

use super::answer::Answer;
use super::call::{Rows, Statement, Value};
use super::connection::{Postgres, connecting};
use super::watch::Watching;
use super::{Db, failure, gate, renew};
use crate::lease::dialect::{Dialect, Outcomes};
use crate::lease::failure::{foreign, foreign_column};
use crate::lease::keys::{id_bytes, micros, read_id, read_ids, read_micros, read_mode, read_token, share};
use crate::lease::wait::{Look, looking};

/// For how long nobody has used a name whose row is deleted. Longer than a tombstone stands.
const AGE: Duration = Duration::from_secs(120);

/// How many names a sweep deletes, which keeps none that is in use waiting.
const MOST: i32 = 10_000;

impl Dialect for Postgres {
    type Connection = PgConnection;
    type Statement = Statement;
    type Answer = Rows;
    type Watcher = Watching;

    const NAME: &'static str = "PostgreSQL";
    const BACKEND: &'static str = "postgres";
    const CONTENDED: Duration = Duration::from_millis(100);
    const PING_AFTER: Option<Duration> = None;
    const REFUSAL_LEAVES_TRANSACTION: bool = false;
    const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

    fn connect(&self) -> BoxFuture<'static, Result<PgConnection, sqlx::Error>> {
        connecting(&self.options, self.warm())
    }

    fn run(statement: Statement, conn: &mut PgConnection) -> BoxFuture<'_, Result<Rows, sqlx::Error>> {
        statement.run(conn).boxed()
    }

    fn reset(conn: &mut PgConnection) -> BoxFuture<'_, Result<(), sqlx::Error>> {
        conn.ping().boxed()
    }

    fn is_fatal(e: &sqlx::Error) -> bool {
        failure::is_fatal(e)
    }

    fn is_unknown(e: &sqlx::Error) -> bool {
        failure::is_unknown(e)
    }

    fn meaning(e: &sqlx::Error) -> Option<(ErrorKind, &'static str)> {
        failure::meaning(e)
    }

    fn acquire(&self, request: &Acquire, has_row: bool) -> Result<Statement> {
        let text = match has_row {
            true => &self.sql.acquire_again,
            false => &self.sql.acquire,
        };
        let values = [
            Value::Bytes(request.key.name.as_bytes()),
            Value::Bytes(&id_bytes(request.key.id)),
            Value::Long(micros(request.ttl)),
            Value::Text(request.owner.as_deref()),
        ];
        self.statement(text, &values)
    }

    fn acquired(answer: &Rows) -> Result<Option<Token>> {
        let Some(row) = answer.rows.first() else {
            return Ok(None);
        };
        read_token(row.try_get(0).map_err(foreign_column)?).map(Some)
    }

    fn release(&self, lease: &LeaseKey) -> Result<Statement> {
        let values = [
            Value::Bytes(lease.name.as_bytes()),
            Value::Bytes(&id_bytes(lease.id)),
        ];
        self.statement(&self.sql.release, &values)
    }

    fn is_released(answer: &Rows) -> bool {
        answer.count > 0
    }

    async fn attempt(db: &Arc<Db>, request: &Acquire, noted: impl FnOnce() + Send) -> Result<Attempt> {
        let key = &request.key;
        let joins = request.queue == Queueing::Join;
        // Before the request is sent: a push may overtake the answer. While nobody listens whoever waits
        // looks.
        let pushes = joins.then(|| db.pushes.wait_for(key)).flatten();
        let queue = match joins {
            true => micros(request.queue_ttl).max(1_000),
            false => 0,
        };
        let values = [
            Value::Bytes(key.name.as_bytes()),
            Value::Bytes(&id_bytes(key.id)),
            Value::Number(share(request.mode)?),
            Value::Long(micros(request.ttl)),
            Value::Long(queue),
            Value::Number(i32::from(request.priority)),
            Value::Text(pushes.as_ref().and(db.channel.as_deref())),
            Value::Text(request.owner.as_deref()),
        ];
        let (sent, rows) = db.ask_again(&db.sql.attempt, &values, noted).await?;
        let answer = Answer::of(&rows)?;
        // Where somebody else holds it the short statement finds nothing either.
        db.contention
            .tell(&key.name, answer.others > 0 || answer.word == "H");
        db.pushes.anchor(sent, answer.at);
        let wait = |mut wait: Wait| {
            (wait.recheck_in, wait.ahead) = (answer.life, answer.ahead);
            wait
        };
        match answer.word.as_str() {
            "G" => Ok(Attempt::Granted(answer.grant(key, sent)?)),
            "Q" => Ok(Attempt::Queued(wait(match pushes {
                Some(pushes) => Wait::new(Wake::Push(pushes.boxed())),
                None => looking(db, key, None),
            }))),
            "H" => Ok(Attempt::Held(wait(looking(db, key, None)))),
            "M" => Err(answer.mismatch(request.mode)),
            "A" => Err(Error::lost(LossReason::Refused)),
            "R" => Err(Error::lost(LossReason::Released)),
            _ => Err(foreign("an unknown word")),
        }
    }

    async fn release_in_full(
        db: &Arc<Db>,
        lease: &LeaseKey,
        keep: Duration,
        bury: bool,
        noted: impl FnOnce() + Send,
    ) -> Result<bool> {
        let values = [
            Value::Bytes(lease.name.as_bytes()),
            Value::Bytes(&id_bytes(lease.id)),
            Value::Long(micros(keep)),
            Value::Truth(bury),
        ];
        let (sent, rows) = db.ask_again(&db.sql.release_in_full, &values, noted).await?;
        let answer = Answer::of(&rows)?;
        // Otherwise there is no row.
        if answer.at.is_some() {
            db.contention.tell(&lease.name, answer.others > 0);
        }
        db.pushes.anchor(sent, answer.at);
        Ok(answer.word == "R")
    }

    async fn abandon(db: &Arc<Db>, key: &LeaseKey) -> Result<Abandoned> {
        let values = [Value::Bytes(key.name.as_bytes()), Value::Bytes(&id_bytes(key.id))];
        let (_, rows) = db.ask_again(&db.sql.abandon, &values, || ()).await?;
        let answer = Answer::of(&rows)?;
        Ok(match answer.word.as_str() {
            "W" => Abandoned::Withdrawn,
            "G" => Abandoned::WasGranted(Some(answer.token()?)),
            _ => Abandoned::Nothing,
        })
    }

    async fn renew(db: &Arc<Db>, items: Vec<(usize, &RenewItem)>) -> Outcomes {
        renew::renew(db, items).await
    }

    async fn convert(db: &Arc<Db>, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let values = [
            Value::Bytes(lease.name.as_bytes()),
            Value::Bytes(&id_bytes(lease.id)),
            Value::Number(share(to)?),
        ];
        let (sent, rows) = db.ask(&db.sql.convert, &values).await?;
        let answer = Answer::of(&rows)?;
        db.pushes.anchor(sent, answer.at);
        match answer.word.as_str() {
            "G" => Ok(Converted::Done(answer.grant(lease, sent)?)),
            "B" => Ok(Converted::Busy),
            "D" => Ok(Converted::WouldDeadlock),
            "M" => Err(answer.mismatch(to)),
            _ => Err(Error::lost(LossReason::Refused)),
        }
    }

    async fn raise(db: &Arc<Db>, lease: &LeaseKey, to: Token) -> Result<Raised> {
        let values = [
            Value::Bytes(lease.name.as_bytes()),
            Value::Bytes(&id_bytes(lease.id)),
            Value::Long(to.get() as i64),
        ];
        let (_, rows) = db.ask_again(&db.sql.raise, &values, || ()).await?;
        let answer = Answer::of(&rows)?;
        match answer.word.as_str() {
            "G" => Ok(Raised::Raised(answer.token()?)),
            _ => Ok(Raised::NotHeld),
        }
    }

    async fn admit(
        db: &Arc<Db>,
        resource: &LockName,
        token: Token,
        access: Access,
        value: Option<&[u8]>,
    ) -> Result<Admission> {
        gate::admit(db, resource, token, access, value).await
    }

    async fn read_fence(db: &Arc<Db>, resource: &LockName) -> Result<Option<FencedValue>> {
        gate::read(db, resource).await
    }

    async fn look(db: &Arc<Db>, name: &LockName) -> Result<Look> {
        let name = [Value::Bytes(name.as_bytes())];
        let rows = db.read_rows(&db.sql.look, &name).await?;
        let Some(row) = rows.rows.first() else {
            return Ok(Look::default());
        };
        let number = |column: usize| row.try_get::<i64, _>(column).map_err(foreign_column);
        let offered: String = row.try_get(5).map_err(foreign_column)?;
        Ok(Look {
            mark: (number(0)?, number(1)?, number(2)?, number(3)?),
            due: row.try_get(4).map_err(foreign_column)?,
            offered: read_ids(&offered).collect(),
        })
    }

    async fn inspect(db: &Arc<Db>, name: &LockName) -> Result<Inspection> {
        Ok(inspect(db, name).await?.0)
    }

    async fn force_release(db: &Arc<Db>, name: &LockName) -> Result<u32> {
        let values = [Value::Bytes(name.as_bytes())];
        let (_, rows) = db.ask(&db.sql.force, &values).await?;
        let many = u32::try_from(Answer::of(&rows)?.number());
        many.map_err(|_| foreign("an impossible number of holders"))
    }

    async fn watch(db: &Arc<Db>, name: &LockName) -> Result<(Watching, Change)> {
        Watching::begin(db, name).await
    }

    async fn is_sweep_due(db: &Arc<Db>) -> Result<bool> {
        let age = [Value::Long(micros(AGE / 2))];
        let rows = db.read_rows(&db.sql.sweep_due, &age).await?;
        let due = rows.rows.first().map(|row| row.try_get(0));
        due.unwrap_or(Ok(false)).map_err(foreign_column)
    }

    async fn sweep(db: &Arc<Db>) -> Result<()> {
        let values = [Value::Long(micros(AGE)), Value::Number(MOST)];
        db.ask(&db.sql.sweep, &values).await.map(drop)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        self.pushes.signals().chain(stream::pending()).boxed()
    }

    fn closing(&self) {
        self.pushes.close();
    }
}

/// The state, and the number of the last change in it.
pub(super) async fn inspect(db: &Arc<Db>, name: &LockName) -> Result<(Inspection, u64)> {
    let name = [Value::Bytes(name.as_bytes())];
    let rows = db.read_rows(&db.sql.inspect, &name).await?;
    let (mut waiting, mut changes, mut holders) = (0, 0, Vec::new());
    for row in &rows.rows {
        let id: Option<Vec<u8>> = row.try_get(0).map_err(foreign_column)?;
        let share: i32 = row.try_get(1).map_err(foreign_column)?;
        let number: Option<i64> = row.try_get(2).map_err(foreign_column)?;
        let Some(id) = id else {
            waiting = u32::try_from(share).unwrap_or(0);
            changes = number.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
            continue;
        };
        let life = read_micros(row.try_get(3).map_err(foreign_column)?);
        let owner: Option<String> = row.try_get(4).map_err(foreign_column)?;
        let token = number.and_then(|n| read_token(n).ok());
        let holder = Holder::new(read_id(&id)?, read_mode(i64::from(share))?, token, life);
        holders.push(holder.with_owner(owner.filter(|o| !o.is_empty()).map(Arc::from)));
    }
    holders.sort_by_key(|h| h.token);
    Ok((Inspection::new(holders, waiting), changes))
}
