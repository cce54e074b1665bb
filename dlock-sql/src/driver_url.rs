//! What of a URL is for the driver.

use std::sync::Arc;

use dlock_core::Result;
use dlock_core::spi::Url;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
#[cfg(feature = "mysql")]
use sqlx::mysql::MySqlConnectOptions;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnectOptions;

use crate::failure::{invalid, unsupported};

/// How the driver calls what URLs here call by one name for all servers.
struct Words {
    scheme: &'static str,
    socket: &'static str,
    mode: &'static str,
    /// The values of `sslmode`, in the order of [`MODES`].
    modes: &'static str,
    ca: &'static str,
    cert: &'static str,
    key: &'static str,
    /// Keys of the driver's own, which are passed on as they are, with blanks between them.
    passed_on: &'static str,
    /// Those that name files, for TLS.
    files: &'static str,
}

const MODES: &str = "disable prefer require verify-ca verify-full";

const POSTGRES: Words = Words {
    scheme: "postgres",
    socket: "host",
    mode: "sslmode",
    modes: MODES,
    ca: "sslrootcert",
    cert: "sslcert",
    key: "sslkey",
    passed_on: "application_name dbname host hostaddr options password port user",
    files: "sslrootcert ssl-root-cert ssl-ca sslcert ssl-cert sslkey ssl-key",
};

const MYSQL: Words = Words {
    scheme: "mysql",
    socket: "socket",
    mode: "ssl-mode",
    modes: "DISABLED PREFERRED REQUIRED VERIFY_CA VERIFY_IDENTITY",
    ca: "ssl-ca",
    cert: "ssl-cert",
    key: "ssl-key",
    passed_on: "charset collation time-zone timezone",
    files: "sslca ssl-ca sslcert ssl-cert sslkey ssl-key",
};

/// The URL with what the driver is to know, and nothing that it would ignore.
///
/// | key | meaning |
/// |---|---|
/// | `socket` | a socket of the same machine, in place of the host |
/// | `sslmode` | `disable`, `prefer`, `require`, `verify-ca`, `verify-full` |
/// | `ca` | a file with the certificates that are trusted |
/// | `cert`, `key` | files with the client's own certificate and its key |
///
/// The driver's own keys are taken as well. Those for files need the feature `tls`.
///
/// # Errors
/// `InvalidInput` for a scheme that is none of a database server, or a value that cannot be read;
/// `Unsupported` for TLS where the build has none, or a server that it has no driver for.
pub fn driver_url(url: &mut Url) -> Result<String> {
    let (words, is_built_in) = match url.scheme() {
        "postgres" | "postgresql" => (POSTGRES, cfg!(feature = "postgres")),
        "mysql" | "mariadb" => (MYSQL, cfg!(feature = "mysql")),
        _ => {
            return Err(invalid(
                "this is no URL of a database server: it begins with neither postgres:// nor mysql://",
            ));
        }
    };
    if !is_built_in {
        let text = format!(
            "this build has no driver for that database: enable the feature `{}`",
            words.scheme
        );
        return Err(unsupported(text));
    }
    let mut query = Vec::new();
    let mut tell = |key: &str, value: &str| {
        query.push(format!("{key}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)));
    };
    if let Some(socket) = url.take::<String>("socket")? {
        tell(words.socket, &socket);
    }
    if url.take::<String>("statement-cache-capacity")?.is_some() {
        return Err(invalid(
            "the URL's `statement-cache-capacity` has to be left out: the few statements of a lock stay \
                prepared",
        ));
    }
    for key in words.passed_on.split(' ') {
        if let Some(value) = url.take::<String>(key)? {
            tell(key, &value);
        }
    }
    let mut mode = match (url.take::<String>("sslmode")?, url.take::<String>("ssl-mode")?) {
        (Some(_), Some(_)) => {
            return Err(invalid(
                "the URL gives `sslmode` and `ssl-mode`, which say the same",
            ));
        }
        (one, other) => one.or(other),
    };
    if cfg!(feature = "tls") {
        // Read here, so that the message names the key of our URL.
        let mut file = |key| -> Result<Option<String>> {
            let taken = url.take_file(key)?;
            Ok(taken.map(|(path, _)| path.to_string_lossy().into_owned()))
        };
        for key in words.files.split(' ') {
            if let Some(path) = file(key)? {
                tell(key, &path);
            }
        }
        if let Some(ca) = file("ca")? {
            tell(words.ca, &ca);
            // Whoever says whom it trusts wants to know to whom it speaks.
            mode.get_or_insert_with(|| "verify-full".to_owned());
        }
        if let Some((cert, key)) = Url::both(("cert", file("cert")?), ("key", file("key")?))? {
            tell(words.cert, &cert);
            tell(words.key, &key);
        }
    }
    if let Some(mode) = mode {
        // The driver's own words are taken as well.
        let mut known = MODES.split(' ').zip(words.modes.split(' ')).enumerate();
        let known = known.find(|(_, (ours, its))| *ours == mode || its.eq_ignore_ascii_case(&mode));
        let Some((n, (_, its))) = known else {
            let text = format!("the URL's `sslmode` must be one of {}", MODES.replace(' ', ", "));
            return Err(invalid(text));
        };
        if n > 1 && !cfg!(feature = "tls") {
            let text = "this build has no TLS for databases: enable the feature `sql-tls` of `dlock-rs`";
            return Err(unsupported(text));
        }
        tell(words.mode, its);
    }
    let mark = if query.is_empty() { "" } else { "?" };
    Ok(format!(
        "{}://{}{mark}{}",
        words.scheme,
        url.raw_place(),
        query.join("&")
    ))
}

/// How the driver connects.
#[derive(Clone)]
pub(crate) enum Options {
    #[cfg(feature = "postgres")]
    Postgres(Arc<PgConnectOptions>),
    #[cfg(feature = "mysql")]
    Mysql(Arc<MySqlConnectOptions>),
}

impl Options {
    /// What of a URL is for the driver. No error quotes the URL, as that of the driver may: there may be a
    /// password in it.
    pub(crate) fn read(url: &mut Url) -> Result<Self> {
        let url = driver_url(url)?;
        let parsed = match url.split_once(':') {
            #[cfg(feature = "postgres")]
            Some(("postgres", _)) => url.parse().ok().map(|o| Self::Postgres(Arc::new(o))),
            #[cfg(feature = "mysql")]
            Some(("mysql", _)) => url.parse().ok().map(|o| Self::Mysql(Arc::new(o))),
            _ => None,
        };
        let text = "this is no URL of a database; it looks like postgres://user:password@host:5432/database, \
                    or mysql://user:password@host:3306/database";
        parsed.ok_or_else(|| invalid(text))
    }
}
