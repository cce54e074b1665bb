//! The rows of the tables, bound and read.

use std::sync::Arc;

use dlock_core::{LockName, Mode, RequestId, Result, Timestamp};
use sqlx::sqlite::{SqliteArguments, SqliteRow};

use crate::admit::{Entry, Glance, Phase, Row, WATCHED, Watch, phase_number, read_phase};
use crate::failure::foreign;
use crate::keys::{ALONE, bind, get, id_bytes, read_id, read_mode, read_token};
use crate::requests::RESERVED;

/// SQLite's integers are signed; tokens and times stay below 2^63.
pub(super) fn to_sql(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(super) fn bind_key(args: &mut SqliteArguments, name: &LockName, id: RequestId) -> Result<()> {
    bind(args, name.as_bytes())?;
    bind(args, id_bytes(id).as_slice())
}

pub(super) fn bind_row(args: &mut SqliteArguments, name: &LockName, row: Row<&Entry, &Watch>) -> Result<()> {
    let (id, first, token, last, owner) = match row {
        Row::Entry(e, arrival) => {
            let share = match e.mode {
                Mode::Shared { limit } => limit.map_or(0, |n| i64::from(n.get())),
                _ => ALONE,
            };
            let first = [phase_number(e.phase), share, i64::from(e.priority), arrival];
            let token = e.token.map(|t| to_sql(t.get()));
            let last = [
                to_sql(e.ttl_nanos),
                to_sql(e.expires.as_nanos()),
                i64::from(e.upgrading),
            ];
            (e.id, first, token, last, e.owner.as_deref())
        }
        // The count is in the column of the arrival, and the end of the lease in that of all leases.
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
    LockName::new(get::<Vec<u8>, _>(row, 0)?)
}

/// The rest of it.
pub(super) fn read_row(row: &SqliteRow) -> Result<Row<Entry, Watch>> {
    let phase = get::<i64, _>(row, 2)?;
    if phase == WATCHED {
        return Ok(Row::Watch(Watch {
            changes: number(row, 5)?,
            until: time(row, 8)?,
        }));
    }
    let entry = Entry {
        id: read_id(get(row, 1)?)?,
        phase: known(phase)?,
        mode: read_mode(get(row, 3)?)?,
        priority: number(row, 4)?,
        token: get::<Option<i64>, _>(row, 6)?.map(read_token).transpose()?,
        ttl_nanos: number(row, 7)?,
        expires: time(row, 8)?,
        upgrading: get::<i64, _>(row, 9)? != 0,
        owner: get::<Option<String>, _>(row, 10)?.map(Arc::from),
    };
    Ok(Row::Entry(entry, get(row, 5)?))
}

/// The holders, one a row, and the first end of those who are queued, without an id.
pub(super) fn read_glance(rows: &[SqliteRow]) -> Result<Glance> {
    let mut glance = Glance::default();
    for row in rows {
        let (phase, expires) = (known(get(row, 1)?)?, time(row, 3)?);
        glance.earliest = Some(glance.earliest.map_or(expires, |e| e.min(expires)));
        if let Some(id) = get::<Option<&[u8]>, _>(row, 0)? {
            let id = read_id(id)?;
            glance.holders.push((id, get::<i64, _>(row, 2)? == ALONE));
            glance.untold.extend((phase == Phase::Offered).then_some(id));
        }
    }
    glance.holders.sort_unstable();
    Ok(glance)
}

pub(super) fn number<T: TryFrom<i64>>(row: &SqliteRow, at: usize) -> Result<T> {
    let stored = get::<i64, _>(row, at)?;
    T::try_from(stored).map_err(|_| foreign("an impossible number"))
}

pub(super) fn time(row: &SqliteRow, at: usize) -> Result<Timestamp> {
    number(row, at).map(Timestamp::from_nanos)
}

fn known(phase: i64) -> Result<Phase> {
    read_phase(phase).ok_or_else(|| foreign("an unknown phase"))
}
