//! The sequence that the tokens come from, and which run of the server it is.

use dlock_core::{Error, ErrorKind, Result, Strength};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _};

use crate::failure::shown;
use crate::session::config::Config;
use crate::session::dialect::{Product, Site, quote};
use crate::session::failure::{Failed, invalid};
use crate::session::restart::{Grace, comment};

/// When this run of the server began: see [`restart`](crate::session::restart).
///
/// When one of its processes has crashed, the postmaster ends all others and begins with empty memory, and
/// stays itself. Then statistics are thrown away: those of two kinds begin at that moment. One kind alone
/// does so when somebody resets it.
macro_rules! began {
    () => {
        "greatest(pg_postmaster_start_time(), \
         least(pg_stat_get_bgwriter_stat_reset_time(), (SELECT stats_reset FROM pg_stat_archiver)))"
    };
}

/// The name of this run, as a text.
pub(super) const RUN: &str = concat!("extract(epoch FROM ", began!(), ")::text");

/// How old it is, in seconds.
pub(super) const AGE: &str = concat!("extract(epoch FROM clock_timestamp() - ", began!(), ")::float8");

/// Draws a token from the sequence of that quoted name.
pub(super) fn draw(quoted: &str) -> String {
    format!("nextval('{}'::regclass)", quoted.replace('\'', "''"))
}

/// Finds or makes the sequence.
pub(super) async fn prepare(options: &PgConnectOptions, config: &Config) -> Result<Site> {
    let database = options.get_database().unwrap_or(options.get_username());
    let (host, port) = (options.get_host(), options.get_port());
    let at = &shown("PostgreSQL", options.get_socket(), host, port, database);
    let told = |e| Failed::of(e, at).error;
    let mut connection = PgConnection::connect_with(options).await.map_err(told)?;
    // Behind a pooler the statements of a transaction are of one session, and others are not.
    let mut tx = connection.begin().await.map_err(told)?;
    let schema = match config.schema.clone() {
        Some(schema) => schema,
        None => {
            let first = sqlx::query_scalar::<_, Option<String>>("SELECT current_schema()::text");
            let first = first.persistent(false).fetch_one(&mut *tx).await.map_err(told)?;
            let none = || format!("the search path of {at} has no schema that exists; choose one for dlock");
            first.ok_or_else(|| invalid(none()))?
        }
    };
    let sequence = config.sequence();
    let quoted = format!("{}.{}", quote(&schema, '"'), quote(&sequence, '"'));
    let mut found = look(&mut tx, &quoted).await.map_err(told)?;
    if found.is_none() {
        match make(&mut tx, &quoted).await {
            // unique_violation, duplicate_table: somebody has just made it, which ends this transaction.
            Err(sqlx::Error::Database(e)) if matches!(e.code().as_deref(), Some("23505" | "42P07")) => {
                tx.rollback().await.map_err(told)?;
                tx = connection.begin().await.map_err(told)?;
            }
            made => made.map_err(told)?,
        }
        found = look(&mut tx, &quoted).await.map_err(told)?;
    }
    tx.commit().await.map_err(told)?;
    let _ = connection.close().await;
    let Some((true, comment)) = found else {
        let message = format!(
            "the sequence {quoted} of {at} must increment by one, without a cache and without an end: its \
             tokens may not increase"
        );
        return Err(Error::new(ErrorKind::BackendData, message));
    };
    Ok(Site {
        product: Product::Postgres,
        at: at.clone(),
        space: format!("{schema}.{sequence}"),
        quoted,
        strength: Strength::AcrossRestart,
        grace: Grace::new(config.grace(), comment.as_deref()),
    })
}

/// Whether the sequence is as it has to be, if it is there, and its comment. A cache would be one of each
/// session, and what they hand out would not be in order.
async fn look(tx: &mut PgConnection, quoted: &str) -> sqlx::Result<Option<(bool, Option<String>)>> {
    const LOOK: &str = "SELECT seqincrement = 1 AND seqcache = 1 AND NOT seqcycle AND seqmax = \
         9223372036854775807 AND seqmin > 0, obj_description(seqrelid, 'pg_class') \
         FROM pg_sequence WHERE seqrelid = to_regclass($1)";
    let found = sqlx::query_as(LOOK).bind(quoted).persistent(false);
    found.fetch_optional(tx).await
}

async fn make(tx: &mut PgConnection, quoted: &str) -> sqlx::Result<()> {
    let sql = format!("CREATE SEQUENCE {quoted} AS bigint INCREMENT 1 MINVALUE 1 START 1 CACHE 1 NO CYCLE");
    let made = sqlx::query(AssertSqlSafe(sql)).persistent(false);
    made.execute(&mut *tx).await?;
    let run = sqlx::query_scalar::<_, String>(AssertSqlSafe(format!("SELECT {RUN}"))).persistent(false);
    let run = run.fetch_one(&mut *tx).await?;
    let sql = format!("COMMENT ON SEQUENCE {quoted} IS '{}'", comment(&run));
    let noted = sqlx::query(AssertSqlSafe(sql)).persistent(false);
    noted.execute(tx).await.map(drop)
}
