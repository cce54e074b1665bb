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

use dlock_core::Result;
use sqlx::Arguments as _;
use sqlx::error::BoxDynError;
use sqlx::postgres::PgArguments;

use crate::lease::call;
use crate::lease::failure::invalid;
use crate::lease::keys::hex;

pub(super) type Statement = call::Statement<sqlx::Postgres>;

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
pub(super) fn statement<'a>(
    in_full: bool,
    text: &Arc<str>,
    mut values: impl Iterator<Item = &'a Value<'a>>,
) -> Result<Statement> {
    if in_full {
        let values: Vec<_> = values.collect();
        return Ok(Statement::Text(written_in_full(text, &values)));
    }
    let mut args = PgArguments::default();
    let bound = values.try_for_each(|value| value.bind(&mut args));
    bound.map_err(|e| invalid(format!("a value cannot be stored: {e}")))?;
    Ok(Statement::Prepared(text.clone(), args))
}

impl Value<'_> {
    fn bind(&self, args: &mut PgArguments) -> Result<(), BoxDynError> {
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
fn written_in_full(text: &str, values: &[&Value<'_>]) -> String {
    let mut parts = text.split('$');
    let mut full = String::with_capacity(text.len() * 2);
    full.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = part.split_at(digits);
        let value = || values.get(number.parse::<usize>().ok()?.checked_sub(1)?);
        match value() {
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
        let full = written_in_full(
            "SELECT f($1, $2, $3, $4, $5, $6) WHERE $3 > 0",
            &values.each_ref(),
        );
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
