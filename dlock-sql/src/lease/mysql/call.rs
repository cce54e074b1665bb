//! What is sent on a connection, and what is taken in of the answer.
//!
//! The few statements of the fast path are prepared. A transaction on a name is two texts of several
//! statements each, in two round trips; prepared statements would make it six. Nothing of a value can be read
//! as SQL in them: bytes and texts are written as hexadecimal digits, numbers as numbers.

use std::sync::Arc;

use futures::TryStreamExt as _;
use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Either, Executor as _};

use crate::lease::keys::hex;

/// What is sent.
#[derive(Clone)]
pub(in crate::lease) enum Statement {
    /// One that was prepared.
    Bound(Arc<str>, MySqlArguments),
    /// One or more, with all values in them.
    Text(String),
}

/// What was answered.
#[derive(Default)]
pub(in crate::lease) struct Answer {
    pub(super) rows: Vec<MySqlRow>,
    /// How many rows were found, of a change.
    pub(super) found: u64,
    /// The insert id.
    pub(super) id: u64,
}

impl Statement {
    /// Sends it and takes in all of the answer.
    pub(super) async fn run(self, conn: &mut MySqlConnection) -> Result<Answer, sqlx::Error> {
        let mut steps = match self {
            Self::Bound(text, args) => {
                conn.fetch_many(sqlx::query_with::<sqlx::MySql, _>(AssertSqlSafe(text), args))
            }
            Self::Text(text) => conn.fetch_many(sqlx::raw_sql(AssertSqlSafe(text))),
        };
        let mut answer = Answer::default();
        while let Some(step) = steps.try_next().await? {
            match step {
                Either::Left(done) => {
                    answer.found += done.rows_affected();
                    answer.id = done.last_insert_id();
                }
                Either::Right(row) => answer.rows.push(row),
            }
        }
        Ok(answer)
    }
}

pub(super) fn bytes(bytes: &[u8]) -> String {
    format!("X'{}'", hex(bytes))
}

pub(super) fn label(owner: Option<&str>) -> String {
    match owner {
        Some(owner) => format!("CONVERT({} USING utf8mb4)", bytes(owner.as_bytes())),
        None => "NULL".to_owned(),
    }
}

pub(super) fn list<'a>(all: impl IntoIterator<Item = &'a [u8]>) -> String {
    let all: Vec<_> = all.into_iter().map(bytes).collect();
    all.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_be_read_as_sql() {
        assert_eq!(list([&b"a'"[..], b""]), "X'6127',X''");
        assert_eq!(label(Some("'; DROP")), "CONVERT(X'273b2044524f50' USING utf8mb4)");
    }
}
