//! A statement with its values, in the two forms that it can be sent in.
//!
//! * *Prepared*, on a connection that leads to one session: parsed once per connection, one round trip from
//!   then on.
//! * *In full*, behind a pooler in transaction mode: to prepare and to run are two round trips of the driver,
//!   which may reach two sessions. So the values go into the text, and the text goes in one simple query,
//!   which is one transaction. Nothing of a value can be read as SQL: bytes and texts are written as
//!   hexadecimal digits, numbers as numbers.

use std::fmt::Write as _;
use std::sync::Arc;

use futures::TryStreamExt as _;
use sqlx::postgres::{PgArguments, PgConnection, PgRow, PgTypeInfo};
use sqlx::{Arguments as _, AssertSqlSafe, Executor as _, Postgres, Type};

use crate::lease::keys::hex;

/// A value of a statement.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    Bytes(&'a [u8]),
    Number(i32),
    Long(i64),
    Truth(bool),
    Text(Option<&'a str>),
    ManyBytes(Vec<Vec<u8>>),
    Longs(Vec<i64>),
    Truths(Vec<bool>),
}

/// A statement with its values, ready to be sent.
pub(in crate::lease) enum Statement {
    Prepared(Arc<str>, PgArguments),
    InFull(String),
}

/// What was answered to a statement.
#[derive(Default)]
pub(in crate::lease) struct Rows {
    pub(super) rows: Vec<PgRow>,
    /// How many rows it has changed, or answered.
    pub(super) count: u64,
}

impl Statement {
    pub(super) fn new(in_full: bool, text: &Arc<str>, values: &[Value<'_>]) -> Result<Self, sqlx::Error> {
        if in_full {
            return Ok(Self::InFull(written_in_full(text, values)));
        }
        let mut args = PgArguments::default();
        for value in values {
            value.bind(&mut args).map_err(sqlx::Error::Encode)?;
        }
        Ok(Self::Prepared(text.clone(), args))
    }

    /// Sends it and takes in all of the answer.
    pub(super) async fn run(self, conn: &mut PgConnection) -> Result<Rows, sqlx::Error> {
        let mut steps = match self {
            Self::Prepared(text, args) => {
                conn.fetch_many(sqlx::query_with::<Postgres, _>(AssertSqlSafe(text), args))
            }
            Self::InFull(full) => conn.fetch_many(sqlx::raw_sql(AssertSqlSafe(full))),
        };
        let mut rows = Rows::default();
        while let Some(step) = steps.try_next().await? {
            match step {
                sqlx::Either::Left(done) => rows.count += done.rows_affected(),
                sqlx::Either::Right(row) => rows.rows.push(row),
            }
        }
        Ok(rows)
    }
}

impl Value<'_> {
    /// What the server is told of it when a statement is prepared.
    pub(super) fn kind(&self) -> PgTypeInfo {
        fn of<T: Type<Postgres>>() -> PgTypeInfo {
            T::type_info()
        }
        match self {
            Self::Bytes(_) => of::<&[u8]>(),
            Self::Number(_) => of::<i32>(),
            Self::Long(_) => of::<i64>(),
            Self::Truth(_) => of::<bool>(),
            Self::Text(_) => of::<Option<&str>>(),
            Self::ManyBytes(_) => of::<Vec<Vec<u8>>>(),
            Self::Longs(_) => of::<Vec<i64>>(),
            Self::Truths(_) => of::<Vec<bool>>(),
        }
    }

    fn bind(&self, args: &mut PgArguments) -> Result<(), sqlx::error::BoxDynError> {
        match self {
            Self::Bytes(v) => args.add(*v),
            Self::Number(v) => args.add(*v),
            Self::Long(v) => args.add(*v),
            Self::Truth(v) => args.add(*v),
            Self::Text(v) => args.add(*v),
            Self::ManyBytes(v) => args.add(v.clone()),
            Self::Longs(v) => args.add(v.clone()),
            Self::Truths(v) => args.add(v.clone()),
        }
    }

    fn write(&self, to: &mut String) {
        match self {
            Self::Bytes(v) => bytes(to, v),
            Self::Number(v) => put(to, format_args!("({v})::integer")),
            Self::Long(v) => put(to, format_args!("({v})::bigint")),
            Self::Truth(v) => put(to, format_args!("{v}")),
            Self::Text(None) => to.push_str("NULL::text"),
            Self::Text(Some(v)) => {
                to.push_str("convert_from(");
                bytes(to, v.as_bytes());
                to.push_str(", 'UTF8')");
            }
            Self::ManyBytes(all) => list(to, all, "bytea", |to, v| bytes(to, v)),
            Self::Longs(all) => list(to, all, "bigint", |to, v| put(to, format_args!("{v}"))),
            Self::Truths(all) => list(to, all, "boolean", |to, v| put(to, format_args!("{v}"))),
        }
    }
}

fn put(to: &mut String, what: std::fmt::Arguments<'_>) {
    // A string takes everything.
    let _ = to.write_fmt(what);
}

fn bytes(to: &mut String, bytes: &[u8]) {
    to.push_str("decode('");
    to.push_str(&hex(bytes));
    to.push_str("', 'hex')");
}

fn list<T>(to: &mut String, all: &[T], of: &str, write: impl Fn(&mut String, &T)) {
    to.push_str("ARRAY[");
    for (n, one) in all.iter().enumerate() {
        if n > 0 {
            to.push(',');
        }
        write(to, one);
    }
    put(to, format_args!("]::{of}[]"));
}

/// The statement with its values in place of `$1`, `$2`, … No text of ours has a dollar sign but there.
fn written_in_full(text: &str, values: &[Value<'_>]) -> String {
    let mut parts = text.split('$');
    let mut full = String::with_capacity(text.len() * 2);
    full.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = part.split_at(digits);
        match number
            .parse::<usize>()
            .ok()
            .and_then(|n| values.get(n.checked_sub(1)?))
        {
            Some(value) => value.write(&mut full),
            // The server refuses it, by its place.
            None => put(&mut full, format_args!("${number}")),
        }
        full.push_str(rest);
    }
    full
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_be_read_as_sql() {
        let evil = "'); DROP TABLE x; -- $1";
        let values = [
            Value::Bytes(evil.as_bytes()),
            Value::Text(Some(evil)),
            Value::Long(-5),
            Value::Text(None),
            Value::ManyBytes(vec![evil.into(), vec![]]),
            Value::Truths(vec![true, false]),
        ];
        let full = written_in_full("SELECT f($1, $2, $3, $4, $5, $6) WHERE $3 > 0", &values);
        let digits = hex(evil.as_bytes());
        assert!(!full.contains("DROP") && !full.contains('$'), "{full}");
        assert_eq!(
            full,
            format!(
                "SELECT f(decode('{digits}', 'hex'), convert_from(decode('{digits}', 'hex'), 'UTF8'), \
                    (-5)::bigint, NULL::text, \
                 ARRAY[decode('{digits}', 'hex'),decode('', 'hex')]::bytea[], ARRAY[true,false]::boolean[]) \
                 WHERE (-5)::bigint > 0"
            )
        );
    }
}
