//! A request on a connection, and the part of the answer that is kept.

use std::sync::Arc;

use futures::TryStreamExt as _;
use sqlx::{AssertSqlSafe, Either, Executor as _, SqlSafeStr as _};

use crate::direct::Store;
pub(in crate::lease) use crate::keys::get;

/// What is sent.
pub(in crate::lease) enum Statement<DB: Store> {
    /// One that was prepared, with its values.
    Prepared(Arc<str>, DB::Arguments),
    /// One or more, with all values in them.
    Text(String),
}

/// What was answered.
pub(in crate::lease) struct Answer<DB: Store> {
    pub(in crate::lease) rows: Vec<DB::Row>,
    /// How many rows were found, changed or answered.
    pub(in crate::lease) done: DB::QueryResult,
}

/// Sends it and takes in all of the answer.
pub(in crate::lease) async fn run<DB: Store>(
    statement: Statement<DB>,
    conn: &mut DB::Connection,
) -> Result<Answer<DB>, sqlx::Error> {
    let conn = DB::executor(conn);
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

/// Has those statements parsed by the server, which remembers them for this connection.
pub(in crate::lease) async fn prepare<DB: Store>(
    conn: &mut DB::Connection,
    texts: &[Arc<str>],
) -> Result<(), sqlx::Error> {
    for text in texts {
        let text = AssertSqlSafe(text.clone()).into_sql_str();
        DB::executor(conn).prepare(text).await?;
    }
    Ok(())
}
