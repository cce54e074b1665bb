use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::error::{Error, ErrorKind, Result};

/// The URL of a store, `scheme:[//]place[?key=value&...]`, parsed once for all backends.
///
/// A backend takes the keys that it knows and then calls [`finish`](Self::finish), which refuses the rest: a
/// lock with an option that is silently ignored does not do what was meant.
///
/// No message and no `Debug` output shows a value, a user, a host or a path, since a mistyped URL may have a
/// password anywhere.
///
/// ```
/// # use dlock_core as dlock;
/// # use std::time::Duration;
/// # fn main() -> dlock::Result<()> {
/// let mut url = dlock::spi::Url::parse("acme://bob:secret@a,b:7000/shop?window=500ms")?;
/// let window = url.take::<Duration>("window")?.unwrap_or(Duration::from_secs(1));
/// let servers = url.servers(4242)?;
/// url.finish()?;
/// assert_eq!(servers.hosts[1].to_string(), "b:7000");
/// # assert_eq!((window.as_millis(), servers.hosts[0].port, &*servers.path), (500, 4242, "shop"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Url {
    scheme: String,
    /// Between the scheme and the query, without the `//` that it may begin with, as it was given.
    place: String,
    /// Whether it began with `//`.
    slashes: bool,
    /// In the order of the URL; `None` once taken.
    query: Vec<Option<(String, String)>>,
    /// The keys that were taken, for the message about unknown ones.
    known: Vec<&'static str>,
    /// The query has an `@`, so it may contain a part of a password that was not encoded.
    doubtful: bool,
}

/// The servers in a URL, and the user to connect as.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Servers {
    /// The text before the `:`; `None` if empty.
    pub user: Option<String>,
    /// The text after the `:`.
    pub password: Option<String>,
    /// The hosts in the order of the URL. At least one.
    pub hosts: Vec<Host>,
    /// The text after the first `/` behind the hosts, percent-decoded. May be empty.
    pub path: String,
}

/// The address of a server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Host {
    /// A host name or an IP address; IPv6 without brackets.
    pub name: String,
    /// The given port, or the default.
    pub port: u16,
}

impl Host {
    /// Creates the address of `port` on `name`.
    pub fn new(name: impl Into<String>, port: u16) -> Self {
        Self {
            name: name.into(),
            port,
        }
    }
}

/// `name:port`, with brackets around an IPv6 address.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

/// Shows the hosts alone.
impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Servers")
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// Keys of the [`Client`](crate::Client), which no backend takes.
const OF_THE_CLIENT: [&str; 3] = ["namespace", "ttl", "op_timeout"];

impl Url {
    /// Parses a URL.
    ///
    /// # Errors
    /// `InvalidInput` if it has no scheme, has a fragment, or has a query that is not made of `key=value`.
    pub fn parse(text: &str) -> Result<Self> {
        let scheme_ends = text.split_once(':');
        let (scheme, rest) = scheme_ends.ok_or_else(|| {
            invalid("the URL of a store must start with a scheme, as in `sqlite://locks.db` or `memory://`")
        })?;
        if rest.contains('#') {
            return Err(invalid(
                "the URL of a store must have no fragment: encode a `#` as `%23`",
            ));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut pairs = Vec::new();
        for (n, pair) in query.split('&').filter(|pair| !pair.is_empty()).enumerate() {
            let (key, value) = pair.split_once('=').ok_or_else(|| {
                invalid(format!(
                    "part {} of the URL's query must have the form `key=value`",
                    n + 1
                ))
            })?;
            pairs.push(Some((decode(key)?, decode(value)?)));
        }
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            place: place.strip_prefix("//").unwrap_or(place).to_owned(),
            slashes: place.starts_with("//"),
            query: pairs,
            known: Vec::new(),
            doubtful: query.contains('@'),
        })
    }

    /// Returns the text before the first `:`, in lower case.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Returns everything between the scheme and the query, percent-decoded. For stores that are files.
    ///
    /// # Errors
    /// `InvalidInput` if it is not percent-encoded UTF-8.
    pub fn file(&self) -> Result<String> {
        decode(&self.place)
    }

    /// Returns whether there is an `@` or a `:` before the first `/`, as in `user:password@host:port`.
    pub fn names_a_host(&self) -> bool {
        let first = self.place.split('/').next().unwrap_or_default();
        first.contains(['@', ':'])
    }

    /// Returns the place as it was given, for drivers that parse it themselves.
    pub fn raw_place(&self) -> &str {
        &self.place
    }

    /// Checks that `//` follows the scheme, for stores that are servers.
    ///
    /// # Errors
    /// `InvalidInput`, with what a URL looks like.
    pub fn check_slashes(&self) -> Result<()> {
        let scheme = &self.scheme;
        let refused = || {
            invalid(format!(
                "a `{scheme}` URL has `//` behind its scheme, as in `{scheme}://host:port`"
            ))
        };
        self.slashes.then_some(()).ok_or_else(refused)
    }

    /// Parses the place as `[user][:password]@host[:port],.../path`.
    ///
    /// # Errors
    /// `InvalidInput` if the `//` or a host is missing, or a host is malformed.
    pub fn servers(&self, default_port: u16) -> Result<Servers> {
        self.check_slashes()?;
        // The last `@`: one in a password is often not encoded, and none can follow it.
        let (login, place) = match self.place.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, &*self.place),
        };
        let (user, password) = match login.map(|login| login.split_once(':').ok_or(login)) {
            None => (None, None),
            Some(Err(user)) => (Some(decode(user)?), None),
            Some(Ok((user, password))) => (Some(decode(user)?), Some(decode(password)?)),
        };
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        Ok(Servers {
            user: user.filter(|user| !user.is_empty()),
            password,
            hosts: hosts
                .split(',')
                .map(|text| host(text, default_port))
                .collect::<Result<_>>()?,
            path: decode(path)?,
        })
    }

    /// Takes the value of `key`, if it is given.
    ///
    /// # Errors
    /// `InvalidInput` if the value is no `T`, or if the key is given twice.
    pub fn take<T: UrlValue>(&mut self, key: &'static str) -> Result<Option<T>> {
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
        let value = T::parse(&text);
        let refused = || invalid(format!("the URL's `{key}` must be {}", T::EXPECTED));
        value.map(Some).ok_or_else(refused)
    }

    /// Takes all wanted keys, with their values. For drivers whose keys contain names.
    pub fn take_all(&mut self, wanted: impl Fn(&str) -> bool) -> Vec<(String, String)> {
        let wanted = |slot: &&mut Option<(String, _)>| slot.as_ref().is_some_and(|(key, _)| wanted(key));
        self.query
            .iter_mut()
            .filter(wanted)
            .filter_map(Option::take)
            .collect()
    }

    /// Takes the value of `key` as a path, and reads the file there.
    ///
    /// # Errors
    /// As [`take`](Self::take); `InvalidInput` if the file cannot be read.
    pub fn take_file(&mut self, key: &'static str) -> Result<Option<(PathBuf, Vec<u8>)>> {
        let Some(path) = self.take::<String>(key)? else {
            return Ok(None);
        };
        let refused =
            |e| invalid(format!("cannot read the file that the URL's `{key}` names")).with_source(e);
        let contents = std::fs::read(&path).map_err(refused)?;
        Ok(Some((path.into(), contents)))
    }

    /// Pairs two values that belong together, such as a certificate and its key.
    ///
    /// # Errors
    /// `InvalidInput` if only one is given.
    pub fn both<T>(one: (&str, Option<T>), other: (&str, Option<T>)) -> Result<Option<(T, T)>> {
        match (one, other) {
            ((_, Some(one)), (_, Some(other))) => Ok(Some((one, other))),
            ((_, None), (_, None)) => Ok(None),
            ((one, _), (other, _)) => Err(invalid(format!(
                "the URL must give both of `{one}` and `{other}`, or neither"
            ))),
        }
    }

    /// Refuses keys that were not taken.
    ///
    /// # Errors
    /// `InvalidInput`, which names the key, the most similar known key, and all known keys.
    pub fn finish(mut self) -> Result<()> {
        let Some(n) = self.query.iter().position(Option::is_some) else {
            return Ok(());
        };
        let key = self.query[n].take().map(|(key, _)| key).unwrap_or_default();
        // Text that does not look like a key may be the rest of a password.
        let plain = |b| u8::is_ascii_alphanumeric(&b) || b"-_.".contains(&b);
        let named = match key.len() <= 40 && key.bytes().all(plain) && !self.doubtful {
            true => format!("the key `{key}`"),
            false => format!("key {}", n + 1),
        };
        self.known.sort_unstable();
        self.known.dedup();
        let far = |known: &&&str| strsim::damerau_levenshtein(&key, known);
        let near = self.known.iter().min_by_key(far);
        let hint = match near.filter(|known| far(known) <= known.len().div_ceil(3)) {
            _ if OF_THE_CLIENT.contains(&&*key) => {
                " here: it is one of the client, for `dlock::connect`".to_owned()
            }
            Some(known) if named.contains('`') => format!(" (did you mean `{known}`?)"),
            _ => String::new(),
        };
        let (scheme, known) = (&self.scheme, self.known.join(", "));
        Err(invalid(format!(
            "{named} of the URL's query is not known{hint}; `{scheme}` URLs take: {known}"
        )))
    }
}

/// Shows the scheme alone.
impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Url")
            .field("scheme", &self.scheme)
            .finish_non_exhaustive()
    }
}

/// A type that a value in the query can be parsed as.
pub trait UrlValue: Sized {
    /// What the value must be: completes "must be ...".
    const EXPECTED: &'static str;

    /// Reads it, percent-decoded.
    fn parse(text: &str) -> Option<Self>;
}

impl UrlValue for String {
    const EXPECTED: &'static str = "some text, not empty";

    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| text.to_owned())
    }
}

impl UrlValue for bool {
    const EXPECTED: &'static str = "`true` or `false`";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl UrlValue for u32 {
    const EXPECTED: &'static str = "a whole number above zero";

    fn parse(text: &str) -> Option<Self> {
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        text.parse().ok().filter(|n| digits && *n > 0)
    }
}

impl UrlValue for Duration {
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

fn host(text: &str, default_port: u16) -> Result<Host> {
    let bad = || invalid("a host in the URL must have the form `host`, `host:port` or `[::1]:port`");
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']').ok_or_else(bad)? {
            (name, "") => (name, None),
            (name, port) => (name, Some(port.strip_prefix(':').ok_or_else(bad)?)),
        },
        None => match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        },
    };
    // A `%` starts an IPv6 zone.
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    let port = port
        .map_or(Some(default_port), |port| port.parse().ok())
        .filter(|port| *port > 0);
    match port {
        Some(port) if !name.is_empty() && name.chars().all(fits) => Ok(Host::new(name, port)),
        _ => Err(bad()),
    }
}

fn decode(text: &str) -> Result<String> {
    let broken = |at: &str| {
        let digits = at.get(1..3);
        !digits.is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    if text.match_indices('%').any(|(n, _)| broken(&text[n..])) {
        return Err(invalid(
            "a `%` in the URL must be followed by two hexadecimal digits: encode the sign itself as `%25`",
        ));
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded
        .map(Cow::into_owned)
        .map_err(|_| invalid("the URL must be UTF-8 after percent-decoding"))
}

fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}
