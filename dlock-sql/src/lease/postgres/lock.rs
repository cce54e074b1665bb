//! The requests to PostgreSQL: attempt, release, abandon, and the rest in a line or two each.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Converted, Grant, LeaseKey, Queueing, Raised, RenewItem, Signal, Wait, Wake,
};
use dlock_core::{
    Access, Admission, Error, Holder, Inspection, LockName, LossReason, Mode, Result, Timestamp, Token,
};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt as _};
use sqlx::postgres::PgConnection;

use super::answer::Answer;
use super::call::Value;
use super::connection::connecting;
use super::watch::Watching;
use super::{Db, Postgres, renew, together};
use crate::driver_url::Options;
use crate::gate::{Pass, check_token, value};
use crate::lease::call::get;
use crate::lease::contention::AGE;
use crate::lease::dialect::{Dialect, Look, Outcomes};
use crate::lease::failure::foreign;
use crate::lease::keys::{micros, read_id, read_ids, read_micros, read_mode, read_token, share};
use crate::listing::{PAGE, Span};
use crate::probe::looking;

/// The shortest and the longest pause between polls without notifications.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// How many names a sweep deletes, which keeps none that is in use waiting.
const MOST: i32 = 10_000;

/// One row for the name, one for each holder. A row that no dlock wrote has an id that none has.
const INSPECT: &str = "\
    SELECT NULL::bytea AS id, (SELECT count(*) FROM {p}entry AS o WHERE o.name = k.name AND o.phase = 0 \
    AND o.ends > clock_timestamp())::integer AS share, k.changes AS token, 0::bigint AS life, \
    NULL::text AS owner FROM {p}name AS k WHERE k.name = $1 \
    UNION ALL SELECT CASE WHEN k.phase BETWEEN 1 AND 3 THEN k.id ELSE ''::bytea END, -1, k.token, \
    {p}micros(k.ends - clock_timestamp()), k.owner FROM {p}name AS k \
    WHERE k.name = $1 AND k.phase <> 0 AND (k.ends > clock_timestamp() OR k.phase NOT BETWEEN 1 AND 3) \
    UNION ALL SELECT o.id, o.share, o.token, {p}micros(o.ends - clock_timestamp()), o.owner \
    FROM {p}entry AS o WHERE o.name = $1 AND o.phase IN (1, 2, 3) AND o.ends > clock_timestamp()";

const LIST: &str = "\
    SELECT k.name FROM {p}name AS k WHERE k.name >= $1 {until} \
    AND (k.phase > 0 AND k.ends > clock_timestamp() \
    OR k.others > 0 AND EXISTS (SELECT FROM {p}entry AS o WHERE o.name = k.name AND o.phase < 4 \
    AND o.ends > clock_timestamp())) ORDER BY k.name LIMIT $2";

/// Checks, notes, and writes if it shall; it begins with locking the row. A row if it was admitted. In one
/// statement, whose values are bound: what is written shows in no log of the server.
const PASS: &str = "INSERT INTO {p}fence AS f (resource, max_exclusive, max_any, value) \
    VALUES ($1, CASE WHEN $4 THEN $2 END, $2, $3) ON CONFLICT (resource) DO UPDATE SET \
    max_exclusive = greatest(f.max_exclusive, excluded.max_exclusive), \
    max_any = greatest(f.max_any, excluded.max_any), \
    value = CASE WHEN $5 THEN excluded.value ELSE f.value END \
    WHERE coalesce(CASE WHEN $4 THEN f.max_any ELSE f.max_exclusive END, 0) <= excluded.max_any \
    AND coalesce(f.max_exclusive, 1) > 0 AND coalesce(f.max_any, 1) > 0 \
    AND coalesce(f.max_exclusive, 0) <= coalesce(f.max_any, 0) RETURNING 1";

/// What is there, of a resource that refuses.
const FENCE: &str = "SELECT f.max_exclusive, f.max_any, f.value FROM {p}fence AS f WHERE f.resource = $1";

impl Dialect for Postgres {
    type Driver = sqlx::Postgres;
    type Watcher = Watching;

    const BACKEND: &'static str = "postgres";
    const CONTENDED: Duration = Duration::from_millis(100);
    const PING_AFTER: Option<Duration> = None;
    const RESET: &'static str = "SELECT 1";

    fn server(&self) -> Options {
        Options::Postgres(Arc::new(self.options.clone()))
    }

    fn connect(&self) -> BoxFuture<'static, Result<PgConnection, sqlx::Error>> {
        connecting(&self.options, (!self.in_full).then(|| self.sql.clone()))
    }

    async fn acquire(db: &Arc<Db>, request: &Acquire, has_row: bool) -> Result<Option<Grant>> {
        match has_row {
            true => together::ask(db, request).await,
            false => together::acquire(db, &db.sql.acquire, request).await,
        }
    }

    async fn release(db: &Arc<Db>, lease: &LeaseKey) -> Result<bool> {
        together::ask(db, lease).await
    }

    async fn attempt(db: &Arc<Db>, request: &Acquire) -> Result<Attempt> {
        let key = &request.key;
        let joins = request.queue == Queueing::Join;
        // Before the request is sent: a push may overtake the answer. Without a listener waiters poll.
        let pushes = joins.then(|| db.pushes.wait_for(key)).flatten();
        let queue = match joins {
            true => micros(request.queue_ttl).max(1_000),
            false => 0,
        };
        let values = [
            Value::Number(share(request.mode)?),
            Value::Long(micros(request.ttl)),
            Value::Long(queue),
            Value::Number(i32::from(request.priority)),
            Value::Text(pushes.as_ref().and(db.channel.as_deref())),
            Value::Text(request.owner.as_deref()),
        ];
        let (sent, answer) = db.call(&db.sql.attempt, key, &values).await?;
        // Under another holder the fast path finds nothing either.
        let others = answer.others > 0 || answer.word == "H";
        db.contention.tell(&key.name, others, Timestamp::now());
        let looking = || looking(db.clone(), key.clone(), None, LOOK);
        let wait = |wake| {
            let mut wait = Wait::new(wake);
            (wait.recheck_in, wait.ahead) = (answer.life, answer.ahead);
            wait
        };
        match answer.word.as_str() {
            "G" => Ok(Attempt::Granted(answer.grant(key, sent)?)),
            "Q" => Ok(Attempt::Queued(wait(match pushes {
                Some(pushes) => Wake::Push(pushes),
                None => looking(),
            }))),
            "H" => Ok(Attempt::Held(wait(looking()))),
            "M" => Err(answer.mismatch(request.mode)),
            "A" => Err(Error::lost(LossReason::Refused)),
            "R" => Err(Error::lost(LossReason::Released)),
            _ => Err(foreign("an unknown word")),
        }
    }

    async fn release_in_full(db: &Arc<Db>, lease: &LeaseKey, keep: Duration, bury: bool) -> Result<bool> {
        let values = [Value::Long(micros(keep)), Value::Truth(bury)];
        let (_, answer) = db.call(&db.sql.release_in_full, lease, &values).await?;
        // Otherwise there is no row.
        if answer.at.is_some() {
            let others = answer.others > 0;
            db.contention.tell(&lease.name, others, Timestamp::now());
        }
        Ok(answer.word == "R")
    }

    async fn renew(db: &Arc<Db>, items: Vec<(usize, &RenewItem)>) -> Outcomes {
        renew::renew(db, items).await
    }

    async fn abandon(db: &Arc<Db>, key: &LeaseKey) -> Result<Abandoned> {
        let abandon = db.sql.call("abandon($1, $2)");
        let (_, answer) = db.call(&abandon, key, &[]).await?;
        Ok(match answer.word.as_str() {
            "W" => Abandoned::Withdrawn,
            "G" => Abandoned::WasGranted(Some(answer.token()?)),
            _ => Abandoned::Nothing,
        })
    }

    async fn convert(db: &Arc<Db>, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let (convert, to_share) = (db.sql.call("convert($1, $2, $3)"), [Value::Number(share(to)?)]);
        let (sent, answer) = db.call(&convert, lease, &to_share).await?;
        match answer.word.as_str() {
            "G" => Ok(Converted::Done(answer.grant(lease, sent)?)),
            "B" => Ok(Converted::Busy),
            "D" => Ok(Converted::WouldDeadlock),
            "M" => Err(answer.mismatch(to)),
            _ => Err(Error::lost(LossReason::Refused)),
        }
    }

    async fn raise(db: &Arc<Db>, lease: &LeaseKey, to: Token) -> Result<Raised> {
        let (raise, to) = (db.sql.call("raise($1, $2, $3)"), [Value::Long(to.get() as i64)]);
        let (_, answer) = db.call(&raise, lease, &to).await?;
        match answer.word.as_str() {
            "G" => Ok(Raised::Raised(answer.token()?)),
            _ => Ok(Raised::NotHeld),
        }
    }

    async fn pass(db: &Arc<Db>, (resource, token, access, to_write): Pass<'_>) -> Result<Admission> {
        check_token(token)?;
        let name = Value::Bytes(resource.as_bytes());
        let values = [
            name.clone(),
            Value::Long(token.get() as i64),
            Value::Bytes(to_write.unwrap_or_default()),
            Value::Truth(access == Access::Exclusive),
            Value::Truth(to_write.is_some()),
        ];
        if !db.ask(&db.sql.fill(PASS), &values).await?.1.rows.is_empty() {
            return Ok(Admission::Admitted);
        }
        // Where nothing is in the way any more, somebody has removed the row since: then it is the token that
        // was refused.
        let seen = value::<sqlx::Postgres>(&db.read_rows(&db.sql.fill(FENCE), &[name]).await?)?;
        match seen.map(|mut seen| seen.admit(token, access)) {
            Some(refused @ Admission::Refused { .. }) => Ok(refused),
            _ => Ok(Admission::Refused { highest: token }),
        }
    }

    async fn look(db: &Arc<Db>, name: &LockName) -> Result<Look> {
        let name = [Value::Bytes(name.as_bytes())];
        let rows = db.read_rows(&db.sql.look, &name).await?;
        let Some(row) = rows.first() else {
            return Ok(Look::default());
        };
        Ok(Look {
            mark: (get(row, 0)?, get(row, 1)?, get(row, 2)?, get(row, 3)?),
            due: get(row, 4)?,
            offered: read_ids(get(row, 5)?).collect(),
        })
    }

    async fn inspect(db: &Arc<Db>, name: &LockName) -> Result<Inspection> {
        Ok(inspect(db, name).await?.0)
    }

    async fn force_release(db: &Arc<Db>, name: &LockName) -> Result<u32> {
        let name = [Value::Bytes(name.as_bytes())];
        let (_, rows) = db.ask(&db.sql.call("force($1)"), &name).await?;
        let many = u32::try_from(Answer::of(&rows)?.number());
        many.map_err(|_| foreign("an impossible number of holders"))
    }

    async fn is_due(db: &Arc<Db>) -> Result<bool> {
        let age = [Value::Long(micros(AGE / 2))];
        let due = "SELECT m.swept < clock_timestamp() - $1 * interval '1 microsecond' FROM {p}meta AS m";
        let rows = db.read_rows(&db.sql.fill(due), &age).await?;
        rows.first().map_or(Ok(false), |row| get(row, 0))
    }

    async fn sweep(db: &Arc<Db>) -> Result<()> {
        let values = [Value::Long(micros(AGE)), Value::Number(MOST)];
        let sweep = db.sql.fill("SELECT {p}sweep($1, $2)");
        db.ask(&sweep, &values).await.map(drop)
    }

    async fn list(db: &Arc<Db>, span: Span) -> Result<Vec<Vec<u8>>> {
        let mut values = vec![Value::Bytes(&span.from), Value::Number(PAGE as i32)];
        let until = span.until.as_deref().map_or("", |until| {
            values.push(Value::Bytes(until));
            "AND k.name < $3"
        });
        let rows = db
            .read_rows(&db.sql.fill(&LIST.replace("{until}", until)), &values)
            .await?;
        rows.iter().map(|row| get(row, 0)).collect()
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
    let rows = db.read_rows(&db.sql.fill(INSPECT), &name).await?;
    let (mut waiting, mut changes, mut holders) = (0, 0, Vec::new());
    for row in &rows {
        let (id, share): (Option<Vec<u8>>, i32) = (get(row, 0)?, get(row, 1)?);
        let number: Option<i64> = get(row, 2)?;
        let Some(id) = id else {
            waiting = u32::try_from(share).unwrap_or(0);
            changes = number.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
            continue;
        };
        let (life, owner): (_, Option<String>) = (read_micros(get(row, 3)?), get(row, 4)?);
        let token = number.and_then(|n| read_token(n).ok());
        let holder = Holder::new(read_id(&id)?, read_mode(i64::from(share))?, token, life);
        holders.push(holder.with_owner(owner.filter(|o| !o.is_empty()).map(Arc::from)));
    }
    holders.sort_by_key(|h| h.token);
    Ok((Inspection::new(holders, waiting), changes))
}
