//! The tables, their migrations, and the statements on them.
//!
//! | table | holds |
//! |---|---|
//! | `…meta` | one row: the schema version; the floor of tokens: no name without a row was ever granted a larger one; that of the sweep before the last; when that was |
//! | `…name` | one row per name that was used lately: who holds it alone, the last token, how many rows it has in `…entry`; `taken` is of no meaning after a statement |
//! | `…entry` | one row per shared holder, waiter, tombstone, and name that is watched |
//! | `…fence` | one row per resource of the fence gate |
//!
//! Every change of a name locks its row first. While the name has no rows in `…entry` that row is the whole
//! state, which the fast paths rely on: their conditions read that row alone.
//!
//! Definitions are no part of transactions on these servers. So a step of a migration can be repeated (`IF
//! NOT EXISTS`), the version is set last, and a migration holds `GET_LOCK`.

use std::sync::Arc;

use super::bytes;
use crate::direct::Dialect as _;
use crate::lease::schema::Tables;

/// The server's clock in microseconds since 1970, without time zones. It is that of the beginning of the
/// statement: what ends is judged late by that, and what begins is counted from before.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))";

/// The version is in the first table, and set when a step is done.
const MIGRATIONS: &[&str] = &["
CREATE TABLE IF NOT EXISTS {p}meta (
  only_row TINYINT NOT NULL PRIMARY KEY,
  schema_version INT NOT NULL,
  token_floor BIGINT NOT NULL,
  older_floor BIGINT NOT NULL,
  swept BIGINT NOT NULL
) ENGINE = InnoDB;
INSERT IGNORE INTO {p}meta VALUES (1, 0, 0, 0, {now});
CREATE TABLE IF NOT EXISTS {p}name (
  name VARBINARY(1024) NOT NULL PRIMARY KEY,
  phase TINYINT NOT NULL,
  share INT NOT NULL,
  priority TINYINT NOT NULL,
  arrival BIGINT NOT NULL,
  token BIGINT NOT NULL,
  ttl BIGINT NOT NULL,
  ends BIGINT NOT NULL,
  upgrading TINYINT NOT NULL,
  owner VARCHAR(1024) CHARACTER SET utf8mb4,
  id BINARY(24),
  others INT NOT NULL,
  changes BIGINT NOT NULL,
  taken TINYINT NOT NULL DEFAULT 0
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
CREATE TABLE IF NOT EXISTS {p}entry (
  name VARBINARY(1024) NOT NULL,
  id VARBINARY(25) NOT NULL,
  phase TINYINT NOT NULL,
  share INT NOT NULL,
  priority TINYINT NOT NULL,
  arrival BIGINT NOT NULL,
  token BIGINT,
  ttl BIGINT NOT NULL,
  ends BIGINT NOT NULL,
  upgrading TINYINT NOT NULL,
  owner VARCHAR(1024) CHARACTER SET utf8mb4,
  PRIMARY KEY (name, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
"];

fn fill(text: &str, prefix: &str) -> String {
    text.replace("{p}", prefix).replace("{now}", NOW)
}

/// The tables of a prefix, which has been checked, in a schema, which may be anything.
pub(super) fn tables(schema: Option<&str>, prefix: &str) -> Tables {
    let (all, named) = match schema {
        Some(schema) => (
            format!("`{}`.{prefix}", schema.replace('`', "``")),
            sqlx::MySql::text(schema),
        ),
        None => (prefix.to_owned(), "DATABASE()".to_owned()),
    };
    let lock = bytes(format!("dlock migrates {prefix}").as_bytes());
    Tables {
        there: format!(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = {named} AND table_name = \
             '{prefix}meta'"
        ),
        lock: format!("SELECT CAST(GET_LOCK({lock}, 10) AS SIGNED)"),
        steps: MIGRATIONS.iter().map(|step| fill(step, &all)).collect(),
        unlock: format!("DO RELEASE_LOCK({lock})"),
        fence: format!("{all}fence"),
        prefix: all,
    }
}

/// The statements, with the names filled in once.
pub(super) struct Statements {
    pub(super) prefix: String,
    /// Take a name exclusively that has no holder, waiter or tombstone, or no row. The token comes back as
    /// the insert id; it is zero otherwise. (How many rows were changed says nothing: what is set to what it
    /// was counts as found by one server and as not changed by another.)
    ///
    /// Assignments are made from left to right and see the ones before: `taken` decides for all of them, by
    /// the row as it was found, locked. The insert itself decides by the key. So the second statement finds
    /// the row of the first. `LAST_INSERT_ID` is set by the row that is thought of first, and set again by
    /// the update. A row that dlock did not write, and the last token of all, are left to the full check.
    ///
    /// The floor is read without a lock, as such a `SELECT` is under read committed and a subquery among
    /// `VALUES` is not. So it may be older than the insert: see `sweep`. Types are cast since MySQL takes a
    /// bare value of a `SELECT` for text.
    pub(super) acquire: Arc<str>,
    /// The same of a name that has a row, which is cheaper; nought as well if there is none.
    pub(super) acquire_again: Arc<str>,
    pub(super) release: Arc<str>,
    /// Whatever changes when the holders do, whether something is to be taken back, who was offered the name,
    /// and when leases end, for those who watch.
    pub(super) look: Arc<str>,
}

impl Statements {
    pub(super) fn new(prefix: String) -> Self {
        let fill = |text: &str| Arc::<str>::from(fill(text, &prefix));
        Self {
            acquire: fill(
                "INSERT INTO {p}name (name, phase, share, priority, arrival, token, ttl, ends, upgrading, \
                 owner, id, others, changes, taken) \
                 SELECT CAST(? AS BINARY), 2, -1, 5, 0, LAST_INSERT_ID(GREATEST(token_floor + 1, {now})), \
                 CAST(? AS SIGNED), {now} + CAST(? AS SIGNED), 0, CAST(? AS CHAR), CAST(? AS BINARY), 0, 0, \
                 1 FROM {p}meta WHERE only_row = 1 AND token_floor < 9223372036854775807 \
                 ON DUPLICATE KEY UPDATE taken = (others = 0 AND token < 9223372036854775807 \
                 AND (phase = 0 OR (phase IN (1, 2, 3) AND ends <= {now}))), \
                 token = IF(taken, LAST_INSERT_ID(GREATEST(token + 1, {now})), token + LAST_INSERT_ID(0)), \
                 phase = IF(taken, 2, phase), ttl = IF(taken, ?, ttl), ends = IF(taken, {now} + ?, ends), \
                 upgrading = IF(taken, 0, upgrading), owner = IF(taken, ?, owner), id = IF(taken, ?, id)",
            ),
            acquire_again: fill(
                "UPDATE {p}name SET token = LAST_INSERT_ID(GREATEST(token + 1, {now})), phase = 2, ttl = ?, \
                 ends = {now} + ?, upgrading = 0, owner = ?, id = ? \
                 WHERE name = ? AND others = 0 AND token < 9223372036854775807 \
                 AND (phase = 0 OR (phase IN (1, 2, 3) AND ends <= {now}))",
            ),
            release: fill(
                "UPDATE {p}name SET token = LAST_INSERT_ID(token), phase = 0, id = NULL, owner = NULL, \
                 ends = {now} WHERE name = ? AND id = ? AND phase IN (1, 2) AND others = 0 AND ends > {now}",
            ),
            look: fill(
                "SELECT k.changes, k.token, CAST(k.phase AS SIGNED), CAST((k.phase <> 0 AND k.ends <= {now}) \
                 OR (k.others > 0 AND EXISTS (SELECT 1 FROM {p}entry AS o WHERE o.name = k.name \
                 AND o.ends <= {now})) AS SIGNED), CASE k.phase WHEN 1 THEN HEX(k.id) END, \
                 CASE WHEN k.others > 0 THEN (SELECT GROUP_CONCAT(HEX(o.id)) FROM {p}entry AS o \
                 WHERE o.name = k.name AND o.phase = 1) END, k.ends, \
                 CAST(CASE WHEN k.others > 0 THEN (SELECT BIT_XOR(o.ends) FROM {p}entry AS o \
                 WHERE o.name = k.name AND o.phase IN (1, 2, 3)) ELSE 0 END AS SIGNED) \
                 FROM {p}name AS k WHERE k.name = ?",
            ),
            prefix,
        }
    }

    /// What each connection prepares.
    pub(super) fn prepared(&self) -> Vec<Arc<str>> {
        let all = [&self.acquire, &self.acquire_again, &self.release, &self.look];
        all.map(Arc::clone).into()
    }

    /// Locks those names, in the order of their bytes, and reads what there is of them, and the clock as it
    /// is then. What is not locked is read after what is.
    pub(super) fn load(&self, list: &str) -> String {
        let all = self.all_of(list, " FOR UPDATE");
        format!("START TRANSACTION; {all}")
    }

    /// Reads the same at one moment, and locks nothing.
    pub(super) fn look_at(&self, list: &str) -> String {
        let all = self.all_of(list, "");
        format!("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION READ ONLY; {all}; COMMIT")
    }

    fn all_of(&self, list: &str, lock: &str) -> String {
        let p = &self.prefix;
        let columns = "name, id, phase, share, priority, arrival, token, ttl, ends, upgrading, owner";
        format!(
            "SELECT 0, {columns}, changes FROM {p}name FORCE INDEX (PRIMARY) WHERE name IN ({list}) \
             ORDER BY name{lock}; \
             SELECT 1, {columns}, 0 FROM {p}entry FORCE INDEX (PRIMARY) WHERE name IN ({list}) \
             UNION ALL SELECT 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, {NOW}, NULL, NULL, 0"
        )
    }

    /// Makes a row for a name, from the floor: that of a name which was deleted with its row.
    pub(super) fn make(&self, name: &[u8]) -> String {
        let p = &self.prefix;
        format!(
            "INSERT IGNORE INTO {p}name (name, phase, share, priority, arrival, token, ttl, ends, upgrading, \
             owner, id, others, changes, taken) \
             SELECT {}, 0, -1, 5, 0, token_floor, 0, {NOW}, 0, NULL, NULL, 0, 0, 0 FROM {p}meta \
             WHERE only_row = 1",
            bytes(name)
        )
    }
}
