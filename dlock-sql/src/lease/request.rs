//! What is checked of a request before anything is sent: the same for every server.

use std::time::Duration;

use dlock_core::spi::Acquire;
use dlock_core::{Capabilities, Capability, Error, ErrorKind, LockName, Mode, Result, Strength, Token};

/// The integers of SQL are signed.
pub(in crate::lease) const LAST_TOKEN: u64 = i64::MAX as u64;

/// What a lease in a database server can do: all there is.
///
/// Tokens are never less than the server's clock, so they go on growing where a backup was put back or a
/// standby lost the last commits, as far as that clock does not stand behind.
pub(in crate::lease) fn capabilities(backend: &'static str) -> Capabilities {
    use Capability::{MinimumHold, PerGrantTtl, Permits, Priority, Queue, Raise, Shared, Upgrade};
    let mut capabilities = Capabilities::new(backend)
        .with_all([
            Shared,
            Permits,
            Queue,
            Priority,
            PerGrantTtl,
            Raise,
            Upgrade,
            MinimumHold,
        ])
        .with_owner_label(1024);
    // Leases end by the wall clock of the server: no database has another one.
    capabilities.clock_sensitive = true;
    capabilities
}

/// Tokens are never less than the server's clock, so they go on growing where a backup was put back or a
/// standby lost the last commits, as far as that clock does not stand behind.
pub(in crate::lease) const STRENGTH: Strength = Strength::AcrossDataLoss {
    clock_skew: Duration::ZERO,
};

pub(in crate::lease) fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

pub(in crate::lease) fn check_name(c: &Capabilities, name: &LockName) -> Result<()> {
    let (len, max) = (name.as_bytes().len(), c.max_name_len);
    match len > max {
        true => Err(invalid(format!(
            "the name has {len} bytes, {} takes at most {max}",
            c.backend
        ))),
        false => Ok(()),
    }
}

pub(in crate::lease) fn check_ttl(c: &Capabilities, ttl: Duration) -> Result<()> {
    let (min, max) = (c.min_ttl, c.max_ttl);
    match ttl < min || ttl > max {
        true => Err(invalid(format!(
            "a ttl of {ttl:?} is not between {min:?} and {max:?}"
        ))),
        false => Ok(()),
    }
}

pub(in crate::lease) fn check_request(c: &Capabilities, request: &Acquire) -> Result<()> {
    check_name(c, &request.key.name)?;
    check_ttl(c, request.ttl)?;
    if !(1..=10).contains(&request.priority) {
        return Err(invalid(format!(
            "the priority {} is not between 1 and 10",
            request.priority
        )));
    }
    let max = c.max_owner_len;
    if request.owner.as_ref().is_some_and(|o| o.len() > max) {
        return Err(invalid(format!("the owner label is longer than {max} bytes")));
    }
    // A text of PostgreSQL cannot hold it, and what one server refuses the others do not take either.
    if request.owner.as_ref().is_some_and(|o| o.contains('\0')) {
        return Err(invalid("the owner label contains a zero byte".to_owned()));
    }
    Ok(())
}

pub(in crate::lease) fn check_token(token: Token) -> Result<()> {
    match token.get() > LAST_TOKEN {
        true => Err(invalid(format!("SQL databases keep tokens up to {LAST_TOKEN}"))),
        false => Ok(()),
    }
}

/// A prefix goes into the text of statements, so it is an identifier in lower case: unquoted, no server
/// writes it otherwise. What is added to it is short enough for every limit of an identifier.
pub(in crate::lease) fn check_prefix(prefix: &str) -> Result<()> {
    let mut bytes = prefix.bytes();
    let starts_well = bytes.next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    let goes_on_well = bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if starts_well && goes_on_well && prefix.len() <= 40 && !prefix.starts_with("pg_") {
        return Ok(());
    }
    Err(invalid(
        "a table prefix is a small letter or underscore, then small letters, digits and underscores, 40 at \
            most, and does not begin with `pg_`"
            .to_owned(),
    ))
}

/// A mode as it is stored: -1 exclusive, 0 a reader, n one of n permits.
pub(in crate::lease) fn share(mode: Mode) -> Result<i32> {
    match mode {
        Mode::Exclusive => Ok(-1),
        Mode::Shared { limit } => limit.map_or(Ok(0), |n| {
            i32::try_from(n.get())
                .map_err(|_| invalid(format!("SQL databases count permits up to {}", i32::MAX)))
        }),
        _ => Err(Error::new(
            ErrorKind::Unsupported,
            "this mode is not known to the SQL backends",
        )),
    }
}

/// The error for readers where there are permits, or the other way around.
#[cfg(feature = "postgres")]
pub(in crate::lease) fn mismatch(class: i64, asked: Mode) -> Error {
    let show = |n: i64| match n {
        0 => "readers".to_owned(),
        n => format!("{n} permits"),
    };
    invalid(format!(
        "the lock is in use with {}, not with {}; all users of a name must agree",
        show(class),
        share(asked).map_or_else(|_| asked.to_string(), |n| show(i64::from(n))),
    ))
}

/// As the statements take it: whole microseconds, rounded up to the granularity of a ttl, which is a
/// millisecond.
pub(in crate::lease) fn micros(d: Duration) -> i64 {
    let millis = i64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX);
    millis.saturating_mul(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_that_is_not_an_identifier_in_small_letters_is_refused() {
        for good in ["dlock_", "_", "a1"] {
            check_prefix(good).unwrap();
        }
        for bad in [
            "",
            "1a",
            "A",
            "a b",
            "a;drop",
            "a\"",
            "a`",
            "pg_x",
            "é",
            &"a".repeat(41),
        ] {
            assert_eq!(
                check_prefix(bad).unwrap_err().kind(),
                ErrorKind::InvalidInput,
                "{bad:?}"
            );
        }
    }

    #[test]
    fn a_time_is_rounded_up_to_milliseconds() {
        assert_eq!(micros(Duration::from_nanos(1)), 1_000);
        assert_eq!(micros(Duration::from_millis(30)), 30_000);
        assert_eq!(micros(Duration::ZERO), 0);
        assert!(micros(Duration::MAX) > 0);
    }
}
