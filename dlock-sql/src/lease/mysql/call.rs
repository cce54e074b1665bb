//! What is sent on a connection, and what is taken in of the answer.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sqlx::AssertSqlSafe;
use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlRow};

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

/// What is taken in of the answer.
pub(super) type Answer<T> = fn(Statement, &mut MySqlConnection) -> BoxFuture<'_, Result<T, sqlx::Error>>;

pub(super) fn rows(
    of: Statement,
    conn: &mut MySqlConnection,
) -> BoxFuture<'_, Result<Vec<MySqlRow>, sqlx::Error>> {
    match of {
        Statement::Bound(text, args) => sqlx::query_with(AssertSqlSafe(text), args)
            .fetch_all(conn)
            .boxed(),
        Statement::Text(text) => sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).boxed(),
    }
}

/// What became of a statement that changes something.
pub(super) struct Done {
    /// How many rows were found.
    pub(super) found: u64,
    /// The insert id.
    pub(super) id: u64,
}

pub(super) fn done(of: Statement, conn: &mut MySqlConnection) -> BoxFuture<'_, Result<Done, sqlx::Error>> {
    async move {
        let done = match of {
            Statement::Bound(text, args) => {
                let bound = sqlx::query_with(AssertSqlSafe(text), args);
                bound.execute(conn).await?
            }
            Statement::Text(text) => sqlx::raw_sql(AssertSqlSafe(text)).execute(conn).await?,
        };
        Ok(Done {
            found: done.rows_affected(),
            id: done.last_insert_id(),
        })
    }
    .boxed()
}
