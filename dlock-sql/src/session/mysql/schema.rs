//! The sequence or table that the tokens come from, and which run of the server it is.

use dlock_core::{Error, ErrorKind, Result, Strength};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use crate::failure::shown;
use crate::session::config::Config;
use crate::session::dialect::{Product, Site, quote};
use crate::session::failure::{Failed, invalid, unsupported};
use crate::session::restart::{Grace, comment};

/// The name of this run of the server, and how old it is, in seconds: see
/// [`restart`](crate::session::restart). It is called by the second in which the server started, the same
/// each time. Both servers tell their age in whole seconds, by the time of the statement.
pub(super) fn run_and_age(product: Product) -> String {
    let status = match product {
        Product::MariaDb => "information_schema.GLOBAL_STATUS",
        _ => "performance_schema.global_status",
    };
    let age = format!("(SELECT CAST(VARIABLE_VALUE AS SIGNED) FROM {status} WHERE VARIABLE_NAME = 'UPTIME')");
    format!("CAST(UNIX_TIMESTAMP() AS SIGNED) - {age}, {age}")
}

pub(super) async fn prepare(options: &MySqlConnectOptions, config: &Config) -> Result<Site> {
    let database = options.get_database().unwrap_or_default();
    let (host, port) = (options.get_host(), options.get_port());
    let at = &shown("MySQL", options.get_socket(), host, port, database);
    let told = |e| Failed::of(e, at).error;
    let mut connection = MySqlConnection::connect_with(options).await.map_err(told)?;
    const WHO: &str = "SELECT CAST(VERSION() AS CHAR), \
         CAST(@@GLOBAL.innodb_flush_log_at_trx_commit AS SIGNED), \
         (SELECT CAST(schema_name AS CHAR) FROM information_schema.schemata WHERE schema_name = DATABASE())";
    let who = sqlx::query_as::<_, (String, i64, Option<String>)>(WHO);
    let (version, flush, database) = who.fetch_one(&mut connection).await.map_err(told)?;
    let too_old = || format!("{at} has version {version}; session locks need MySQL 8.0 or MariaDB 10.5");
    let product = product(&version).ok_or_else(|| unsupported(too_old()))?;
    let none = || format!("the options for {at} name no database, which the tokens need");
    let database = database.ok_or_else(|| invalid(none()))?;
    let name = &config.sequence();
    let quoted = format!("{}.{}", quote(&database, '`'), quote(name, '`'));
    let made = make(&mut connection, product, (&database, name), &quoted).await;
    let noted = made.map_err(told)?.ok_or_else(|| {
        let message = format!(
            "`{name}` of {at} is not as dlock made it, so its tokens may not increase; choose another \
             prefix, or remove it"
        );
        Error::new(ErrorKind::BackendData, message)
    })?;
    let _ = connection.close().await;
    Ok(Site {
        product,
        at: at.clone(),
        space: format!("{database}.{name}"),
        quoted,
        strength: match flush {
            1 => Strength::AcrossRestart,
            // The log of the last tokens may be lost in a crash.
            _ => Strength::WhileStateSurvives,
        },
        grace: Grace::new(config.grace(), Some(&noted)),
    })
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

/// What is made after this is made in the run of this comment.
///
/// A run is called by the second in which it began. A server that crashed in its first second, and was back
/// within that, would have two runs of one name. So nothing is made in that second, by the server's clock:
/// any later run begins in another one. That is waited for once in the life of a prefix.
async fn this_run(connection: &mut MySqlConnection, product: Product) -> sqlx::Result<String> {
    loop {
        let sql = AssertSqlSafe(format!("SELECT {}", run_and_age(product)));
        let asked = sqlx::query_as::<_, (i64, i64)>(sql);
        let (run, age) = asked.fetch_one(&mut *connection).await?;
        if age >= 1 {
            return Ok(comment(&run.to_string()));
        }
        connection.execute("DO SLEEP(0.2)").await?;
    }
}

/// Makes what is not there, and answers its comment, or `None` if it is not as dlock makes it.
async fn make(
    connection: &mut MySqlConnection,
    product: Product,
    name: (&str, &str),
    quoted: &str,
) -> sqlx::Result<Option<String>> {
    let (kind, create) = match product {
        Product::MariaDb => {
            let counts = "START WITH 1 MINVALUE 1 INCREMENT BY 1 CACHE 1000 NOCYCLE";
            ("SEQUENCE", format!("SEQUENCE IF NOT EXISTS {quoted} {counts}"))
        }
        _ => {
            let columns = "(one TINYINT NOT NULL PRIMARY KEY, n BIGINT UNSIGNED NOT NULL)";
            ("BASE TABLE", format!("TABLE IF NOT EXISTS {quoted} {columns}"))
        }
    };
    let mut found = look(connection, name).await?;
    if found.is_none() {
        let comment = this_run(connection, product).await?;
        let sql = format!("CREATE {create} ENGINE = InnoDB COMMENT = '{comment}'");
        connection.execute(AssertSqlSafe(sql)).await?;
        found = look(connection, name).await?;
    }
    let Some((_, _, comment)) =
        found.filter(|(is, engine, _)| is == kind && engine.eq_ignore_ascii_case("InnoDB"))
    else {
        // Other engines are not safe in a crash.
        return Ok(None);
    };
    let is_good = match product {
        Product::MariaDb => {
            let sql = format!(
                "SELECT CAST(increment = 1 AND cycle_option = 0 AND minimum_value > 0 AS SIGNED) \
                 FROM {quoted}"
            );
            let good = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql));
            good.fetch_one(connection).await? == 1
        }
        _ => {
            // The program that created the table may have stopped there.
            let sql = format!("SELECT CAST(COUNT(*) AS SIGNED) FROM {quoted}");
            let rows = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql));
            if rows.fetch_one(&mut *connection).await? == 0 {
                let sql = format!("INSERT IGNORE INTO {quoted} (one, n) VALUES (1, 0)");
                connection.execute(AssertSqlSafe(sql)).await?;
            }
            true
        }
    };
    Ok(is_good.then_some(comment))
}

/// Of what kind the thing of that name is, of which engine, and its comment.
async fn look(
    connection: &mut MySqlConnection,
    (database, name): (&str, &str),
) -> sqlx::Result<Option<(String, String, String)>> {
    const LOOK: &str = "SELECT CAST(table_type AS CHAR), CAST(COALESCE(engine, '') AS CHAR), \
         CAST(table_comment AS CHAR) FROM information_schema.tables \
         WHERE table_schema = ? AND table_name = ?";
    let found = sqlx::query_as(LOOK).bind(database).bind(name);
    found.fetch_optional(connection).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_versions_are_recognised() {
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
