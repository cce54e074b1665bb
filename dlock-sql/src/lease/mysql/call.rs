//! What is sent on a connection, and what is taken in of the answer.

use std::sync::Arc;

use futures::TryStreamExt as _;
use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Either, Executor as _};

/// What is sent.
#[derive(Clone)]
pub(super) enum Statement {
    /// One that was prepared.
    Bound(Arc<str>, MySqlArguments),
    /// One or more, with all values in them.
    Text(String),
}

impl Statement {
    pub(super) fn with(text: &Arc<str>, args: MySqlArguments) -> Self {
        Self::Bound(text.clone(), args)
    }
}

/// What was answered.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) rows: Vec<MySqlRow>,
    /// How many rows were found, of a change.
    pub(super) found: u64,
    /// The insert id.
    pub(super) id: u64,
}

/// Sends a statement and takes in all of the answer.
pub(super) async fn run(of: Statement, conn: &mut MySqlConnection) -> Result<Answer, sqlx::Error> {
    let mut steps = match of {
        Statement::Bound(text, args) => {
            conn.fetch_many(sqlx::query_with::<sqlx::MySql, _>(AssertSqlSafe(text), args))
        }
        Statement::Text(text) => conn.fetch_many(sqlx::raw_sql(AssertSqlSafe(text))),
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
