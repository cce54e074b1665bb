//! What the functions of the database answer, and the rows, read.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Holder, Inspection, Mode, RequestId, Result, Token};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::call::unhex;
use super::failure::foreign;

/// What became of a request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) word: String,
    token: Option<i64>,
    life: Option<i64>,
    /// The server's time, in microseconds since 1970.
    pub(super) at: Option<i64>,
    ahead: Option<i32>,
    /// How many share, wait, watch or were abandoned there, and after a release whoever has it alone then;
    /// nought where that is not told.
    pub(super) others: i32,
}

impl Answer {
    pub(super) fn of(rows: &[PgRow]) -> Result<Self> {
        let row = rows.first().ok_or_else(|| foreign("no row"))?;
        let others: Option<i32> = row.try_get(5).map_err(|_| foreign("a column of another type"))?;
        Ok(Self {
            others: others.unwrap_or(0),
            ..Self::read(row, 0)?
        })
    }

    /// From the columns behind so many.
    pub(super) fn read(row: &PgRow, skip: usize) -> Result<Self> {
        let bad = |_: sqlx::Error| foreign("a column of another type");
        Ok(Self {
            word: row.try_get(skip).map_err(bad)?,
            token: row.try_get(skip + 1).map_err(bad)?,
            life: row.try_get(skip + 2).map_err(bad)?,
            at: row.try_get(skip + 3).map_err(bad)?,
            ahead: row.try_get(skip + 4).map_err(bad)?,
            others: 0,
        })
    }

    pub(super) fn token(&self) -> Result<Token> {
        self.token.and_then(read_token).ok_or_else(|| foreign("no token"))
    }

    /// The number in the place of the token.
    pub(super) fn number(&self) -> i64 {
        self.token.unwrap_or_default()
    }

    pub(super) fn life(&self) -> Result<Duration> {
        let life = self.life.ok_or_else(|| foreign("no life"))?;
        Ok(Duration::from_micros(u64::try_from(life).unwrap_or(0)))
    }

    /// When it pays to ask again.
    pub(super) fn recheck(&self) -> Option<Duration> {
        self.life
            .map(|life| Duration::from_micros(u64::try_from(life).unwrap_or(0)))
    }

    pub(super) fn ahead(&self) -> Option<u32> {
        self.ahead.and_then(|n| u32::try_from(n).ok())
    }
}

/// That of a row which holds nothing else.
pub(super) fn token_of(row: &PgRow) -> Result<Token> {
    let token: i64 = row.try_get(0).map_err(|_| foreign("a column of another type"))?;
    read_token(token).ok_or_else(|| foreign("no token"))
}

pub(super) fn read_token(n: i64) -> Option<Token> {
    u64::try_from(n).ok().and_then(Token::new)
}

/// Sixteen bytes of the client, eight of the request.
pub(super) fn id_bytes(id: RequestId) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&id.client().to_be_bytes());
    bytes[16..].copy_from_slice(&id.sequence().to_be_bytes());
    bytes
}

pub(super) fn read_id(bytes: &[u8]) -> Option<RequestId> {
    let (client, sequence) = bytes.split_at_checked(16)?;
    Some(RequestId::new(
        u128::from_be_bytes(client.try_into().ok()?),
        u64::from_be_bytes(sequence.try_into().ok()?),
    ))
}

#[cfg(test)]
pub(super) fn id_digits(id: RequestId) -> String {
    super::call::hex(&id_bytes(id))
}

pub(super) fn read_id_digits(digits: &str) -> Option<RequestId> {
    read_id(&unhex(digits).ok()?)
}

pub(super) fn mode(share: i64) -> Option<Mode> {
    match share {
        -1 => Some(Mode::Exclusive),
        n => Some(Mode::Shared {
            limit: NonZeroU32::new(u32::try_from(n).ok()?),
        }),
    }
}

pub(super) fn label(owner: &str) -> Option<Arc<str>> {
    (!owner.is_empty()).then(|| Arc::from(owner))
}

/// A name as one look finds it, and the number of its last change.
pub(super) fn read_inspection(rows: &[PgRow]) -> Result<(Inspection, u64)> {
    let bad = |_: sqlx::Error| foreign("a column of another type");
    let (mut waiting, mut changes, mut holders) = (0, 0, Vec::new());
    for row in rows {
        let id: Option<Vec<u8>> = row.try_get(0).map_err(bad)?;
        let share: i32 = row.try_get(1).map_err(bad)?;
        let number: Option<i64> = row.try_get(2).map_err(bad)?;
        let Some(id) = id else {
            waiting = u32::try_from(share).unwrap_or(0);
            changes = number.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
            continue;
        };
        let life: i64 = row.try_get(3).map_err(bad)?;
        let owner: Option<String> = row.try_get(4).map_err(bad)?;
        let holder = Holder::new(
            read_id(&id).ok_or_else(|| foreign("a request id of another length"))?,
            mode(i64::from(share)).ok_or_else(|| foreign("an unknown mode"))?,
            number.and_then(read_token),
            Duration::from_micros(u64::try_from(life).unwrap_or(0)),
        );
        holders.push(holder.with_owner(owner.as_deref().and_then(label)));
    }
    holders.sort_by_key(|h| h.token);
    Ok((Inspection::new(holders, waiting), changes))
}
