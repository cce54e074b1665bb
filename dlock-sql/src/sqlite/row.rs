//! The rows of the tables, bound and read.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::RequestId;
use dlock_core::{Error, ErrorKind, LockName, Mode, Result, Timestamp, Token};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments as _, Row as _};

use super::failure::foreign_row;
use super::schema::to_sql;
use crate::admit::{Entry, Glance, Phase, Row, WATCH, Watch};

pub(super) fn bind<'q, T>(args: &mut SqliteArguments, value: T) -> Result<()>
where
    T: sqlx::Encode<'q, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite> + 'q,
{
    args.add(value)
        .map_err(|e| Error::new(ErrorKind::InvalidInput, format!("a value cannot be stored: {e}")))
}

pub(super) fn bind_key(args: &mut SqliteArguments, name: &LockName, id: RequestId) -> Result<()> {
    bind(args, name.as_bytes())?;
    bind(args, id_bytes(id).as_slice())
}

pub(super) fn bind_row(args: &mut SqliteArguments, name: &LockName, row: Row<&Entry, &Watch>) -> Result<()> {
    match row {
        Row::Entry(entry) => bind_entry(args, name, entry),
        Row::Watch(watch) => bind_watch(args, name, *watch),
    }
}

fn bind_watch(args: &mut SqliteArguments, name: &LockName, watch: Watch) -> Result<()> {
    bind_key(args, name, WATCH)?;
    bind(args, WATCHED)?;
    for zero in [0i64; 2] {
        bind(args, zero)?;
    }
    bind(args, to_sql(watch.changes))?;
    bind(args, None::<i64>)?;
    bind(args, 0i64)?;
    bind(args, to_sql(watch.until.as_nanos()))?;
    bind(args, 0i64)?;
    bind(args, None::<&str>)
}

/// What is in the column of the phase for that row. The count is in the column of the arrival, and the end of
/// the lease in that of all leases.
pub(super) const WATCHED: i64 = 4;

/// A waiter that was admitted while it was away.
const OFFERED: i64 = 1;

fn bind_entry(args: &mut SqliteArguments, name: &LockName, e: &Entry) -> Result<()> {
    bind_key(args, name, e.id)?;
    bind(
        args,
        match e.phase {
            Phase::Queued => 0i64,
            Phase::Offered => OFFERED,
            Phase::Held => 2,
            Phase::Kept => 3,
        },
    )?;
    bind(
        args,
        match e.mode {
            Mode::Shared { limit } => limit.map_or(0, |n| i64::from(n.get())),
            _ => -1,
        },
    )?;
    bind(args, i64::from(e.priority))?;
    bind(args, e.arrival)?;
    bind(args, e.token.map(|t| to_sql(t.get())))?;
    bind(args, to_sql(u64::try_from(e.ttl.as_nanos()).unwrap_or(u64::MAX)))?;
    bind(args, to_sql(e.expires.as_nanos()))?;
    bind(args, i64::from(e.upgrading))?;
    bind(args, e.owner.as_deref())
}

/// The name of an entry's row.
pub(super) fn read_name(row: &SqliteRow) -> Result<LockName> {
    let bytes: Vec<u8> = row
        .try_get(0)
        .map_err(|_| foreign_row("a column of another type"))?;
    LockName::new(bytes)
}

/// The rest of it.
pub(super) fn read_row(row: &SqliteRow) -> Result<Row<Entry, Watch>> {
    let bad = |_: sqlx::Error| foreign_row("a column of another type");
    let number = |i: usize| row.try_get::<i64, _>(i).map_err(bad);
    let positive = |i: usize| u64::try_from(number(i)?).map_err(|_| foreign_row("a time below zero"));
    let id = row.try_get::<Vec<u8>, _>(1).map_err(bad)?;
    let phase = match number(2)? {
        0 => Phase::Queued,
        OFFERED => Phase::Offered,
        2 => Phase::Held,
        3 => Phase::Kept,
        WATCHED => {
            return Ok(Row::Watch(Watch {
                changes: positive(5)?,
                until: Timestamp::from_nanos(positive(8)?),
            }));
        }
        _ => return Err(foreign_row("an unknown phase")),
    };
    let mode = match number(3)? {
        -1 => Mode::Exclusive,
        n => Mode::Shared {
            limit: NonZeroU32::new(u32::try_from(n).map_err(|_| foreign_row("an unknown mode"))?),
        },
    };
    Ok(Row::Entry(Entry {
        id: read_id(&id).ok_or_else(|| foreign_row("a request id of another length"))?,
        phase,
        mode,
        priority: u8::try_from(number(4)?).map_err(|_| foreign_row("an unknown priority"))?,
        arrival: number(5)?,
        token: read_token(row, 6)?,
        ttl: Duration::from_nanos(positive(7)?),
        expires: Timestamp::from_nanos(positive(8)?),
        upgrading: number(9)? != 0,
        owner: row.try_get::<Option<String>, _>(10).map_err(bad)?.map(Arc::from),
    }))
}

/// The holders, one a row, and the first end of those who are queued, without an id.
pub(super) fn read_glance(rows: &[SqliteRow]) -> Result<Glance> {
    let bad = |_: sqlx::Error| foreign_row("a column of another type");
    let mut glance = Glance::default();
    for row in rows {
        let holder = row.try_get::<Option<Vec<u8>>, _>(0).map_err(bad)?;
        let phase = row.try_get::<i64, _>(1).map_err(bad)?;
        if !(0..WATCHED).contains(&phase) {
            return Err(foreign_row("an unknown phase"));
        }
        let expires = u64::try_from(row.try_get::<i64, _>(2).map_err(bad)?);
        let expires = Timestamp::from_nanos(expires.map_err(|_| foreign_row("a time below zero"))?);
        glance.earliest = Some(glance.earliest.map_or(expires, |e| e.min(expires)));
        if let Some(id) = holder {
            let id = read_id(&id).ok_or_else(|| foreign_row("a request id of another length"))?;
            glance.add(id, phase == OFFERED);
        }
    }
    glance.holders.sort_unstable();
    Ok(glance)
}

fn read_token(row: &SqliteRow, column: usize) -> Result<Option<Token>> {
    let stored: Option<i64> = row
        .try_get(column)
        .map_err(|_| foreign_row("a column of another type"))?;
    let token = |n| u64::try_from(n).ok().and_then(Token::new);
    stored
        .map(|n| token(n).ok_or_else(|| foreign_row("a token below one")))
        .transpose()
}

fn id_bytes(id: RequestId) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&id.client().to_be_bytes());
    bytes[16..].copy_from_slice(&id.sequence().to_be_bytes());
    bytes
}

fn read_id(bytes: &[u8]) -> Option<RequestId> {
    let (client, sequence) = bytes.split_at_checked(16)?;
    Some(RequestId::new(
        u128::from_be_bytes(client.try_into().ok()?),
        u64::from_be_bytes(sequence.try_into().ok()?),
    ))
}
