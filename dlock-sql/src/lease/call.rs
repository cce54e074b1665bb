//! What is sent on a connection, and what is taken in of the answer.

use std::sync::Arc;

use futures::TryStreamExt as _;
use sqlx::{AssertSqlSafe, Database, Either, Executor, IntoArguments};

pub(in crate::lease) use crate::keys::get;

/// What is sent.
pub(in crate::lease) enum Statement<DB: Database> {
    /// One that was prepared, with its values.
    Prepared(Arc<str>, DB::Arguments),
    /// One or more, with all values in them.
    Text(String),
}

/// What was answered.
pub(in crate::lease) struct Answer<DB: Database> {
    pub(in crate::lease) rows: Vec<DB::Row>,
    /// How many rows were found, changed or answered.
    pub(in crate::lease) done: DB::QueryResult,
}

/// Sends it and takes in all of the answer.
pub(in crate::lease) async fn run<'c, DB: Database>(
    statement: Statement<DB>,
    conn: &'c mut DB::Connection,
) -> Result<Answer<DB>, sqlx::Error>
where
    &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
{
    let mut steps = match statement {
        Statement::Prepared(text, args) => conn.fetch_many(sqlx::query_with(AssertSqlSafe(text), args)),
        Statement::Text(text) => conn.fetch_many(sqlx::raw_sql(AssertSqlSafe(text))),
    };
    let (mut rows, mut done) = (Vec::new(), DB::QueryResult::default());
    while let Some(step) = steps.try_next().await? {
        match step {
            Either::Left(result) => done.extend([result]),
            Either::Right(row) => rows.push(row),
        }
    }
    Ok(Answer { rows, done })
}
