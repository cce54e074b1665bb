//! A statement with its values, in the two forms in which it can be sent.
//!
//! * *Prepared*, on a connection that leads to one session: parsed once per connection, one round trip from
//!   then on.
//! * *In full*, behind a pooler in transaction mode: to prepare and to run are two round trips of the driver,
//!   which may reach two sessions. So the values go into the text, and the text goes in one simple query,
//!   which is one transaction. Nothing of a value can be read as SQL: bytes and texts are written as
//!   hexadecimal digits, numbers as numbers.

use std::sync::Arc;

use dlock_core::Result;
use sqlx::Arguments as _;
use sqlx::error::BoxDynError;
use sqlx::postgres::PgArguments;

use super::Statement;
use crate::direct::Dialect as _;
use crate::lease::failure::invalid;

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
    Texts(Vec<Option<String>>),
}

/// A statement with its values, ready to be sent.
pub(super) fn statement<'a>(
    in_full: bool,
    text: &Arc<str>,
    mut values: impl Iterator<Item = &'a Value<'a>>,
) -> Result<Statement> {
    if in_full {
        let literals: Vec<_> = values.map(Value::literal).collect();
        return Ok(Statement::Text(written_in_full(text, &literals)));
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
            Self::Texts(v) => args.add(v.clone()),
        }
    }

    fn literal(&self) -> String {
        match self {
            Self::Bytes(v) => sqlx::Postgres::bytes(v),
            Self::Number(v) => format!("({v})::integer"),
            Self::Long(v) => format!("({v})::bigint"),
            Self::Truth(v) => v.to_string(),
            Self::Text(v) => text(*v),
            Self::ManyBytes(all) => list("bytea", all.iter().map(|v| sqlx::Postgres::bytes(v))),
            Self::Longs(all) => list("bigint", all.iter().map(i64::to_string)),
            Self::Truths(all) => list("boolean", all.iter().map(bool::to_string)),
            Self::Texts(all) => list("text", all.iter().map(|v| text(v.as_deref()))),
        }
    }
}

fn text(text: Option<&str>) -> String {
    text.map_or_else(|| "NULL::text".to_owned(), sqlx::Postgres::text)
}

fn list(of: &str, literals: impl Iterator<Item = String>) -> String {
    format!("ARRAY[{}]::{of}[]", literals.collect::<Vec<_>>().join(","))
}

/// The statement with its values in place of `$1`, `$2`, … No text of ours has a dollar sign but there.
fn written_in_full(text: &str, literals: &[String]) -> String {
    let mut parts = text.split('$');
    let mut full = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = part.split_at(digits);
        let literal = || literals.get(number.parse::<usize>().ok()?.checked_sub(1)?);
        // What is not there the server refuses.
        full.push_str(literal().map_or("$", String::as_str));
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
            Value::Texts(vec![Some(evil.to_owned()), None]),
        ];
        let full = written_in_full(
            "SELECT f($1, $2, $3, $4, $5, $6, $7) WHERE $3 > 0",
            &values.map(|v| v.literal()),
        );
        let digits: String = evil.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert!(!full.contains("DROP") && !full.contains('$'), "{full}");
        assert_eq!(
            full,
            format!(
                "SELECT f(decode('{digits}', 'hex'), convert_from(decode('{digits}', 'hex'), 'UTF8'), \
                    (-5)::bigint, NULL::text, \
                 ARRAY[decode('{digits}', 'hex'),decode('', 'hex')]::bytea[], ARRAY[true,false]::boolean[], \
                 ARRAY[convert_from(decode('{digits}', 'hex'), 'UTF8'),NULL::text]::text[]) \
                 WHERE (-5)::bigint > 0"
            )
        );
    }
}
