//! The URL of a store, taken apart. No message made here repeats any part of the URL: a mistyped one can have a
//! password anywhere.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result};
use percent_encoding::percent_decode_str;

/// `scheme:[//]place[?key=value&...]`
pub(crate) struct Address {
    pub(crate) scheme: String,
    /// Between the scheme and the query, percent-decoded.
    pub(crate) place: String,
    /// Whether the place begins like `user:password@host:port`, that is, has an `@` or a `:` before its first slash.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code))] // asked by the stores that are files
    pub(crate) names_a_host: bool,
    /// All before the query, as it was given.
    #[cfg_attr(
        not(any(
            feature = "redis",
            feature = "zookeeper",
            feature = "postgres",
            feature = "mysql"
        )),
        allow(dead_code)
    )]
    // asked by the stores that are servers
    pub(crate) without_query: String,
    /// In the order of the URL; `None` once taken.
    query: Vec<Option<(String, String)>>,
    /// What was asked for, for the message about what was not.
    known: Vec<&'static str>,
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(invalid(
                "a store's URL begins with its scheme, as in `sqlite://locks.db` or `memory://`",
            ));
        };
        if rest.contains('#') {
            return Err(invalid(
                "a store's URL has no fragment: write a `#` that belongs to it as `%23`",
            ));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let without_query = format!("{scheme}:{place}");
        let place = place.strip_prefix("//").unwrap_or(place);
        let mut pairs = Vec::new();
        for (n, pair) in query.split('&').filter(|pair| !pair.is_empty()).enumerate() {
            let n = n + 1;
            let Some((key, value)) = pair.split_once('=') else {
                return Err(invalid(format!(
                    "part {n} of the URL's query is not of the form `key=value`"
                )));
            };
            pairs.push(Some((decode(key)?, decode(value)?)));
        }
        let first = place.split('/').next().unwrap_or_default();
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            names_a_host: first.contains(['@', ':']),
            place: decode(place)?,
            without_query,
            query: pairs,
            known: Vec::new(),
        })
    }

    /// The value of that key, if given. A key that is given twice is refused: whichever were ignored, somebody meant it.
    pub(crate) fn take<T: Value>(&mut self, key: &'static str) -> Result<Option<T>> {
        self.known.push(key);
        let mut found = None;
        for slot in &mut self.query {
            if slot.as_ref().is_some_and(|(k, _)| k == key) {
                let value = slot.take().map(|(_, value)| value);
                if found.is_some() {
                    return Err(invalid(format!("the URL gives `{key}` twice")));
                }
                found = value;
            }
        }
        let Some(text) = found else { return Ok(None) };
        match T::parse(&text) {
            Some(value) => Ok(Some(value)),
            None => Err(invalid(format!("the URL's `{key}` must be {}", T::EXPECTED))),
        }
    }

    /// Refuses what nobody asked for: an option that is ignored silently is a lock that does not do what was meant.
    pub(crate) fn finish(mut self) -> Result<()> {
        let Some(n) = self.query.iter().position(Option::is_some) else {
            return Ok(());
        };
        self.known.sort_unstable();
        let (scheme, known) = (&self.scheme, self.known.join(", "));
        Err(invalid(format!(
            "key {} of the URL's query is not known; `{scheme}` URLs take: {known}",
            n + 1
        )))
    }
}

/// Shows the scheme alone.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("scheme", &self.scheme)
            .finish_non_exhaustive()
    }
}

/// What a query value can be read as.
pub(crate) trait Value: Sized {
    /// Completes "must be ...".
    const EXPECTED: &'static str;
    fn parse(text: &str) -> Option<Self>;
}

impl Value for String {
    const EXPECTED: &'static str = "some text, not empty";
    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| text.to_owned())
    }
}

impl Value for bool {
    const EXPECTED: &'static str = "`true` or `false`";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Value for u32 {
    const EXPECTED: &'static str = "a whole number above zero";
    fn parse(text: &str) -> Option<Self> {
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        text.parse().ok().filter(|n| digits && *n > 0)
    }
}

impl Value for Duration {
    const EXPECTED: &'static str =
        "a whole number with a unit, as in `500ms`, `30s`, `5m` or `1h`, and above zero";
    fn parse(text: &str) -> Option<Self> {
        let digits = text.find(|c: char| !c.is_ascii_digit())?;
        let (number, unit) = text.split_at(digits);
        let number = u64::from_str(number).ok().filter(|n| *n > 0)?;
        match unit {
            "ms" => Some(Self::from_millis(number)),
            "s" => Some(Self::from_secs(number)),
            "m" => number.checked_mul(60).map(Self::from_secs),
            "h" => number.checked_mul(3600).map(Self::from_secs),
            _ => None,
        }
    }
}

fn decode(text: &str) -> Result<String> {
    let broken = |at: &str| {
        !at.get(1..3)
            .is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    if text.match_indices('%').any(|(n, _)| broken(&text[n..])) {
        return Err(invalid(
            "a `%` in the URL is not followed by two hexadecimal digits: write the sign itself as `%25`",
        ));
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded
        .map(Cow::into_owned)
        .map_err(|_| invalid("the URL, percent-decoded, is not UTF-8"))
}

pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_forms_are_read() {
        for (url, scheme, place) in [
            ("memory://", "memory", ""),
            ("sqlite::memory:", "sqlite", ":memory:"),
            ("sqlite:locks.db", "sqlite", "locks.db"),
            ("sqlite://locks.db?ttl=1s", "sqlite", "locks.db"),
            (
                "sqlite:///var/lib/my%20locks.db",
                "sqlite",
                "/var/lib/my locks.db",
            ),
            ("SQLite://a+b", "sqlite", "a+b"),
        ] {
            let address = Address::parse(url).unwrap();
            assert_eq!((&*address.scheme, &*address.place), (scheme, place), "{url}");
        }
    }

    #[test]
    fn values_are_decoded_and_typed() {
        let mut a = Address::parse("x://?namespace=a%26b%2Fc&ttl=90s&op_timeout=1500ms").unwrap();
        assert_eq!(a.take::<String>("namespace").unwrap().unwrap(), "a&b/c");
        assert_eq!(
            a.take::<Duration>("ttl").unwrap().unwrap(),
            Duration::from_secs(90)
        );
        assert_eq!(
            a.take::<Duration>("op_timeout").unwrap().unwrap(),
            Duration::from_millis(1500)
        );
        assert!(a.take::<Duration>("absent").unwrap().is_none());
        a.finish().unwrap();
    }

    #[test]
    fn durations_without_a_unit_or_a_meaning_are_refused() {
        for text in [
            "",
            "5",
            "s",
            "0s",
            "-1s",
            "1.5s",
            "1 s",
            "1d",
            "18446744073709551615h",
            "99999999999999999999s",
            "1s1s",
        ] {
            assert!(Duration::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn numbers_are_whole_and_above_zero() {
        assert_eq!(u32::parse("12"), Some(12));
        for text in ["", "0", "-1", "+1", "1.5", "x", "4294967296"] {
            assert!(u32::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn every_refusal_is_invalid_input_and_repeats_nothing_of_the_url() {
        let secret = "hunter2";
        let refused = |url: String| {
            let outcome = Address::parse(&url).and_then(|mut a| {
                a.take::<Duration>("ttl")?;
                a.take::<String>("namespace")?;
                a.finish()
            });
            let e = outcome.expect_err(&url);
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{url}");
            assert!(!format!("{e} {e:?}").contains(secret), "{e:?}");
            e.to_string()
        };
        refused(secret.into());
        refused(format!("x://u:{secret}@h#f"));
        refused(format!("x://{secret}%zz"));
        refused(format!("x://{secret}%2"));
        refused(format!("x://{secret}%ff"));
        refused(format!("x://{secret}%\u{e9}\u{e9}"));
        refused(format!("x://h?{secret}"));
        refused(format!("x://h?namespace=&ttl={secret}"));
        assert!(refused(format!("x://h?ttl={secret}")).contains("500ms"));
        assert!(
            refused(format!("x://h?namespace={secret}&namespace={secret}")).contains("`namespace` twice")
        );
        let unknown = refused(format!("x://h?ttl=1s&{secret}=1"));
        assert!(
            unknown.contains("key 2") && unknown.contains("namespace, ttl"),
            "{unknown}"
        );
    }

    #[test]
    fn debug_shows_the_scheme_alone() {
        let shown = format!("{:?}", Address::parse("x://u:hunter2@h?k=hunter2").unwrap());
        assert!(shown.contains('x') && !shown.contains("hunter2"), "{shown}");
    }
}
