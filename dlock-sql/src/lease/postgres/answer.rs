//! The answers of the database's functions.

use std::time::Duration;

use dlock_core::spi::{Grant, LeaseKey};
use dlock_core::{Error, Mode, Result, Timestamp, Token};
use sqlx::postgres::PgRow;

use super::Rows;
use crate::lease::call::get;
use crate::lease::failure::foreign;
use crate::lease::keys::{read_micros, read_mode, read_token};

/// What became of a request.
pub(super) struct Answer {
    pub(super) word: String,
    token: Option<i64>,
    /// The life of a lease, or when it pays to ask again.
    pub(super) life: Option<Duration>,
    /// The server's time, in microseconds since 1970.
    pub(super) at: Option<i64>,
    pub(super) ahead: Option<u32>,
    /// How many sharers, waiters, watches and tombstones there are, and after a release the exclusive holder;
    /// zero where that is not reported.
    pub(super) others: i32,
}

impl Answer {
    pub(super) fn of(rows: &Rows) -> Result<Self> {
        Self::read(rows.rows.first().ok_or_else(|| foreign("no row"))?)
    }

    pub(super) fn read(row: &PgRow) -> Result<Self> {
        let (ahead, others): (Option<i32>, Option<i32>) = (get(row, 4)?, get(row, 5)?);
        Ok(Self {
            word: get(row, 0)?,
            token: get(row, 1)?,
            life: get::<Option<_>, _>(row, 2)?.map(read_micros),
            at: get(row, 3)?,
            ahead: ahead.and_then(|n| u32::try_from(n).ok()),
            others: others.unwrap_or(0),
        })
    }

    pub(super) fn token(&self) -> Result<Token> {
        read_token(self.number())
    }

    /// The number in the place of the token.
    pub(super) fn number(&self) -> i64 {
        self.token.unwrap_or_default()
    }

    pub(super) fn grant(&self, key: &LeaseKey, sent: Timestamp) -> Result<Grant> {
        let life = self.life.ok_or_else(|| foreign("no life"))?;
        Ok(Grant::new(key.clone(), Some(self.token()?), sent, life))
    }

    /// The error for readers where there are permits, or the other way around.
    pub(super) fn mismatch(&self, asked: Mode) -> Error {
        read_mode(self.number()).map_or_else(|e| e, |is| is.mismatch(asked))
    }
}
