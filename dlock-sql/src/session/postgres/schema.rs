//! The sequence that the tokens come from.

use std::sync::Arc;

use dlock_core::{Error, ErrorKind, Result, Strength};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _};

use super::connection::PgServer;
use super::failure::{code, failed};
use super::run::RUN;
use crate::session::config::{Config, Tokens};
use crate::session::dialect::Server;
use crate::session::lock::invalid;
use crate::session::restart;

/// Finds or makes the sequence.
pub(in crate::session) async fn open(
    options: &PgConnectOptions,
    config: &Config,
) -> Result<(Tokens, Arc<dyn Server>)> {
    let at = shown(options);
    let tokens = prepare(options, &at, config).await?;
    let server = PgServer::new(options, at, config, &tokens);
    Ok((tokens, Arc::new(server)))
}

/// For messages.
fn shown(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or(options.get_username());
    match options.get_socket() {
        Some(socket) => format!("{}/{database}", socket.display()),
        None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
    }
}

async fn prepare(options: &PgConnectOptions, at: &str, config: &Config) -> Result<Tokens> {
    let sequence = config.sequence();
    let told = |e| failed(e, at).error;
    let mut connection = PgConnection::connect_with(options).await.map_err(told)?;
    // Behind a pooler the statements of a transaction are of one session, and others are not.
    let mut tx = connection.begin().await.map_err(told)?;
    let schema = match config.schema.clone() {
        Some(schema) => schema,
        None => {
            const FIRST: &str = "SELECT current_schema()::text";
            let first = sqlx::query_scalar::<_, Option<String>>(FIRST).persistent(false);
            let first = first.fetch_one(&mut *tx).await.map_err(told)?;
            first.ok_or_else(|| {
                invalid(format!(
                    "the search path at {at} has no schema that exists; choose one for dlock"
                ))
            })?
        }
    };
    let quoted = format!("{}.{}", quote(&schema), quote(&sequence));
    let mut found = look(&mut tx, &quoted, at).await?;
    if found.is_none() {
        if make(&mut tx, &quoted, at).await? == Made::BySomebodyElse {
            tx.rollback().await.map_err(told)?;
            tx = connection.begin().await.map_err(told)?;
        }
        found = look(&mut tx, &quoted, at).await?;
    }
    tx.commit().await.map_err(told)?;
    let made_in = match found {
        Some((IsOurs::Yes, comment)) => comment.and_then(|comment| restart::made_in(&comment)),
        Some((IsOurs::No, _)) => {
            return Err(Error::new(
                ErrorKind::BackendData,
                format!(
                    "the sequence {quoted} at {at} does not count up by one, without a cache and without \
                     an end: tokens from it would not follow one another"
                ),
            ));
        }
        None => {
            return Err(Error::new(
                ErrorKind::BackendData,
                format!("the sequence {quoted} at {at} was made, and is not there"),
            ));
        }
    };
    // What goes wrong in closing it concerns nobody.
    let _ = connection.close().await;
    Ok(Tokens {
        space: format!("{schema}.{sequence}"),
        quoted,
        strength: Strength::AcrossRestart,
        grace: config.grace(made_in),
    })
}

enum IsOurs {
    Yes,
    No,
}

/// Whether the sequence is there, and as it has to be: a cache is one of each session, and what they hand out
/// would not be in order. And its comment.
async fn look(
    connection: &mut PgConnection,
    quoted: &str,
    at: &str,
) -> Result<Option<(IsOurs, Option<String>)>> {
    const LOOK: &str = "SELECT seqincrement = 1 AND seqcache = 1 AND NOT seqcycle AND seqmax = \
     9223372036854775807 AND seqmin > 0, obj_description(seqrelid, 'pg_class') \
         FROM pg_sequence WHERE seqrelid = to_regclass($1)";
    let found = sqlx::query_as::<_, (bool, Option<String>)>(LOOK)
        .bind(quoted)
        .persistent(false);
    let found = found
        .fetch_optional(connection)
        .await
        .map_err(|e| failed(e, at).error)?;
    Ok(found.map(|(is_good, comment)| match is_good {
        true => (IsOurs::Yes, comment),
        false => (IsOurs::No, comment),
    }))
}

#[derive(PartialEq, Eq)]
enum Made {
    Here,
    /// Just now, which has ended this transaction.
    BySomebodyElse,
}

async fn make(connection: &mut PgConnection, quoted: &str, at: &str) -> Result<Made> {
    let sql = format!("CREATE SEQUENCE {quoted} AS bigint INCREMENT 1 MINVALUE 1 START 1 CACHE 1 NO CYCLE");
    let made = sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .execute(&mut *connection)
        .await;
    match made {
        Ok(_) => {
            let told = |e| failed(e, at).error;
            let run = sqlx::query_scalar::<_, String>(AssertSqlSafe(format!("SELECT {RUN}")))
                .persistent(false)
                .fetch_one(&mut *connection)
                .await
                .map_err(told)?;
            let sql = format!("COMMENT ON SEQUENCE {quoted} IS '{}'", restart::comment(&run));
            let noted = sqlx::query(AssertSqlSafe(sql)).persistent(false);
            noted.execute(connection).await.map_err(told)?;
            Ok(Made::Here)
        }
        // unique_violation, duplicate_table
        Err(e) if code(&e).is_some_and(|code| code == "23505" || code == "42P07") => Ok(Made::BySomebodyElse),
        Err(e) => Err(failed(e, at).error),
    }
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_for_statements() {
        assert_eq!(quote("a\"b"), "\"a\"\"b\"");
    }
}
