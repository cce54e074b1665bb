//! The URL of Redis, taken apart. No message made here repeats any part of it: a mistyped one can have a
//! password anywhere.

use std::fmt;
use std::path::PathBuf;

use dlock_core::{Error, ErrorKind, Result};
use percent_encoding::percent_decode_str;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, ProtocolVersion, RedisConnectionInfo};

use super::invalid;

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// Where the servers are, and as whom they are asked.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) form: Form,
    pub(crate) nodes: Vec<Node>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    pub(crate) tls: bool,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Form {
    Server,
    Cluster,
    Sentinel { master: String },
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Node {
    Host(String, u16),
    Socket(PathBuf),
}

impl Address {
    /// `scheme://[[user]:password@]where[/what]`; the forms are listed at
    /// [`Config::from_url`](crate::Config::from_url).
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| {
            invalid("the URL of a Redis server begins with its scheme, as in `redis://localhost`")
        })?;
        if rest.contains('#') {
            return Err(invalid(
                "the URL of a Redis server has no fragment: a `#` that belongs to it is written `%23`, and \
                 servers whose certificates nobody vouches for (`#insecure`) are not asked",
            ));
        }
        let scheme = scheme.to_ascii_lowercase();
        let scheme = scheme.replacen("valkey", "redis", 1);
        let (tls, form) = match scheme.as_str() {
            "redis" => (false, "server"),
            "rediss" => (true, "server"),
            "redis+cluster" => (false, "cluster"),
            "rediss+cluster" => (true, "cluster"),
            "redis+sentinel" => (false, "sentinel"),
            "rediss+sentinel" => (true, "sentinel"),
            "redis+unix" | "unix" => (false, "unix"),
            _ => {
                return Err(invalid(
                    "the scheme of the URL is not known; known are: redis, rediss, redis+cluster, \
                     rediss+cluster, redis+sentinel, rediss+sentinel, redis+unix, \
                     and the same with valkey and valkeys",
                ));
            }
        };
        for (asked, feature, enabled) in [
            (tls, "tls", cfg!(feature = "tls")),
            (form == "cluster", "cluster", cfg!(feature = "cluster")),
            (form == "sentinel", "sentinel", cfg!(feature = "sentinel")),
        ] {
            if asked && !enabled {
                let message = format!(
                    "this build of dlock-redis has not its feature `{feature}`, which the URL asks for"
                );
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        }
        // The last one: an `@` in a password is mostly not encoded, and cannot be in what follows.
        let (who, place) = match rest.rsplit_once('@') {
            Some((who, place)) => (Some(who), place),
            None => (None, rest),
        };
        let (user, password) = who.map_or(Ok((None, None)), credentials)?;
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        let mut address = Self {
            form: Form::Server,
            nodes: Vec::new(),
            user,
            password,
            database: 0,
            tls,
        };
        let (database, port) = match form {
            "unix" => {
                if !hosts.is_empty() || path.is_empty() {
                    return Err(invalid(
                        "a `redis+unix` URL names a socket by its whole path, as in \
                         `redis+unix:///run/redis/redis.sock`",
                    ));
                }
                address.nodes = vec![Node::Socket(PathBuf::from(format!("/{}", decode(path)?)))];
                return Ok(address);
            }
            "cluster" => {
                address.form = Form::Cluster;
                if !path.is_empty() {
                    return Err(invalid(
                        "a Redis Cluster has no numbered databases: nothing comes behind the hosts",
                    ));
                }
                ("", PORT)
            }
            "sentinel" => {
                let (master, database) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err(invalid(
                        "behind the sentinels comes the name of the master, as in \
                         `redis+sentinel://host1,host2,host3/mymaster`",
                    ));
                }
                let master = decode(master)?;
                address.form = Form::Sentinel { master };
                (database, SENTINEL_PORT)
            }
            _ => (path, PORT),
        };
        address.database = number(database)?;
        address.nodes = hosts
            .split(',')
            .map(|host| node(host, port))
            .collect::<Result<_>>()?;
        if address.form == Form::Server && address.nodes.len() > 1 {
            return Err(invalid(
                "several hosts are those of a cluster or of sentinels: `redis+cluster` or `redis+sentinel`",
            ));
        }
        Ok(address)
    }

    /// One server, by its name.
    pub(crate) fn server(host: &str, port: u16) -> Self {
        Self {
            form: Form::Server,
            nodes: vec![Node::Host(host.to_owned(), port)],
            user: None,
            password: None,
            database: 0,
            tls: false,
        }
    }

    pub(crate) fn is_socket(&self) -> bool {
        matches!(self.nodes[..], [Node::Socket(_)])
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.form == Form::Cluster
    }

    /// As the driver takes them.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = Result<ConnectionInfo>> + '_ {
        self.nodes.iter().map(|node| self.info(node))
    }

    /// The same of one node, of which it may have been told by another.
    pub(crate) fn info(&self, node: &Node) -> Result<ConnectionInfo> {
        let addr = match (node, self.tls) {
            (Node::Socket(path), _) => ConnectionAddr::Unix(path.clone()),
            (Node::Host(host, port), false) => ConnectionAddr::Tcp(host.clone(), *port),
            (Node::Host(host, port), true) => ConnectionAddr::TcpTls {
                host: host.clone(),
                port: *port,
                insecure: false,
                tls_params: None,
            },
        };
        let info = addr
            .into_connection_info()
            .map_err(|_| invalid("the address of the Redis server cannot be used"))?;
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        Ok(info.set_redis_settings(self.settings()).set_tcp_settings(tcp))
    }

    pub(crate) fn settings(&self) -> RedisConnectionInfo {
        // RESP3 pushes on the connection that is asked on: there is no second one.
        let mut settings = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_db(self.database)
            .set_lib_name("dlock", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        settings
    }
}

/// Without whatever is secret.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, node) in self.nodes.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            match node {
                Node::Host(host, port) if host.contains(':') => write!(f, "{comma}[{host}]:{port}")?,
                Node::Host(host, port) => write!(f, "{comma}{host}:{port}")?,
                Node::Socket(path) => write!(f, "{comma}{}", path.display())?,
            }
        }
        if let Form::Sentinel { master } = &self.form {
            write!(f, "/{master}")?;
        }
        Ok(())
    }
}

fn credentials(who: &str) -> Result<(Option<String>, Option<String>)> {
    let Some((user, password)) = who.split_once(':') else {
        return Err(invalid(
            "before the `@` of the URL comes a password behind a colon, as in `redis://:password@host` or \
             `redis://user:password@host`",
        ));
    };
    let (user, password) = (decode(user)?, decode(password)?);
    Ok(((!user.is_empty()).then_some(user), Some(password)))
}

fn node(text: &str, default: u16) -> Result<Node> {
    let bad = || invalid("a host in the URL is not of the form `host`, `host:port` or `[::1]:port`");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
            match rest {
                "" => (host, None),
                rest => (host, Some(rest.strip_prefix(':').ok_or_else(bad)?)),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':');
    if host.is_empty() || !host.bytes().all(fits) {
        return Err(bad());
    }
    let port = port.map_or(Ok(default), |p| p.parse().map_err(|_| bad()))?;
    Ok(Node::Host(host.to_owned(), port))
}

pub(super) fn number(database: &str) -> Result<i64> {
    let read = match database {
        "" => Some(0),
        digits => digits.parse().ok().filter(|n| *n >= 0),
    };
    read.ok_or_else(|| invalid("the number of the database in the URL is none"))
}

fn decode(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded: Result<_, _> = decoded.map(std::borrow::Cow::into_owned);
    decoded.map_err(|_| -> Error { invalid("the URL, percent-decoded, is not UTF-8") })
}

#[cfg(all(test, feature = "tls", feature = "cluster", feature = "sentinel"))]
mod tests {
    use super::*;

    #[test]
    fn the_forms_are_read() {
        for (url, shown, database, tls) in [
            ("redis://localhost", "localhost:6379", 0, false),
            ("redis://localhost/", "localhost:6379", 0, false),
            ("REDIS://localhost:7000/3", "localhost:7000", 3, false),
            ("rediss://[::1]:7000", "[::1]:7000", 0, true),
            ("redis://[::1]", "[::1]:6379", 0, false),
            ("redis+cluster://a,b:7001", "a:6379,b:7001", 0, false),
            ("rediss+cluster://a", "a:6379", 0, true),
            ("redis+sentinel://a,b:1/me/2", "a:26379,b:1/me", 2, false),
            (
                "redis+unix:///run/my%20redis.sock",
                "/run/my redis.sock",
                0,
                false,
            ),
        ] {
            let address = Address::parse(url).unwrap();
            let read = (address.to_string(), address.database, address.tls);
            assert_eq!(read, (shown.to_owned(), database, tls), "{url}");
        }
    }

    #[test]
    fn a_user_and_a_password_are_decoded_and_never_shown() {
        for (url, user, password) in [
            ("redis://:hunter2@h", None, "hunter2"),
            ("redis://bob:hunter2@h", Some("bob"), "hunter2"),
            ("redis://bob:hun%40ter%2F2@h", Some("bob"), "hun@ter/2"),
            ("redis://bob:hun@ter2@h", Some("bob"), "hun@ter2"),
            ("redis://bob:a:b@h", Some("bob"), "a:b"),
        ] {
            let address = Address::parse(url).unwrap();
            assert_eq!(address.to_string(), "h:6379");
            let read = (address.user.as_deref(), address.password.as_deref());
            assert_eq!(read, (user, Some(password)), "{url}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_and_not_repeated() {
        let wrong = "hunter2 hunter2://h redis:hunter2 redis:// redis://hunter2@h redis://:hunter2@ \
            redis://:hunter2@h:port redis://:hunter2@h:70000 redis://:hunter2@h/one redis://:hunter2@h/-1 \
            redis://:hunter2@h#hunter2 redis://:hunter2@a,b redis://:hunter2@[::1 \
            redis://:hunter2@h/hunter2@ redis://:%ff@h redis+cluster://:hunter2@h/1 \
            redis+sentinel://:hunter2@h redis+unix://hunter2 redis+unix://";
        for url in wrong.split_whitespace() {
            let e = Address::parse(url).map(|_| ()).expect_err(url);
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{url}");
            assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
        }
    }
}
