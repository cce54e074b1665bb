//! The tables, their migrations, and the statements on them. What the tables hold, and the functions on them,
//! are in `v1/`.
//!
//! Two that open at once: each looks for the version first, and whoever finds an old one takes an advisory
//! lock, looks again, and goes on from there; all in one transaction, so that nobody sees half a version. Who
//! finds the tables as they should be needs no right to make any.

use std::sync::Arc;

use dlock_core::{Error, ErrorKind, Result};
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgConnection, PgRow};

use super::call::{Value, statement};
use crate::failure::OTHER_ISOLATION;
use crate::lease::Config;
use crate::lease::call::{get, run};
use crate::lease::failure::{invalid, known_version, nothing_done, perhaps_done};

/// Step `n` leads from version `n` to `n + 1`. A step is never changed after a release; a new version adds
/// one, and keeps the functions of those before it as they are or removes them: clients of before go on with
/// them, or are refused by the server.
const MIGRATIONS: &[&str] = &[concat!(
    include_str!("v1/tables.sql"),
    include_str!("v1/admission.sql"),
    include_str!("v1/requests.sql"),
    include_str!("v1/holds.sql"),
)];

/// What the advisory lock of a migration is taken on, with the name of the tables: `dlock` in ASCII.
const MIGRATING: i32 = 0x646c_6f63;

/// Where the tables are. The prefix has been checked; the schema is quoted, so it may be anything.
pub(super) struct Names {
    schema: String,
    prefix: String,
}

impl Names {
    fn quoted_schema(&self) -> String {
        format!("\"{}\"", self.schema.replace('"', "\"\""))
    }

    /// A text with the names filled in.
    fn fill(&self, text: &str) -> String {
        let all = format!("{}.{}", self.quoted_schema(), self.prefix);
        text.replace("{p}", &all).replace("{n}", &self.prefix)
    }

    /// The call of a function that answers what became of a request.
    fn call(&self, call: &str) -> Arc<str> {
        let columns = "a.word, a.token, a.life, a.at, a.ahead, a.others";
        self.fill(&format!("SELECT {columns} FROM {{p}}{call} AS a"))
            .into()
    }
}

/// The statements that are asked often, with the names filled in once.
pub(super) struct Statements {
    names: Names,
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
    pub(super) renew: Arc<str>,
    pub(super) look: Arc<str>,
    /// Asks for no name, and lets go of none.
    pub(super) calls: Arc<str>,
}

/// Of the short statements. Times are read as the row is judged, and not when the statement begins: it may
/// have waited for whoever has the row. (A row that is made has them of before that, and ends sooner.)
const FREE: &str =
    "k.others = 0 AND (k.phase = 0 OR k.phase BETWEEN 1 AND 3 AND k.ends <= clock_timestamp())";
const TTL: &str = "$3::bigint * interval '1 microsecond'";
/// As `micros`, which would be planned into the statement by parsing it, and in numbers that the processor
/// knows.
const MICROS: &str = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint";

impl Statements {
    pub(super) fn new(names: Names) -> Self {
        let fill = |text: &str| Arc::<str>::from(names.fill(text));
        Self {
            acquire: fill(&format!(
                "INSERT INTO {{p}}name AS k (name, phase, id, owner, ttl, ends, token) \
                 SELECT $1::bytea, 2, $2::bytea, $4::text, {TTL}, clock_timestamp() + {TTL}, \
                 greatest(m.token_floor + 1, {MICROS}) FROM {{p}}meta AS m \
                 ON CONFLICT (name) DO UPDATE SET phase = 2, id = excluded.id, owner = excluded.owner, \
                 ttl = excluded.ttl, ends = clock_timestamp() + excluded.ttl, \
                 token = greatest(k.token + 1, {MICROS}) WHERE {FREE} RETURNING k.token"
            )),
            acquire_again: fill(&format!(
                "UPDATE {{p}}name AS k SET phase = 2, id = $2, owner = $4, ttl = {TTL}, \
                 ends = clock_timestamp() + {TTL}, token = greatest(k.token + 1, {MICROS}) \
                 WHERE k.name = $1 AND {FREE} RETURNING k.token"
            )),
            attempt: names.call("attempt($1, $2, $3, $4, $5, $6, $7, $8)"),
            release: fill(
                "UPDATE {p}name AS k SET phase = 0, id = NULL, owner = NULL, ends = clock_timestamp() \
                 WHERE k.name = $1 AND k.id = $2 AND k.phase IN (1, 2) AND k.others = 0 \
                 AND k.ends > clock_timestamp()",
            ),
            release_in_full: names.call("release($1, $2, $3, $4)"),
            renew: fill(
                "SELECT r.word, r.token, r.life, r.at, r.ahead, NULL::integer, r.item \
                 FROM {p}renew($1, $2, $3, $4, $5, $6) AS r",
            ),
            look: fill(
                "SELECT k.changes, k.hints, k.token, k.phase::bigint, \
                 (k.phase <> 0 AND k.ends <= clock_timestamp()) \
                 OR (k.others > 0 AND k.earliest <= clock_timestamp()), \
                 concat_ws(',', CASE k.phase WHEN 1 THEN encode(k.id, 'hex') END, CASE WHEN k.held > 0 THEN \
                 (SELECT string_agg(encode(o.id, 'hex'), ',') FROM {p}entry AS o \
                 WHERE o.name = k.name AND o.phase IN (1, 2, 3) AND o.phase = 1) END) \
                 FROM {p}name AS k WHERE k.name = $1",
            ),
            calls: fill(
                "SELECT a.word FROM {p}attempt(NULL, NULL, -1, 0, 0, 5, NULL, NULL) AS a \
                 UNION ALL SELECT a.word FROM {p}release(NULL, NULL, 0, false) AS a \
                 UNION ALL SELECT r.word FROM {p}renew('{}', '{}', '{}', '{}', NULL, false) AS r",
            ),
            names,
        }
    }

    /// A statement that is seldom asked.
    pub(super) fn fill(&self, text: &str) -> Arc<str> {
        self.names.fill(text).into()
    }

    /// A function that is seldom called.
    pub(super) fn call(&self, call: &str) -> Arc<str> {
        self.names.call(call)
    }

    /// What each connection prepares.
    pub(super) fn prepared(&self) -> [&Arc<str>; 6] {
        [
            &self.acquire,
            &self.acquire_again,
            &self.attempt,
            &self.release,
            &self.release_in_full,
            &self.renew,
        ]
    }
}

/// The connection by which a database is opened.
pub(super) struct Session {
    pub(super) conn: PgConnection,
    pub(super) in_full: bool,
    pub(super) at: Arc<str>,
}

impl Session {
    async fn ask(&mut self, text: &str, values: &[Value<'_>]) -> Result<Option<PgRow>> {
        let asked = run(
            statement(self.in_full, &text.into(), values.iter())?,
            &mut self.conn,
        )
        .await;
        let rows = asked.map_err(|e| nothing_done(e, &self.at))?;
        Ok(rows.rows.into_iter().next())
    }

    async fn text(&mut self, sql: &str) -> Result<Option<String>> {
        let row = self.ask(sql, &[]).await?;
        Ok(row.and_then(|row| get(&row, 0).ok()))
    }

    async fn run(&mut self, text: &str) -> Result<(), sqlx::Error> {
        let text = AssertSqlSafe(text.to_owned());
        sqlx::raw_sql(text).execute(&mut self.conn).await.map(drop)
    }

    async fn simple(&mut self, text: &str) -> Result<()> {
        let done = self.run(text).await;
        done.map_err(|e| nothing_done(e, &self.at))
    }

    /// Brings the tables up to the version of this program.
    ///
    /// If it is dropped the connection may be in a transaction: whoever calls closes it then.
    pub(super) async fn migrated(&mut self, config: &Config) -> Result<Names> {
        if self.in_full {
            // Nothing can be set there, and the short statements do not look.
            let level = self
                .text("SELECT current_setting('transaction_isolation')")
                .await?;
            if level.as_deref() != Some("read committed") {
                let text = format!("{} {OTHER_ISOLATION}", self.at);
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
        }
        let schema = match config.schema.clone() {
            Some(schema) => Some(schema),
            None => self.text("SELECT current_schema()::text").await?,
        };
        let schema = schema.ok_or_else(|| {
            invalid(format!(
                "no schema of the search path of {} exists; name one",
                self.at
            ))
        })?;
        let prefix = config.table_prefix.clone();
        let names = Names { schema, prefix };
        if self.version(&names).await? == MIGRATIONS.len() {
            return Ok(names);
        }
        self.simple("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        if let Err(e) = self.upgrade(&names).await {
            // What the server does not hear of it does by itself as the connection is closed.
            let _ = self.run("ROLLBACK").await;
            return Err(e);
        }
        let committed = self.run("COMMIT").await;
        committed.map_err(|e| perhaps_done(e, &self.at))?;
        Ok(names)
    }

    async fn upgrade(&mut self, names: &Names) -> Result<()> {
        let whose = names.fill("{p}");
        let whose = [Value::Number(MIGRATING), Value::Text(Some(&whose))];
        self.ask("SELECT 1 FROM pg_advisory_xact_lock($1, hashtext($2))", &whose)
            .await?;
        let from = self.version(names).await?;
        if from == 0 {
            let schema = [Value::Text(Some(&names.schema))];
            let there = self.ask("SELECT 1 FROM pg_namespace WHERE nspname = $1", &schema);
            if there.await?.is_none() {
                self.simple(&format!("CREATE SCHEMA {}", names.quoted_schema()))
                    .await?;
            }
        }
        for step in MIGRATIONS.iter().skip(from) {
            self.simple(&names.fill(step)).await?;
        }
        let set = format!("UPDATE {{p}}meta SET schema_version = {}", MIGRATIONS.len());
        self.simple(&names.fill(&set)).await
    }

    /// Nought if there are no tables yet. What a newer dlock has made is refused.
    async fn version(&mut self, names: &Names) -> Result<usize> {
        // Not `to_regclass`: it goes by what this session remembers of names. Who waited for another one's
        // migration remembers that there was no table.
        let there = "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = \
            c.relnamespace WHERE n.nspname = $1 AND c.relname = $2";
        let meta = format!("{}meta", names.prefix);
        let of = [Value::Text(Some(&names.schema)), Value::Text(Some(&meta))];
        if self.ask(there, &of).await?.is_none() {
            return Ok(0);
        }
        let table = names.fill("{p}meta");
        let at = self.at.clone();
        let foreign_table = || {
            let text =
                format!("the table {table} in {at} is not dlock's; choose another table prefix or schema");
            Error::new(ErrorKind::BackendData, text)
        };
        let row = self
            .ask(&format!("SELECT schema_version FROM {table}"), &[])
            .await;
        let row = row.map_err(|e| match e.kind() {
            ErrorKind::BackendData => foreign_table().with_source(e),
            _ => e,
        })?;
        let version: i32 = get(&row.ok_or_else(foreign_table)?, 0)?;
        known_version(
            version.into(),
            MIGRATIONS.len(),
            &format!("{} in {}", names.fill("{p}*"), self.at),
        )
    }
}
