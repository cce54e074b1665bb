//! The tables, their migrations, and the statements on them. What the tables hold, and the functions on them,
//! are in `v1/`.

use std::sync::Arc;

use crate::direct::Dialect as _;
use crate::lease::schema::Tables;

type Pg = sqlx::Postgres;

/// A later version keeps the functions of those before it as they are or removes them: clients of before go
/// on with them, or are refused by the server.
const MIGRATIONS: &[&str] = &[concat!(
    include_str!("v1/tables.sql"),
    include_str!("v1/admission.sql"),
    include_str!("v1/requests.sql"),
    include_str!("v1/holds.sql"),
)];

/// What the advisory lock of a migration is taken on, with the name of the tables: `dlock` in ASCII.
const MIGRATING: i32 = 0x646c_6f63;

/// The statements that are asked often, with the names filled in once.
pub(super) struct Statements {
    pub(super) prefix: String,
    /// Takes a name exclusively that has no holder, waiter, watch or tombstone, or no row; otherwise it
    /// answers nothing. It reads only the row that it changes.
    ///
    /// *Somebody changes the row in between*: the statement waits for that, and judges the row anew, token
    /// and all. *Two that make it*: the second one finds the row of the first. *The row is deleted
    /// meanwhile*: the floor that it is made from was read when the statement began, which is why a name is
    /// deleted only where the floor was above its token long before: see `sweep` in `v1/`.
    pub(super) acquire: Arc<str>,
    /// The same of a name that has a row, which is cheaper; it answers nothing as well if there is none.
    pub(super) acquire_again: Arc<str>,
    /// The same for many names. It leaves out those whose rows are being changed.
    pub(super) acquires: Arc<str>,
    pub(super) attempt: Arc<str>,
    /// Releases a name without other entries; otherwise it changes nothing.
    pub(super) release: Arc<str>,
    /// The same for many, and leaves out as well.
    pub(super) releases: Arc<str>,
    pub(super) release_in_full: Arc<str>,
    pub(super) renew: Arc<str>,
    pub(super) look: Arc<str>,
    /// Asks for no name, and lets go of none.
    pub(super) calls: Arc<str>,
}

/// For the fast paths. Times are read when the row is judged, not when the statement begins: it may have
/// waited for the lock of the row. (A row that is made has them of before that, and ends sooner.)
const FREE: &str =
    "k.others = 0 AND (k.phase = 0 OR k.phase BETWEEN 1 AND 3 AND k.ends <= clock_timestamp())";
/// Held, without other entries.
const PLAIN: &str = "k.phase IN (1, 2) AND k.others = 0 AND k.ends > clock_timestamp()";
const TTL: &str = "$3::bigint * interval '1 microsecond'";
/// As `micros`, which would be planned into the statement by parsing it, and in numbers that the processor
/// knows.
const MICROS: &str = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint";

impl Statements {
    pub(super) fn new(prefix: String) -> Self {
        let fill = |text: &str| Arc::<str>::from(text.replace("{p}", &prefix));
        let call = |call: &str| fill(&calling(call));
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
            acquires: fill(&format!(
                "UPDATE {{p}}name AS k SET phase = 2, id = l.id, owner = l.owner, ttl = l.ttl, \
                 ends = clock_timestamp() + l.ttl, token = greatest(k.token + 1, {MICROS}) \
                 FROM (SELECT k.name, u.id, u.owner, u.ttl * interval '1 microsecond' AS ttl, u.item \
                 FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::text[]) \
                 WITH ORDINALITY AS u(name, id, ttl, owner, item) \
                 JOIN {{p}}name AS k ON k.name = u.name WHERE {FREE} FOR UPDATE OF k SKIP LOCKED) AS l \
                 WHERE k.name = l.name AND {FREE} RETURNING l.item, k.token"
            )),
            attempt: call("attempt($1, $2, $3, $4, $5, $6, $7, $8)"),
            release: fill(&format!(
                "UPDATE {{p}}name AS k SET phase = 0, id = NULL, owner = NULL, ends = clock_timestamp() \
                 WHERE k.name = $1 AND k.id = $2 AND {PLAIN}"
            )),
            releases: fill(&format!(
                "UPDATE {{p}}name AS k SET phase = 0, id = NULL, owner = NULL, ends = clock_timestamp() \
                 FROM (SELECT k.name, k.id, u.item \
                 FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS u(name, id, item) \
                 JOIN {{p}}name AS k ON k.name = u.name AND k.id = u.id WHERE {PLAIN} \
                 FOR UPDATE OF k SKIP LOCKED) AS l \
                 WHERE k.name = l.name AND k.id = l.id AND {PLAIN} RETURNING l.item, k.token"
            )),
            release_in_full: call("release($1, $2, $3, $4)"),
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
            prefix,
        }
    }

    /// A statement that is seldom asked.
    pub(super) fn fill(&self, text: &str) -> Arc<str> {
        text.replace("{p}", &self.prefix).into()
    }

    /// A function that is seldom called.
    pub(super) fn call(&self, call: &str) -> Arc<str> {
        self.fill(&calling(call))
    }

    /// What each connection prepares.
    pub(super) fn prepared(&self) -> [Arc<str>; 8] {
        [
            &self.acquire,
            &self.acquire_again,
            &self.acquires,
            &self.attempt,
            &self.release,
            &self.releases,
            &self.release_in_full,
            &self.renew,
        ]
        .map(Arc::clone)
    }
}

/// The call of a function that answers what became of a request.
fn calling(call: &str) -> String {
    format!("SELECT a.word, a.token, a.life, a.at, a.ahead, a.others FROM {{p}}{call} AS a")
}

/// The tables of a prefix, which has been checked, in a schema, which may be anything.
///
/// They are created in one transaction, so no client sees half a version.
pub(super) fn tables(schema: &str, prefix: &str) -> Tables {
    let all = format!("\"{}\".{prefix}", schema.replace('"', "\"\""));
    let (named, meta) = (Pg::text(schema), Pg::text(&format!("{prefix}meta")));
    let fill = |step: &&str| {
        let step = step.replace("{p}", &all).replace("{n}", prefix);
        step.replace("{schema}", &named)
    };
    Tables {
        // Not `to_regclass`: it goes by what this session remembers of names. Who waited for another one's
        // migration remembers that there was no table.
        there: format!(
            "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = {named} AND c.relname = {meta}"
        ),
        lock: format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; \
             SELECT CAST(1 AS BIGINT) FROM pg_advisory_xact_lock({MIGRATING}, hashtext({}))",
            Pg::text(&all)
        ),
        steps: MIGRATIONS.iter().map(fill).collect(),
        unlock: "COMMIT".to_owned(),
        fence: format!("{all}fence"),
        prefix: all,
    }
}
