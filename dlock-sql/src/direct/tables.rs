//! The names of dlock's tables.

use std::fmt;

use dlock_core::ErrorKind;

use super::dialect::Store;
use super::failure::{Error, Failure, Result};

/// The prefix of the names of dlock's tables, optionally with a schema: `dlock_` by default, as for the
/// backends, so that the fence gate here and theirs share a table. Different prefixes are different sets of
/// tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables(String);

impl Tables {
    /// Sets the prefix, as in `dlock_`, `shop_dlock_`, or `locks.dlock_` in a schema (MySQL: a database) that
    /// exists.
    ///
    /// # Errors
    /// `InvalidInput` if it, or the part before a dot, is not a letter or underscore and then letters, digits
    /// and underscores, at most 40 in each.
    pub fn new(prefix: &str) -> Result<Self> {
        let (schema, name) = prefix.split_once('.').unwrap_or(("_", prefix));
        if is_plain(schema) && is_prefix(name) {
            return Ok(Self(prefix.to_owned()));
        }
        Err(Error::new(
            ErrorKind::InvalidInput,
            "a table prefix is a letter or underscore, then letters, digits and underscores, 40 at most, and \
             not `sqlite_`; the name of a schema and a dot may stand before it",
        ))
    }

    pub(super) fn fence(&self) -> String {
        format!("{self}fence")
    }
}

impl Default for Tables {
    fn default() -> Self {
        Self("dlock_".to_owned())
    }
}

impl fmt::Display for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether it is a valid prefix. It goes into the text of statements.
pub(crate) fn is_prefix(name: &str) -> bool {
    is_plain(name) && !name.to_ascii_lowercase().starts_with("sqlite_")
}

/// The same in lower case: unquoted, no server writes it otherwise.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn is_small(name: &str) -> bool {
    is_plain(name) && !name.bytes().any(|b| b.is_ascii_uppercase())
}

/// MySQL lets a name have 64 characters and PostgreSQL 63 bytes, ours behind the prefix among them.
fn is_plain(name: &str) -> bool {
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts_well && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && name.len() <= 40
}

/// Runs a `CREATE TABLE IF NOT EXISTS`. PostgreSQL does not keep two of them at once from one another: the
/// later one fails, with a code that depends on the moment, and finds the table the next time.
pub(super) async fn create<DB: Store>(conn: &mut DB::Connection, text: &str) -> Result<()> {
    let mut done = DB::ask(conn, text.to_owned()).await;
    if matches!(&done, Err(e) if Failure::of(e) == Failure::Constraint) {
        done = DB::ask(conn, text.to_owned()).await;
    }
    Ok(done.map(drop)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_may_have_a_schema_and_nothing_else() {
        for good in ["dlock_", "_a", "locks.dlock_", "A1"] {
            assert_eq!(Tables::new(good).unwrap().fence(), format!("{good}fence"));
        }
        let long = "a".repeat(41);
        let bad = "|.|a.|.a|a.b.c|1a|a b|a;|a-b|sqlite_|x.SQLITE_a|é";
        for bad in bad.split('|').chain([&*long]) {
            let e = Tables::new(bad).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{bad}");
        }
    }
}
