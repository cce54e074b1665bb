//! Where the servers are, taken apart. No message made here repeats any part of it: a mistyped one can have a password anywhere.

use std::fmt;

use dlock_core::{Error, ErrorKind, Result};
use percent_encoding::percent_decode_str;

const PORT: u16 = 2181;

/// What a host is made of: names, IPv4, and IPv6 in brackets.
fn is_host(text: &str) -> bool {
    let inner = match text.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').unwrap_or(""),
        None if text.contains(':') => "",
        None => text,
    };
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    !inner.is_empty() && inner.chars().all(fits)
}

/// How often the driver asks for a connection, at least, before it makes its pauses twice as long.
const LOOKS: usize = 16;

/// The servers of one ensemble, and below what in it everything is.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// Each with its port.
    pub(crate) hosts: Vec<(String, u16)>,
    /// Empty, or `/` and a path without one at its end.
    pub(crate) chroot: String,
    pub(crate) login: Option<(String, String)>,
    pub(crate) tls: bool,
}

impl Address {
    /// `[zk://|zks://][user:password@]host[:port],.../chroot`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let (tls, rest) = match text.split_once("://") {
            None => (false, text),
            Some((scheme, rest)) => match scheme.to_ascii_lowercase().as_str() {
                "zk" | "zookeeper" => (false, rest),
                "zks" => (true, rest),
                _ => {
                    return Err(invalid(
                        "the scheme of the URL is not known; known are: zk, zookeeper, zks",
                    ));
                }
            },
        };
        if tls && !cfg!(feature = "tls") {
            let message = "this build of dlock-zk has not its feature `tls`, which the URL asks for";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if rest.contains(['?', '#']) {
            return Err(invalid(
                "the URL of ZooKeeper has no query and no fragment here: a `?` or `#` that belongs to it is written `%3F` or `%23`",
            ));
        }
        // The last one: an `@` in a password is mostly not encoded, and cannot be in what follows.
        let (who, place) = match rest.rsplit_once('@') {
            Some((who, place)) => (Some(who), place),
            None => (None, rest),
        };
        let login = who.map(credentials).transpose()?;
        let (hosts, path) = match place.find('/') {
            Some(at) => place.split_at(at),
            None => (place, ""),
        };
        let hosts = hosts.split(',').map(host).collect::<Result<Vec<_>>>()?;
        #[cfg(feature = "tls")]
        if tls && !hosts.iter().all(|(host, _)| is_in_certificates(host)) {
            return Err(invalid(
                "with TLS a server is named as its certificate does: a name in ASCII, or an IP address without a zone",
            ));
        }
        let chroot = decode(path.trim_end_matches('/'))?;
        check_path(&chroot, "behind the hosts comes a path below which everything is")?;
        Ok(Self {
            hosts,
            chroot,
            login,
            tls,
        })
    }

    /// As the driver takes it: without the path, which is in front of every path of ours already. The driver would put it there once more.
    ///
    /// Each server is named several times. When a connection broke, the driver goes through what is named, first without a pause. Then it pauses for a tenth of a second for each
    /// that is named, a second at most, and goes through them again, with a pause between two that grows by 50 ms from one to the next; then it pauses for twice as long, and so on. With the three servers of
    /// an ensemble it came at 0, 0.4, 0.5 and 0.6 s, at 1.2 to 1.4 s, and not again before 2.6 s: a fault of 1.6 s took all locks of a session of 4 seconds, of which 2.7 are
    /// believed in (rule 5.11). With eighteen it comes at 0, and from 1 to 9 s with 0.1 s between two at first and 0.9 s at last: that is all of what is believed of a session of 12 s.
    /// The price: what ends within the first second is seen after that second.
    pub(crate) fn servers(&self) -> String {
        let scheme = if self.tls { "tcp+tls://" } else { "tcp://" };
        let times = LOOKS.div_ceil(self.hosts.len());
        let hosts = std::iter::repeat_n(&self.hosts, times).flatten();
        let all: Vec<_> = hosts
            .map(|(host, port)| format!("{scheme}{host}:{port}"))
            .collect();
        all.join(",")
    }
}

/// Without user and password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (host, port)) in self.hosts.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{host}:{port}")?;
        }
        f.write_str(&self.chroot)
    }
}

fn host(text: &str) -> Result<(String, u16)> {
    let wrong = || {
        invalid(
            "a server is `host` or `host:port`, several are set apart by commas; an IPv6 address stands in brackets",
        )
    };
    let (host, port) = match text.rsplit_once(':') {
        // The colon may be one of an address in brackets.
        Some((host, port)) if !port.ends_with(']') => {
            (host, port.parse().ok().filter(|p| *p > 0).ok_or_else(wrong)?)
        }
        _ => (text, PORT),
    };
    match is_host(host) {
        true => Ok((host.to_owned(), port)),
        false => Err(wrong()),
    }
}

/// Whether a certificate can name that host. The driver panics where it cannot.
#[cfg(feature = "tls")]
fn is_in_certificates(host: &str) -> bool {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    rustls::pki_types::ServerName::try_from(name).is_ok()
}

fn credentials(text: &str) -> Result<(String, String)> {
    let (user, password) = text
        .split_once(':')
        .ok_or_else(|| invalid("before the `@` come a user and a password, with a `:` between them"))?;
    let (user, password) = (decode(user)?, decode(password)?);
    if user.is_empty() || user.contains(':') {
        return Err(invalid(
            "the user of a ZooKeeper URL has a name, without a `:` in it",
        ));
    }
    Ok((user, password))
}

fn decode(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded
        .map(|s| s.into_owned())
        .map_err(|_| invalid("the URL is not UTF-8 where it is percent-encoded"))
}

/// Whether that is a path as ZooKeeper has them: absolute, or empty, and nothing in it that a server refuses or that a terminal would act on.
pub(crate) fn check_path(path: &str, what: &'static str) -> Result<()> {
    let fits = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.chars().any(is_refused);
    let is_path = match path.strip_prefix('/') {
        None => path.is_empty(),
        Some(rest) => rest.split('/').all(fits),
    };
    match is_path && path.split('/').nth(1) != Some("zookeeper") && path.len() <= 512 {
        true => Ok(()),
        false => Err(invalid(format!(
            "{what}: `/` and names set apart by `/`, none of them empty, `.` or `..`, without control characters, \
             512 bytes at most, and not below `/zookeeper`"
        ))),
    }
}

/// What ZooKeeper takes in no path.
fn is_refused(c: char) -> bool {
    c.is_control() || ('\u{e000}'..='\u{f8ff}').contains(&c) || ('\u{fff0}'..='\u{ffff}').contains(&c)
}

pub(crate) fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ensemble_with_a_chroot_is_read() {
        let a = Address::parse("zk://user:p%40ss@a,b:7,[::1]:9/app/locks/").unwrap();
        assert_eq!(a.to_string(), "a:2181,b:7,[::1]:9/app/locks");
        let each = "tcp://a:2181,tcp://b:7,tcp://[::1]:9";
        assert_eq!(a.servers(), [each; 6].join(","));
        assert_eq!(a.chroot, "/app/locks");
        assert_eq!(a.login, Some(("user".into(), "p@ss".into())));
    }

    #[test]
    fn what_the_driver_knows_is_read_without_a_scheme() {
        let a = Address::parse("127.0.0.1:17101").unwrap();
        assert_eq!(
            (a.to_string().as_str(), a.login, a.tls),
            ("127.0.0.1:17101", None, false)
        );
    }

    #[test]
    fn what_is_wrong_is_refused_without_repeating_it() {
        for wrong in [
            "",
            "zk://",
            "zk://hunter2@h",
            "zk://:hunter2@h",
            "redis://u:hunter2@h",
            "zk://u:hunter2@h:0",
            "zk://u:hunter2@h:99999",
            "zk://u:hunter2@h//x",
            "zk://u:hunter2@h/../x",
            "zk://u:hunter2@h/zookeeper/x",
            "zk://u:hunter2@h/a%00b",
            "zk://u:hunter2@h?x=1",
            "zk://u:hunter2@a,,b",
        ] {
            let e = Address::parse(wrong).map(|a| a.to_string()).expect_err(wrong);
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{wrong}");
            assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_host_that_no_certificate_can_name_is_refused_with_tls() {
        for host in ["h\u{f6}st", "a..b", "-", "[fe80::1%eth0]"] {
            let e = Address::parse(&format!("zks://{host}/x")).map(|a| a.to_string());
            assert_eq!(e.expect_err(host).kind(), ErrorKind::InvalidInput, "{host}");
        }
        for host in ["zk-1.eu.example", "127.0.0.1", "[::1]", "a_b"] {
            Address::parse(&format!("zks://{host}/x")).map(drop).expect(host);
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_form_whose_feature_is_not_there_is_refused() {
        let e = Address::parse("zks://h").map(|a| a.to_string()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
    }
}
