//! Databases that are servers: PostgreSQL, MySQL and MariaDB, by leases in rows or by locks of sessions.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::Url;
use dlock_core::{Result, Runtime, spi};
use futures::future::BoxFuture;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::invalid;

/// Opens a database that is known in full.
pub(crate) type Open =
    Box<dyn FnOnce(Arc<dyn Runtime>) -> BoxFuture<'static, Result<Arc<dyn spi::Lock>>> + Send>;

fn opens<L, F>(open: impl FnOnce(Arc<dyn Runtime>) -> F + Send + 'static) -> Open
where
    L: spi::Lock,
    F: Future<Output = Result<L>> + Send + 'static,
{
    Box::new(|runtime| {
        let opened = open(runtime);
        Box::pin(async move { Ok(Arc::new(opened.await?) as Arc<dyn spi::Lock>) })
    })
}

/// By what a lock is held.
enum Strategy {
    Lease,
    Session,
}

/// What both strategies and both kinds of servers take.
struct Common {
    strategy: Strategy,
    prefix: Option<String>,
    schema: Option<String>,
    /// As the driver reads it.
    url: String,
}

/// How the driver calls what URLs here call by one name for all servers.
struct Words {
    scheme: &'static str,
    mode: &'static str,
    #[cfg(feature = "sql-tls")]
    ca: &'static str,
    #[cfg(feature = "sql-tls")]
    cert: &'static str,
    #[cfg(feature = "sql-tls")]
    key: &'static str,
    socket: &'static str,
    /// The values of `sslmode`, in the order of [`MODES`].
    modes: [&'static str; 5],
    /// Keys of the driver's own, which are passed on as they are.
    passed_on: &'static [&'static str],
    /// The same for TLS.
    #[cfg(feature = "sql-tls")]
    passed_on_for_tls: &'static [&'static str],
}

const MODES: [&str; 5] = ["disable", "prefer", "require", "verify-ca", "verify-full"];

#[cfg(feature = "postgres")]
const POSTGRES: Words = Words {
    scheme: "postgres",
    mode: "sslmode",
    #[cfg(feature = "sql-tls")]
    ca: "sslrootcert",
    #[cfg(feature = "sql-tls")]
    cert: "sslcert",
    #[cfg(feature = "sql-tls")]
    key: "sslkey",
    socket: "host",
    modes: MODES,
    passed_on: &[
        "application_name",
        "dbname",
        "host",
        "hostaddr",
        "options",
        "password",
        "port",
        "user",
    ],
    #[cfg(feature = "sql-tls")]
    passed_on_for_tls: &[
        "sslrootcert",
        "ssl-root-cert",
        "ssl-ca",
        "sslcert",
        "ssl-cert",
        "sslkey",
        "ssl-key",
    ],
};

#[cfg(feature = "mysql")]
const MYSQL: Words = Words {
    scheme: "mysql",
    mode: "ssl-mode",
    #[cfg(feature = "sql-tls")]
    ca: "ssl-ca",
    #[cfg(feature = "sql-tls")]
    cert: "ssl-cert",
    #[cfg(feature = "sql-tls")]
    key: "ssl-key",
    socket: "socket",
    modes: [
        "DISABLED",
        "PREFERRED",
        "REQUIRED",
        "VERIFY_CA",
        "VERIFY_IDENTITY",
    ],
    passed_on: &["charset", "collation", "time-zone", "timezone"],
    #[cfg(feature = "sql-tls")]
    passed_on_for_tls: &["sslca", "ssl-ca", "sslcert", "ssl-cert", "sslkey", "ssl-key"],
};

/// A builder with what the leases of both kinds of servers take.
macro_rules! lease {
    ($builder:expr, $common:ident, $url:ident) => {{
        let mut builder = $builder;
        if let Some(prefix) = $common.prefix {
            builder = builder.table_prefix(prefix);
        }
        if let Some(schema) = $common.schema {
            builder = builder.schema(schema);
        }
        if let Some(many) = $url.take::<u32>("connections")? {
            builder = builder.connections(many as usize);
        }
        if let Some(wait) = $url.take::<Duration>("lock_wait")? {
            builder = builder.lock_wait(wait);
        }
        builder
    }};
}

#[cfg(feature = "postgres")]
pub(crate) fn postgres(mut url: Url) -> Result<Open> {
    let common = common(&mut url, &POSTGRES)?;
    match common.strategy {
        Strategy::Lease => {
            use dlock_sql::lease::postgres::{PostgresLease, Route};
            let mut builder = lease!(PostgresLease::builder(&common.url)?, common, url);
            if url.take::<bool>("pooler")?.unwrap_or(false) {
                builder = builder.route(Route::TransactionPooler);
            }
            url.finish()?;
            Ok(opens(|runtime| async move { builder.open(runtime).await }))
        }
        Strategy::Session => session(url, common),
    }
}

#[cfg(feature = "mysql")]
pub(crate) fn mysql(mut url: Url) -> Result<Open> {
    let common = common(&mut url, &MYSQL)?;
    match common.strategy {
        Strategy::Lease => {
            let builder = lease!(
                dlock_sql::lease::mysql::MysqlLease::builder(&common.url)?,
                common,
                url
            );
            url.finish()?;
            Ok(opens(|runtime| async move { builder.open(runtime).await }))
        }
        Strategy::Session => {
            if common.schema.is_some() {
                return Err(invalid(
                    "a `mysql` URL with `strategy=session` takes no `schema`: its locks are of the database \
                        that the URL names",
                ));
            }
            session(url, common)
        }
    }
}

/// Locks of sessions, checked as far as that can be done without a server.
fn session(mut url: Url, common: Common) -> Result<Open> {
    let mut config = dlock_sql::session::Config::from_url(&common.url)?;
    if let Some(prefix) = common.prefix {
        config = config.prefix(prefix);
    }
    if let Some(schema) = common.schema {
        config = config.schema(schema);
    }
    config = config.read(&mut url)?;
    url.finish()?;
    config.check()?;
    Ok(opens(|runtime| async move { config.connect(runtime).await }))
}

fn common(url: &mut Url, words: &Words) -> Result<Common> {
    let strategy = match url.take::<String>("strategy")?.as_deref() {
        None | Some("lease") => Strategy::Lease,
        Some("session") => Strategy::Session,
        Some(_) => {
            return Err(invalid(
                "the URL's `strategy` must be `lease` or `session`, or be left out",
            ));
        }
    };
    let prefix = url.take("table_prefix")?;
    let schema = url.take("schema")?;
    let url = for_the_driver(url, words)?;
    Ok(Common {
        strategy,
        prefix,
        schema,
        url,
    })
}

/// The URL with what the driver is to know, and nothing that it would ignore.
fn for_the_driver(url: &mut Url, words: &Words) -> Result<String> {
    let mut query = Vec::new();
    let mut tell = |key: &str, value: &str| {
        query.push(format!("{key}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)));
    };
    if let Some(socket) = url.take::<String>("socket")? {
        tell(words.socket, &socket);
    }
    if url.take::<String>("statement-cache-capacity")?.is_some() {
        return Err(invalid(
            "leave out `statement-cache-capacity` of the URL: the few statements of a lock stay prepared",
        ));
    }
    for key in words.passed_on {
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
    #[cfg(feature = "sql-tls")]
    {
        let mut file = |key, word: &str| {
            let path = url
                .take_file(key)?
                .map(|(path, _)| path.to_string_lossy().into_owned());
            if let Some(path) = &path {
                tell(word, path);
            }
            Ok::<_, dlock_core::Error>(path)
        };
        for key in words.passed_on_for_tls {
            file(key, key)?;
        }
        if file("ca", words.ca)?.is_some() {
            // Whoever says whom it trusts wants to know to whom it speaks.
            mode.get_or_insert_with(|| "verify-full".to_owned());
        }
        let (cert, key) = (file("cert", words.cert)?, file("key", words.key)?);
        Url::both(("cert", cert), ("key", key))?;
    }
    if let Some(mode) = mode.take() {
        // The driver's own words are taken as well.
        let known = MODES.iter().position(|known| *known == mode);
        let known = known.or_else(|| {
            words
                .modes
                .iter()
                .position(|known| known.eq_ignore_ascii_case(&mode))
        });
        let Some(n) = known else {
            return Err(invalid(format!(
                "the URL's `sslmode` must be one of {}",
                MODES.join(", ")
            )));
        };
        if n > 1 && !cfg!(feature = "sql-tls") {
            return Err(dlock_core::Error::new(
                dlock_core::ErrorKind::Unsupported,
                "this build has no TLS for databases: enable the feature `sql-tls` of `dlock-rs`",
            ));
        }
        tell(words.mode, words.modes[n]);
    }
    let mark = if query.is_empty() { "" } else { "?" };
    Ok(format!(
        "{}://{}{mark}{}",
        words.scheme,
        url.raw_place(),
        query.join("&")
    ))
}
