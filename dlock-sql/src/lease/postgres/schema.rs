//! The tables, their migrations, and the statements on them. What the tables hold, and the functions on them,
//! are in `v1/`.
//!
//! Two that open at once: each looks for the version first, and whoever finds an old one takes an advisory
//! lock, looks again, and goes on from there; all in one transaction, so that nobody sees half a version. Who
//! finds the tables as they should be needs no right to make any.

use std::fmt;
use std::sync::Arc;

use dlock_core::{Error, ErrorKind, Result};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row as _};

use super::call::{Value, Way, run};
use super::connection::Warm;
use super::failure::{foreign, nothing_done, other_isolation, perhaps_done};

/// Step `n` leads from version `n` to `n + 1`. A step is never changed after a release; a new version adds
/// one, and keeps the functions of those before it as they are or removes them: clients of before go on with
/// them, or are refused by the server.
pub(super) const MIGRATIONS: &[&str] = &[concat!(
    include_str!("v1/tables.sql"),
    include_str!("v1/admission.sql"),
    include_str!("v1/requests.sql"),
    include_str!("v1/holds.sql"),
)];

/// What the advisory lock of a migration is taken on, with the name of the tables: `dlock` in ASCII.
const MIGRATING: i32 = 0x646c_6f63;

/// Where the tables are.
#[derive(Clone, Debug)]
pub(super) struct Names {
    schema: String,
    prefix: String,
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}*", self.schema, self.prefix)
    }
}

impl Names {
    /// `prefix` has been checked; `schema` is quoted, so it may be anything.
    pub(super) fn new(schema: &str, prefix: &str) -> Self {
        Self {
            schema: schema.to_owned(),
            prefix: prefix.to_owned(),
        }
    }

    fn quoted_schema(&self) -> String {
        format!("\"{}\"", self.schema.replace('"', "\"\""))
    }

    /// A text with the names filled in.
    pub(super) fn fill(&self, text: &str) -> String {
        let all = format!("{}.{}", self.quoted_schema(), self.prefix);
        text.replace("{p}", &all).replace("{n}", &self.prefix)
    }
}

/// The statements, with the names filled in once.
#[derive(Debug)]
pub(super) struct Statements {
    /// Takes a name alone that nobody else holds, waits for, watches or was abandoned at, or that has no row;
    /// it answers nothing if somebody does. Of names it reads the row that it changes and no other.
    ///
    /// *Somebody changes the row in between*: the statement waits for that, and judges the row anew, token
    /// and all. *Two that make it*: the second one finds the row of the first. *The row is deleted
    /// meanwhile*: the floor that it is made from was read when the statement began, which is why a name is
    /// deleted only where the floor was above its token long before: see `sweep` in `v1/`.
    pub(super) acquire: Arc<str>,
    /// The same of a name that has a row, which is cheaper; it answers nothing as well if there is none.
    pub(super) acquire_again: Arc<str>,
    pub(super) attempt: Arc<str>,
    /// Lets go of a name where nobody else is; it changes nothing if somebody is.
    pub(super) release: Arc<str>,
    pub(super) release_in_full: Arc<str>,
    pub(super) abandon: Arc<str>,
    pub(super) renew: Arc<str>,
    pub(super) convert: Arc<str>,
    pub(super) raise: Arc<str>,
    pub(super) force: Arc<str>,
    pub(super) listen: Arc<str>,
    pub(super) sweep: Arc<str>,
    /// Whether dead names have not been looked for in so many microseconds.
    pub(super) sweep_due: Arc<str>,
    /// Asks for no name, and lets go of none.
    calls: Arc<str>,
    pub(super) look: Arc<str>,
    pub(super) inspect: Arc<str>,
    pub(super) read_fence: Arc<str>,
    /// Of the fence gate: shared, exclusive, and one that writes.
    pub(super) pass: [Arc<str>; 3],
    /// What a token has to reach: for shared access, for exclusive.
    pub(super) bar: [Arc<str>; 2],
}

/// Of the short statements. Times are read as the row is judged, and not when the statement begins: it may
/// have waited for whoever has the row. (A row that is made has them of before that, and ends sooner.)
const FREE: &str =
    "k.others = 0 AND (k.phase = 0 OR k.phase BETWEEN 1 AND 3 AND k.ends <= clock_timestamp())";
const TTL: &str = "$3 * interval '1 microsecond'";
/// As `micros`, which would be planned into the statement by parsing it, and in numbers that the processor
/// knows.
const MICROS: &str = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint";

const ANSWER: &str = "a.word, a.token, a.life, a.at, a.ahead, a.others";

impl Statements {
    pub(super) fn new(names: &Names) -> Self {
        let fill = |text: &str| Arc::<str>::from(names.fill(text));
        let of = |call: &str| fill(&format!("SELECT {ANSWER} FROM {{p}}{call} AS a"));
        Self {
            acquire: fill(&format!(
                "INSERT INTO {{p}}name AS k (name, phase, id, owner, ttl, ends, token) \
                 SELECT $1, 2, $2, $4, {TTL}, clock_timestamp() + {TTL}, greatest(m.token_floor + 1, \
                 {MICROS}) FROM {{p}}meta AS m \
                 ON CONFLICT (name) DO UPDATE SET phase = 2, id = excluded.id, owner = excluded.owner, ttl \
                 = excluded.ttl, \
                 ends = clock_timestamp() + excluded.ttl, token = greatest(k.token + 1, {MICROS}) WHERE \
                 {FREE} RETURNING k.token"
            )),
            acquire_again: fill(&format!(
                "UPDATE {{p}}name AS k SET phase = 2, id = $2, owner = $4, ttl = {TTL}, ends = \
                    clock_timestamp() + {TTL}, \
                 token = greatest(k.token + 1, {MICROS}) WHERE k.name = $1 AND {FREE} RETURNING k.token"
            )),
            attempt: of("attempt($1, $2, $3, $4, $5, $6, $7, $8)"),
            release: fill(
                "UPDATE {p}name AS k SET phase = 0, id = NULL, owner = NULL, ends = clock_timestamp() \
                 WHERE k.name = $1 AND k.id = $2 AND k.phase IN (1, 2) AND k.others = 0 AND k.ends > \
                 clock_timestamp()",
            ),
            release_in_full: of("release($1, $2, $3, $4)"),
            abandon: of("abandon($1, $2)"),
            renew: fill(
                "SELECT r.item, r.word, r.token, r.life, r.at, r.ahead FROM {p}renew($1, $2, $3, $4, $5, \
                    $6) AS r",
            ),
            convert: of("convert($1, $2, $3)"),
            raise: of("raise($1, $2, $3)"),
            force: of("force($1)"),
            listen: of("listen($1, $2, $3, $4)"),
            sweep: fill("SELECT {p}sweep($1, $2)"),
            sweep_due: fill(
                "SELECT m.swept < clock_timestamp() - $1 * interval '1 microsecond' FROM {p}meta AS m",
            ),
            calls: fill(
                "SELECT a.word FROM {p}attempt(NULL, NULL, -1, 0, 0, 5, NULL, NULL) AS a \
                 UNION ALL SELECT a.word FROM {p}release(NULL, NULL, 0, false) AS a \
                 UNION ALL SELECT r.word FROM {p}renew('{}', '{}', '{}', '{}', NULL, false) AS r",
            ),
            look: fill(
                "SELECT k.changes, k.hints, k.token, k.phase::integer, \
                 (k.phase <> 0 AND k.ends <= clock_timestamp()) OR (k.others > 0 AND k.earliest <= \
                 clock_timestamp()), \
                 concat_ws(',', CASE k.phase WHEN 1 THEN encode(k.id, 'hex') END, CASE WHEN k.held > 0 THEN \
                 (SELECT string_agg(encode(o.id, 'hex'), ',') FROM {p}entry AS o \
                 WHERE o.name = k.name AND o.phase IN (1, 2, 3) AND o.phase = 1) END) \
                 FROM {p}name AS k WHERE k.name = $1",
            ),
            // One row for the name, one for each holder. A row that no dlock wrote has an id that none has.
            inspect: fill(
                "SELECT NULL::bytea AS id, k.waiting AS share, k.changes AS token, 0::bigint AS life, \
                    NULL::text AS owner \
                 FROM {p}name AS k WHERE k.name = $1 \
                 UNION ALL SELECT CASE WHEN k.phase BETWEEN 1 AND 3 THEN k.id ELSE ''::bytea END, -1, \
                 k.token, \
                 {p}micros(k.ends - clock_timestamp()), k.owner FROM {p}name AS k \
                 WHERE k.name = $1 AND k.phase <> 0 AND (k.ends > clock_timestamp() OR k.phase NOT BETWEEN \
                 1 AND 3) \
                 UNION ALL SELECT o.id, o.share, o.token, {p}micros(o.ends - clock_timestamp()), o.owner \
                 FROM {p}entry AS o WHERE o.name = $1 AND o.phase IN (1, 2, 3) AND o.ends > \
                 clock_timestamp()",
            ),
            read_fence: fill(
                "SELECT f.value, f.max_exclusive, f.max_any FROM {p}fence AS f WHERE f.resource = $1",
            ),
            pass: [
                fill(&pass("max_exclusive", "NULL", "f.max_exclusive", "")),
                fill(&pass("max_any", "$2", EXCLUSIVE, "")),
                fill(&pass("max_any", "$2", EXCLUSIVE, ", value = excluded.value")),
            ],
            bar: [
                fill("SELECT f.max_exclusive FROM {p}fence AS f WHERE f.resource = $1"),
                fill("SELECT f.max_any FROM {p}fence AS f WHERE f.resource = $1"),
            ],
        }
    }
}

impl Statements {
    /// What is to be ready.
    pub(super) fn warm(&self) -> Warm {
        use Value::{Bytes, Long, Longs, ManyBytes, Number, Text, Truth, Truths};
        let taking = [Bytes(&[]), Bytes(&[]), Long(0), Text(None)];
        let releasing = [Bytes(&[]), Bytes(&[]), Long(0), Truth(false)];
        let asking = [
            Bytes(&[]),
            Bytes(&[]),
            Number(0),
            Long(0),
            Long(0),
            Number(0),
            Text(None),
            Text(None),
        ];
        let renewing = [
            ManyBytes(vec![]),
            ManyBytes(vec![]),
            Truths(vec![]),
            Longs(vec![]),
            Text(None),
            Truth(false),
        ];
        let kinds = |values: &[Value<'_>]| values.iter().map(Value::kind).collect();
        Warm {
            statements: vec![
                (self.acquire.clone(), kinds(&taking)),
                (self.acquire_again.clone(), kinds(&taking)),
                (self.attempt.clone(), kinds(&asking)),
                (self.release.clone(), kinds(&releasing[..2])),
                (self.release_in_full.clone(), kinds(&releasing)),
                (self.renew.clone(), kinds(&renewing)),
            ],
            calls: Some(self.calls.clone()),
        }
    }
}

const EXCLUSIVE: &str = "greatest(coalesce(f.max_exclusive, 0), excluded.max_any)";

/// Check and note in one statement, which begins with locking the row. A row if it was admitted.
fn pass(bar: &str, first: &str, exclusive: &str, value: &str) -> String {
    format!(
        "INSERT INTO {{p}}fence AS f (resource, max_exclusive, max_any, value) VALUES ($1, {first}, $2, $3) \
         ON CONFLICT (resource) DO UPDATE SET max_exclusive = {exclusive}, \
         max_any = greatest(coalesce(f.max_any, 0), excluded.max_any){value} \
         WHERE coalesce(f.{bar}, 0) <= excluded.max_any RETURNING 1"
    )
}

/// Behind a pooler nothing can be set, and the short statements do not look.
pub(super) async fn check_isolation(conn: &mut PgConnection, way: Way, at: &str) -> Result<()> {
    let level = Arc::from("SELECT current_setting('transaction_isolation')");
    let rows = run(conn, way, &level, &[])
        .await
        .map_err(|e| nothing_done(e, at))?;
    let level: Option<String> = rows.first().and_then(|row| row.try_get(0).ok());
    match level.as_deref() {
        Some("read committed") => Ok(()),
        _ => Err(other_isolation(at)),
    }
}

/// The schema that unqualified names are looked up in.
pub(super) async fn current_schema(conn: &mut PgConnection, way: Way, at: &str) -> Result<String> {
    let rows = run(conn, way, &Arc::from("SELECT current_schema()::text"), &[])
        .await
        .map_err(|e| nothing_done(e, at))?;
    let schema = rows
        .first()
        .and_then(|row| row.try_get::<Option<String>, _>(0).ok());
    schema.flatten().ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidInput,
            format!(
                "no schema of the search path of the PostgreSQL database {at} exists; name one with \
                `Builder::schema`"
            ),
        )
    })
}

/// Brings the tables up to the version of those steps.
///
/// If it is dropped the connection may be in a transaction: whoever calls closes it then.
pub(super) async fn migrate(
    conn: &mut PgConnection,
    way: Way,
    names: &Names,
    steps: &[&str],
    at: &str,
) -> Result<()> {
    if version(conn, way, names, steps.len(), at).await? == steps.len() {
        return Ok(());
    }
    simple(conn, "BEGIN ISOLATION LEVEL READ COMMITTED", at).await?;
    let upgraded = upgrade(conn, way, names, steps, at).await;
    if let Err(e) = upgraded {
        // What the server does not hear of it does by itself as the connection is closed.
        let _ = simple(conn, "ROLLBACK", at).await;
        return Err(e);
    }
    let committed = sqlx::raw_sql("COMMIT").execute(conn).await;
    committed.map(|_| ()).map_err(|e| perhaps_done(e, at))
}

async fn upgrade(conn: &mut PgConnection, way: Way, names: &Names, steps: &[&str], at: &str) -> Result<()> {
    let lock: Arc<str> = Arc::from("SELECT 1 FROM pg_advisory_xact_lock($1, hashtext($2))");
    let whose = names.fill("{p}");
    run(
        conn,
        way,
        &lock,
        &[Value::Number(MIGRATING), Value::Text(Some(&whose))],
    )
    .await
    .map_err(|e| nothing_done(e, at))?;
    let from = version(conn, way, names, steps.len(), at).await?;
    if from == 0 {
        let exists: Arc<str> = Arc::from("SELECT 1 FROM pg_namespace WHERE nspname = $1");
        let there = run(conn, way, &exists, &[Value::Text(Some(&names.schema))])
            .await
            .map_err(|e| nothing_done(e, at))?;
        if there.is_empty() {
            simple(conn, &format!("CREATE SCHEMA {}", names.quoted_schema()), at).await?;
        }
    }
    for step in steps.iter().skip(from) {
        simple(conn, &names.fill(step), at).await?;
    }
    let set = format!("UPDATE {{p}}meta SET schema_version = {}", steps.len());
    simple(conn, &names.fill(&set), at).await
}

async fn simple(conn: &mut PgConnection, text: &str, at: &str) -> Result<()> {
    let done = sqlx::raw_sql(AssertSqlSafe(text.to_owned())).execute(conn).await;
    done.map(|_| ()).map_err(|e| nothing_done(e, at))
}

/// Nought if there are no tables yet. What a newer dlock has made is refused.
async fn version(conn: &mut PgConnection, way: Way, names: &Names, known: usize, at: &str) -> Result<usize> {
    let table = names.fill("{p}meta");
    // Not `to_regclass`: it goes by what this session remembers of names. Who waited for another one's
    // migration remembers that there was no table.
    let there: Arc<str> = Arc::from(
        "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = $1 AND c.relname = $2",
    );
    let meta = format!("{}meta", names.prefix);
    let of = [Value::Text(Some(&names.schema)), Value::Text(Some(&meta))];
    let found = run(conn, way, &there, &of)
        .await
        .map_err(|e| nothing_done(e, at))?;
    if found.is_empty() {
        return Ok(0);
    }
    let text: Arc<str> = names.fill("SELECT schema_version FROM {p}meta").into();
    let foreign_table = || {
        Error::new(
            ErrorKind::BackendData,
            format!("the table {table} in {at} is not dlock's; choose another table prefix or schema"),
        )
    };
    let rows = run(conn, way, &text, &[]).await.map_err(|e| {
        let e = nothing_done(e, at);
        match e.kind() {
            ErrorKind::BackendData => foreign_table().with_source(e),
            _ => e,
        }
    })?;
    let row = rows.first().ok_or_else(foreign_table)?;
    let version: i32 = row.try_get(0).map_err(|_| foreign("another schema version"))?;
    let version = usize::try_from(version).map_err(|_| foreign("a schema version below nought"))?;
    if version > known {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the lock tables {names} in {at} have schema version {version}, this program knows up to \
                    {known}: \
                 a newer dlock has used the database; update this program"
            ),
        ));
    }
    Ok(version)
}

#[cfg(test)]
mod tests;
