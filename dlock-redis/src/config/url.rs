//! The servers of a URL, and the login. No message repeats any part of the URL: a mistyped one can have a
//! password anywhere.

use std::fmt;
use std::path::PathBuf;

use dlock_core::spi::{Host, Url};
use dlock_core::{Error, ErrorKind, Result};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, ProtocolVersion, RedisConnectionInfo};

use crate::failure::invalid;

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The servers and the login.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) form: Form,
    pub(crate) hosts: Vec<Host>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    pub(crate) tls: bool,
}

#[derive(Clone)]
pub(crate) enum Form {
    Server,
    Socket(PathBuf),
    Cluster,
    /// Of the master of that name.
    Sentinel(String),
    /// A program's own client.
    Client(Box<redis::Client>),
}

impl Address {
    pub(crate) fn new(form: Form, hosts: Vec<Host>) -> Self {
        Self {
            form,
            hosts,
            user: None,
            password: None,
            database: 0,
            tls: false,
        }
    }

    /// The forms are listed at [`Config::from_url`](crate::Config::from_url).
    pub(crate) fn of(url: &Url) -> Result<Self> {
        let scheme = url.scheme().replacen("valkey", "redis", 1);
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
                     rediss+cluster, redis+sentinel, rediss+sentinel, redis+unix, and the same with valkey \
                     and valkeys",
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
                    "the URL needs the feature `{feature}` of dlock-redis, which this build does not have"
                );
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        }
        let servers = match form {
            "unix" => in_front_of_socket(url)?,
            "sentinel" => url.servers(SENTINEL_PORT)?,
            _ => url.servers(PORT)?,
        };
        if servers.user.is_some() && servers.password.is_none() {
            return Err(invalid(
                "the login in the URL needs a password behind a colon, as in `redis://:password@host` or \
                 `redis://user:password@host`",
            ));
        }
        let path = servers.path.as_str();
        let (form, database) = match form {
            "unix" => (Form::Socket(format!("/{path}").into()), ""),
            "cluster" if path.is_empty() => (Form::Cluster, ""),
            "cluster" => {
                return Err(invalid(
                    "a Redis Cluster has no numbered databases: end the URL behind the hosts",
                ));
            }
            "sentinel" => match path.split_once('/').unwrap_or((path, "")) {
                ("", _) => {
                    return Err(invalid(
                        "a `redis+sentinel` URL needs the name of the master, as in \
                         `redis+sentinel://host1,host2,host3/mymaster`",
                    ));
                }
                (master, database) => (Form::Sentinel(master.to_owned()), database),
            },
            _ if servers.hosts.len() > 1 => {
                return Err(invalid(
                    "a `redis` URL names one host; for several use `redis+cluster` or `redis+sentinel`",
                ));
            }
            _ => (Form::Server, path),
        };
        Ok(Self {
            database: number(database)?,
            form,
            hosts: servers.hosts,
            user: servers.user,
            password: servers.password,
            tls,
        })
    }

    /// Whether it is one server, which no other takes over from.
    pub(crate) fn is_single(&self) -> bool {
        matches!(self.form, Form::Server | Form::Socket(_) | Form::Client(_))
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.form, Form::Cluster)
    }

    /// In the driver's form, for that host, which another server may have named.
    pub(crate) fn info(&self, host: &Host) -> Result<ConnectionInfo> {
        let (host, port) = (host.name.clone(), host.port);
        let addr = match (&self.form, self.tls) {
            (Form::Socket(path), _) => ConnectionAddr::Unix(path.clone()),
            (_, false) => ConnectionAddr::Tcp(host, port),
            (_, true) => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            },
        };
        let info = addr
            .into_connection_info()
            .map_err(|_| invalid("the address of the Redis server is malformed"))?;
        let tcp = info.tcp_settings().clone().set_nodelay(true);
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
        Ok(info.set_redis_settings(settings).set_tcp_settings(tcp))
    }
}

/// Without whatever is secret.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<_> = self.hosts.iter().map(Host::to_string).collect();
        let hosts = hosts.join(",");
        match &self.form {
            Form::Socket(path) => write!(f, "{}", path.display()),
            Form::Client(client) => client.get_connection_info().addr().fmt(f),
            Form::Sentinel(master) => write!(f, "{hosts}/{master}"),
            Form::Server | Form::Cluster => f.write_str(&hosts),
        }
    }
}

/// Reads `[[user]:password@]/path` as if there were a host.
fn in_front_of_socket(url: &Url) -> Result<dlock_core::spi::Servers> {
    let (login, path) = url
        .raw_place()
        .split_at(url.raw_place().rfind('@').map_or(0, |at| at + 1));
    if !path.starts_with('/') || path.len() < 2 {
        return Err(invalid(
            "a `redis+unix` URL needs the absolute path of a socket, as in \
             `redis+unix:///run/redis/redis.sock`",
        ));
    }
    Url::parse(&format!("unix://{login}socket{path}"))?.servers(PORT)
}

pub(super) fn number(database: &str) -> Result<i64> {
    let read = match database {
        "" => Some(0),
        digits => digits.parse().ok().filter(|n| *n >= 0),
    };
    read.ok_or_else(|| invalid("the database in the URL must be a number"))
}

#[cfg(all(test, feature = "tls", feature = "cluster", feature = "sentinel"))]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Address> {
        Address::of(&Url::parse(url)?)
    }

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
            let address = read(url).unwrap();
            let is = (address.to_string(), address.database, address.tls);
            assert_eq!(is, (shown.to_owned(), database, tls), "{url}");
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
            let address = read(url).unwrap();
            assert_eq!(address.to_string(), "h:6379");
            let is = (address.user.as_deref(), address.password.as_deref());
            assert_eq!(is, (user, Some(password)), "{url}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_and_not_repeated() {
        let wrong = "hunter2 hunter2://h redis:// redis://hunter2@h redis://:hunter2@ \
            redis://:hunter2@h:port redis://:hunter2@h:70000 redis://:hunter2@h/one redis://:hunter2@h/-1 \
            redis://:hunter2@h#hunter2 redis://:hunter2@a,b redis://:hunter2@[::1 \
            redis://:hunter2@h/hunter2@ redis://:%ff@h redis+cluster://:hunter2@h/1 \
            redis+sentinel://:hunter2@h redis+unix://hunter2 redis+unix://";
        for url in wrong.split_whitespace() {
            let e = read(url).map(|_| ()).expect_err(url);
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{url}");
            assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
        }
    }
}
