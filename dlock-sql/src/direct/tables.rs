//! Which tables of the database are dlock's.

use std::fmt;

use dlock_core::ErrorKind;

use super::failure::{Error, Result};

/// The names of dlock's tables: what they begin with, perhaps after the name of a schema.
///
/// Two prefixes are two sets of tables, so that several applications share one database. `dlock_` unless another is chosen, which is also what the
/// backends use: then the fence gate here remembers what theirs does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables(String);

/// MySQL lets a name have 64 characters and PostgreSQL 63 bytes, ours behind the prefix among them.
const LONGEST: usize = 40;

impl Tables {
    /// Tables whose names begin with that: `dlock_`, `shop_dlock_`, or `locks.dlock_` in a schema (MySQL: a database) that exists.
    ///
    /// # Errors
    /// `InvalidInput` if it, or the part before a dot, is not a letter or underscore and then letters, digits and underscores, at most 40 in each.
    pub fn new(prefix: &str) -> Result<Self> {
        let (schema, name) = match prefix.split_once('.') {
            Some((schema, name)) => (Some(schema), name),
            None => (None, prefix),
        };
        if schema.is_none_or(is_plain) && is_plain(name) && !name.to_ascii_lowercase().starts_with("sqlite_")
        {
            return Ok(Self(prefix.to_owned()));
        }
        Err(Error::new(
            ErrorKind::InvalidInput,
            "a table prefix is a letter or underscore, then letters, digits and underscores, 40 at most, and not `sqlite_`; \
             the name of a schema and a dot may stand before it",
        ))
    }

    pub(super) fn fence(&self) -> Table<'_> {
        Table(&self.0, "fence")
    }

    /// Where the versions of the others are.
    pub(super) fn direct(&self) -> Table<'_> {
        Table(&self.0, "direct")
    }

    pub(super) fn reentrant(&self) -> Table<'_> {
        Table(&self.0, "reentrant")
    }
}

impl Default for Tables {
    fn default() -> Self {
        Self("dlock_".to_owned())
    }
}

/// The prefix.
impl fmt::Display for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_plain(name: &str) -> bool {
    let mut bytes = name.bytes();
    let starts_well = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    starts_well && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_') && name.len() <= LONGEST
}

/// The name of a table, as it stands in a statement: checked, and so safe there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table<'a>(&'a str, &'static str);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_may_have_a_schema_and_nothing_else() {
        for good in ["dlock_", "_a", "locks.dlock_", "A1"] {
            assert_eq!(
                Tables::new(good).unwrap().fence().to_string(),
                format!("{good}fence")
            );
        }
        for bad in [
            "",
            ".",
            "a.",
            ".a",
            "a.b.c",
            "1a",
            "a b",
            "a;",
            "a-b",
            "sqlite_",
            "x.SQLITE_a",
            "é",
        ] {
            assert_eq!(
                Tables::new(bad).unwrap_err().kind(),
                ErrorKind::InvalidInput,
                "{bad}"
            );
        }
        Tables::new(&"a".repeat(41)).unwrap_err();
    }
}
