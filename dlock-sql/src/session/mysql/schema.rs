//! The sequence or table that the tokens come from.

use std::sync::Arc;

use dlock_core::{Error, ErrorKind, Result, Strength};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use super::connection::MySqlServer;
use super::failure::failed;
use super::run::{age, run};
use crate::session::config::{Config, Tokens};
use crate::session::dialect::Server;
use crate::session::lock::invalid;
use crate::session::restart;

/// Which of the two it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Product {
    MySql,
    MariaDb,
}

/// Finds out which server it is, and finds or makes what the tokens come from.
pub(in crate::session) async fn open(
    options: &MySqlConnectOptions,
    config: &Config,
) -> Result<(Tokens, Arc<dyn Server>)> {
    let at = shown(options);
    let (product, tokens) = prepare(options, &at, config).await?;
    let server = MySqlServer::new(options, at, config, &tokens, product);
    Ok((tokens, Arc::new(server)))
}

/// For messages.
fn shown(options: &MySqlConnectOptions) -> String {
    let database = options.get_database().unwrap_or("");
    match options.get_socket() {
        Some(socket) => format!("{}/{database}", socket.display()),
        None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
    }
}

async fn prepare(options: &MySqlConnectOptions, at: &str, config: &Config) -> Result<(Product, Tokens)> {
    let sequence = &config.sequence();
    let told = |e| failed(e, at).error;
    let mut connection = MySqlConnection::connect_with(options).await.map_err(told)?;
    const WHO: &str = "SELECT CAST(VERSION() AS CHAR), CAST(@@GLOBAL.innodb_flush_log_at_trx_commit AS \
     SIGNED), \
         (SELECT CAST(schema_name AS CHAR) FROM information_schema.schemata WHERE schema_name = DATABASE())";
    let who = sqlx::query_as::<_, (String, i64, Option<String>)>(WHO);
    let (version, flush, database) = who.fetch_one(&mut connection).await.map_err(told)?;
    let product = product(&version).ok_or_else(|| {
        let message = format!("{at} is of version {version}; session locks need MySQL 8.0 or MariaDB 10.5");
        Error::new(ErrorKind::Unsupported, message)
    })?;
    let database = database.ok_or_else(|| {
        invalid(format!(
            "the options for {at} name no database, and the tokens need one"
        ))
    })?;
    let tokens = format!("{}.{}", quote(&database), quote(sequence));
    let made_in = match product {
        Product::MariaDb => make_sequence(&mut connection, &database, sequence, &tokens, at).await?,
        Product::MySql => make_table(&mut connection, &database, sequence, &tokens, at).await?,
    };
    // What goes wrong in closing it concerns nobody.
    let _ = connection.close().await;
    let strength = match flush {
        1 => Strength::AcrossRestart,
        // The log of the last tokens may be lost in a crash.
        _ => Strength::WhileStateSurvives,
    };
    let tokens = Tokens {
        space: format!("{database}.{sequence}"),
        quoted: tokens,
        strength,
        grace: config.grace(made_in),
    };
    Ok((product, tokens))
}

/// Which it is, if it is new enough.
fn product(version: &str) -> Option<Product> {
    // What replicas of old releases trip over is put in front: 5.5.5-10.11.19-MariaDB.
    let plain = version.strip_prefix("5.5.5-").unwrap_or(version);
    let mut numbers = plain
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse::<u32>().ok());
    let release = (numbers.next()??, numbers.next()??);
    match version.contains("MariaDB") {
        true => (release >= (10, 5)).then_some(Product::MariaDb),
        false => (release >= (8, 0)).then_some(Product::MySql),
    }
}

/// What is made after this is made in this run.
///
/// A run is called by the second in which it began. A server that crashed in its first second, and was back
/// within that, would have two runs of one name, and what was believed in before would be taken for nothing.
/// So nothing is made in the second in which the run began: any later run begins after this is answered, and
/// so in another second. It is waited for by the server's clock, and once in the life of a prefix.
async fn this_run(connection: &mut MySqlConnection, product: Product, at: &str) -> Result<String> {
    loop {
        let sql = AssertSqlSafe(format!("SELECT {}, {}", run(product), age(product)));
        let asked = sqlx::query_as::<_, (i64, i64)>(sql)
            .fetch_one(&mut *connection)
            .await;
        let (run, age) = asked.map_err(|e| failed(e, at).error)?;
        if age >= 1 {
            return Ok(restart::comment(&run.to_string()));
        }
        let waited = connection.execute("DO SLEEP(0.2)").await;
        waited.map_err(|e| failed(e, at).error)?;
    }
}

/// Of what kind the thing of that name is, of which engine, and its comment.
async fn kind_of(
    connection: &mut MySqlConnection,
    database: &str,
    name: &str,
    at: &str,
) -> Result<Option<(String, String, String)>> {
    const KIND: &str = "SELECT CAST(table_type AS CHAR), CAST(COALESCE(engine, '') AS CHAR), \
     CAST(table_comment AS CHAR) FROM information_schema.tables \
         WHERE table_schema = ? AND table_name = ?";
    let asked = sqlx::query_as::<_, (String, String, String)>(KIND)
        .bind(database)
        .bind(name);
    asked
        .fetch_optional(connection)
        .await
        .map_err(|e| failed(e, at).error)
}

async fn make_sequence(
    connection: &mut MySqlConnection,
    database: &str,
    name: &str,
    tokens: &str,
    at: &str,
) -> Result<Option<String>> {
    if kind_of(connection, database, name, at).await?.is_none() {
        let comment = this_run(connection, Product::MariaDb, at).await?;
        let sql = format!(
            "CREATE SEQUENCE IF NOT EXISTS {tokens} START WITH 1 MINVALUE 1 INCREMENT BY 1 CACHE 1000 \
             NOCYCLE ENGINE = InnoDB \
             COMMENT = '{comment}'"
        );
        connection
            .execute(AssertSqlSafe(sql))
            .await
            .map_err(|e| failed(e, at).error)?;
    }
    let made_in = check_kind(connection, database, name, "SEQUENCE", at).await?;
    let sql = format!(
        "SELECT CAST(increment AS SIGNED), CAST(cycle_option AS SIGNED), CAST(minimum_value AS SIGNED) \
         FROM {tokens}"
    );
    let asked = sqlx::query_as::<_, (i64, i64, i64)>(AssertSqlSafe(sql));
    let (step, cycles, least) = asked
        .fetch_one(connection)
        .await
        .map_err(|e| failed(e, at).error)?;
    match step == 1 && cycles == 0 && least > 0 {
        true => Ok(made_in),
        false => Err(changed(name, at)),
    }
}

async fn make_table(
    connection: &mut MySqlConnection,
    database: &str,
    name: &str,
    tokens: &str,
    at: &str,
) -> Result<Option<String>> {
    if kind_of(connection, database, name, at).await?.is_none() {
        let comment = this_run(connection, Product::MySql, at).await?;
        let sql = format!(
            "CREATE TABLE IF NOT EXISTS {tokens} (one TINYINT NOT NULL PRIMARY KEY, n BIGINT UNSIGNED NOT \
             NULL) ENGINE = InnoDB \
             COMMENT = '{comment}'"
        );
        let made = connection.execute(AssertSqlSafe(sql)).await;
        made.map_err(|e| failed(e, at).error)?;
    }
    let made_in = check_kind(connection, database, name, "BASE TABLE", at).await?;
    // Whoever made the table may have got no further.
    let sql = format!("SELECT CAST(COUNT(*) AS SIGNED) FROM {tokens}");
    let rows = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql))
        .fetch_one(&mut *connection)
        .await;
    if rows.map_err(|e| failed(e, at).error)? == 0 {
        let sql = format!("INSERT IGNORE INTO {tokens} (one, n) VALUES (1, 0)");
        let made = connection.execute(AssertSqlSafe(sql)).await;
        made.map_err(|e| failed(e, at).error)?;
    }
    Ok(made_in)
}

/// Answers in which run it was made.
async fn check_kind(
    connection: &mut MySqlConnection,
    database: &str,
    name: &str,
    kind: &str,
    at: &str,
) -> Result<Option<String>> {
    match kind_of(connection, database, name, at).await? {
        // Others are not safe in a crash.
        Some((is, engine, comment)) if is == kind && engine.eq_ignore_ascii_case("InnoDB") => {
            Ok(restart::made_in(&comment))
        }
        _ => Err(changed(name, at)),
    }
}

fn changed(name: &str, at: &str) -> Error {
    Error::new(
        ErrorKind::BackendData,
        format!(
            "`{name}` at {at} is not as dlock makes it: tokens from it would not follow one another; \
             choose another prefix, or remove it"
        ),
    )
}

fn quote(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_new_enough_is_read_from_the_version() {
        for (version, is) in [
            ("8.0.36", Some(Product::MySql)),
            ("8.4.2-log", Some(Product::MySql)),
            ("5.7.44", None),
            ("10.11.19-MariaDB-0+deb12u1", Some(Product::MariaDb)),
            ("5.5.5-10.6.1-MariaDB", Some(Product::MariaDb)),
            ("10.4.34-MariaDB", None),
            ("", None),
        ] {
            assert_eq!(product(version), is, "{version}");
        }
    }
}
