//! The rows of the tables, bound and read.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::RequestId;
use dlock_core::{Error, ErrorKind, LockName, Mode, Result, Timestamp};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments as _, Decode, Encode, Row as _, Sqlite, Type};

use super::failure::foreign_row;
use crate::admit::{Entry, Glance, Phase, Row, Watch};
use crate::keys::{id_bytes, read_id, read_mode, read_token};
use crate::requests::RESERVED;

/// The phases, as they are numbered in the table.
const PHASES: [Phase; 4] = [Phase::Queued, Phase::Offered, Phase::Held, Phase::Kept];

/// What is in the column of the phase for the row of a watch. The count is in the column of the arrival, and
/// the end of the lease in that of all leases.
const WATCHED: i64 = 4;

/// What is in the column of the share for who holds alone.
const ALONE: i64 = -1;

/// SQLite's integers are signed; tokens and times stay below 2^63.
pub(super) fn to_sql(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(super) fn bind<'q, T: Encode<'q, Sqlite> + Type<Sqlite> + 'q>(
    args: &mut SqliteArguments,
    value: T,
) -> Result<()> {
    args.add(value)
        .map_err(|e| Error::new(ErrorKind::InvalidInput, format!("a value cannot be stored: {e}")))
}

pub(super) fn bind_key(args: &mut SqliteArguments, name: &LockName, id: RequestId) -> Result<()> {
    bind(args, name.as_bytes())?;
    bind(args, id_bytes(id).as_slice())
}

pub(super) fn bind_row(args: &mut SqliteArguments, name: &LockName, row: Row<&Entry, &Watch>) -> Result<()> {
    let (id, first, token, last, owner) = match row {
        Row::Entry(e) => {
            let share = match e.mode {
                Mode::Shared { limit } => limit.map_or(0, |n| i64::from(n.get())),
                _ => ALONE,
            };
            let first = [e.phase as i64, share, i64::from(e.priority), e.arrival];
            let token = e.token.map(|t| to_sql(t.get()));
            let ttl = to_sql(u64::try_from(e.ttl.as_nanos()).unwrap_or(u64::MAX));
            let last = [ttl, to_sql(e.expires.as_nanos()), i64::from(e.upgrading)];
            (e.id, first, token, last, e.owner.as_deref())
        }
        Row::Watch(w) => {
            let first = [WATCHED, 0, 0, to_sql(w.changes)];
            (RESERVED, first, None, [0, to_sql(w.until.as_nanos()), 0], None)
        }
    };
    bind_key(args, name, id)?;
    for number in first {
        bind(args, number)?;
    }
    bind(args, token)?;
    for number in last {
        bind(args, number)?;
    }
    bind(args, owner)
}

/// The name of an entry's row.
pub(super) fn read_name(row: &SqliteRow) -> Result<LockName> {
    LockName::new(column::<Vec<u8>>(row, 0)?)
}

/// The rest of it.
pub(super) fn read_row(row: &SqliteRow) -> Result<Row<Entry, Watch>> {
    let phase = column::<i64>(row, 2)?;
    if phase == WATCHED {
        return Ok(Row::Watch(Watch {
            changes: number(row, 5)?,
            until: time(row, 8)?,
        }));
    }
    Ok(Row::Entry(Entry {
        id: read_id(column(row, 1)?)?,
        phase: read_phase(phase)?,
        mode: read_mode(column(row, 3)?)?,
        priority: number(row, 4)?,
        arrival: column(row, 5)?,
        token: column::<Option<i64>>(row, 6)?.map(read_token).transpose()?,
        ttl: Duration::from_nanos(number(row, 7)?),
        expires: time(row, 8)?,
        upgrading: column::<i64>(row, 9)? != 0,
        owner: column::<Option<String>>(row, 10)?.map(Arc::from),
    }))
}

/// The holders, one a row, and the first end of those who are queued, without an id.
pub(super) fn read_glance(rows: &[SqliteRow]) -> Result<Glance> {
    let mut glance = Glance::default();
    for row in rows {
        let (phase, expires) = (read_phase(column(row, 1)?)?, time(row, 3)?);
        glance.earliest = Some(glance.earliest.map_or(expires, |e| e.min(expires)));
        if let Some(id) = column::<Option<&[u8]>>(row, 0)? {
            let id = read_id(id)?;
            glance.holders.push((id, column::<i64>(row, 2)? == ALONE));
            glance.untold.extend((phase == Phase::Offered).then_some(id));
        }
    }
    glance.holders.sort_unstable();
    Ok(glance)
}

pub(super) fn column<'r, T: Decode<'r, Sqlite> + Type<Sqlite>>(row: &'r SqliteRow, at: usize) -> Result<T> {
    row.try_get(at)
        .map_err(|_| foreign_row("a column of another type"))
}

pub(super) fn number<T: TryFrom<i64>>(row: &SqliteRow, at: usize) -> Result<T> {
    let stored = column::<i64>(row, at)?;
    T::try_from(stored).map_err(|_| foreign_row("a number that cannot be there"))
}

pub(super) fn time(row: &SqliteRow, at: usize) -> Result<Timestamp> {
    number(row, at).map(Timestamp::from_nanos)
}

fn read_phase(stored: i64) -> Result<Phase> {
    let phase = usize::try_from(stored).ok().and_then(|n| PHASES.get(n));
    phase.copied().ok_or_else(|| foreign_row("an unknown phase"))
}
