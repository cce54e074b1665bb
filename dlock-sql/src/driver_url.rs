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

/// What a driver reads in a URL: its own word for a thing, then others for the same.
struct Words {
    scheme: &'static str,
    /// Passed on as they are; of several things.
    plain: &'static str,
    mode: &'static str,
    /// What it calls each of [`MODES`], if it has it.
    modes: &'static str,
    // Files, for TLS.
    ca: &'static str,
    cert: &'static str,
    key: &'static str,
}

/// The values of `sslmode`.
const MODES: &str = "disable prefer require verify-ca verify-full allow";

const POSTGRES: Words = Words {
    scheme: "postgres",
    plain: "host socket,hostaddr,port,dbname,user,password,application_name,options",
    mode: "sslmode ssl-mode",
    modes: MODES,
    ca: "sslrootcert ssl-root-cert ssl-ca ca",
    cert: "sslcert ssl-cert cert",
    key: "sslkey ssl-key key",
};

const MYSQL: Words = Words {
    scheme: "mysql",
    plain: "socket,charset,collation,timezone time-zone",
    mode: "ssl-mode sslmode",
    modes: "DISABLED PREFERRED REQUIRED VERIFY_CA VERIFY_IDENTITY",
    ca: "ssl-ca sslca ca",
    cert: "ssl-cert sslcert cert",
    key: "ssl-key sslkey key",
};

/// What a URL gives by one of those words, and by which.
fn one_of(url: &mut Url, words: &'static str, is_file: bool) -> Result<Option<(&'static str, String)>> {
    let mut given = None;
    for word in words.split(' ') {
        // A file is read here, so that the message names the key of our URL.
        let value = match is_file {
            true => url
                .take_file(word)?
                .map(|(path, _)| path.to_string_lossy().into_owned()),
            false => url.take(word)?,
        };
        let Some(value) = value else { continue };
        if let Some((other, _)) = given.replace((word, value)) {
            let text = format!("the URL gives `{other}` and `{word}`, which say the same: leave one out");
            return Err(invalid(text));
        }
    }
    Ok(given)
}

/// The URL for the driver: without the keys of the lock, and without keys that the driver would ignore.
///
/// | key | meaning |
/// |---|---|
/// | `socket` | a socket of this machine instead of the host |
/// | `sslmode` | `disable`, `prefer`, `require`, `verify-ca`, `verify-full`; PostgreSQL: `allow` |
/// | `ca` | a file with the certificates to trust |
/// | `cert`, `key` | files with this client's certificate and its key |
///
/// The driver's own names for these keys work too; giving one twice is an error. Keys for files need the
/// feature `tls`.
///
/// # Errors
/// `InvalidInput` for a scheme that is not that of a database server, or a bad value; `Unsupported` for TLS
/// without the feature, or a server without a driver in this build.
pub fn driver_url(url: &mut Url) -> Result<String> {
    let (words, is_built_in) = match url.scheme() {
        "postgres" | "postgresql" => (POSTGRES, cfg!(feature = "postgres")),
        "mysql" | "mariadb" => (MYSQL, cfg!(feature = "mysql")),
        _ => {
            return Err(invalid(
                "the URL of a database server must begin with postgres:// or mysql://",
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
    url.check_slashes()?;
    let mut query = Vec::new();
    let mut tell = |words: &str, value: &str| {
        let its = words.split(' ').next().unwrap_or(words);
        query.push(format!("{its}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)));
    };
    if url.take::<String>("statement-cache-capacity")?.is_some() {
        return Err(invalid(
            "leave out the URL's `statement-cache-capacity`: the few statements of a lock stay prepared",
        ));
    }
    for plain in words.plain.split(',') {
        if let Some((_, value)) = one_of(url, plain, false)? {
            tell(plain, &value);
        }
    }
    if words.scheme == POSTGRES.scheme {
        for (key, value) in url.take_all(|key| key.starts_with("options[") && key.ends_with(']')) {
            tell(&utf8_percent_encode(&key, NON_ALPHANUMERIC).to_string(), &value);
        }
    }
    let mut mode = one_of(url, words.mode, false)?.map(|(_, mode)| mode);
    if cfg!(feature = "tls") {
        if let Some((word, ca)) = one_of(url, words.ca, true)? {
            tell(words.ca, &ca);
            // A program that names certificates to trust expects a check. The driver's own word implies none.
            if word == "ca" {
                mode.get_or_insert_with(|| "verify-full".to_owned());
            }
        }
        let (cert, key) = (one_of(url, words.cert, true)?, one_of(url, words.key, true)?);
        if let Some(((_, cert), (_, key))) = Url::both(("cert", cert), ("key", key))? {
            tell(words.cert, &cert);
            tell(words.key, &key);
        }
    }
    if let Some(mode) = mode {
        let all = || MODES.split(' ').zip(words.modes.split(' '));
        let known = all().find(|(ours, its)| *ours == mode || its.eq_ignore_ascii_case(&mode));
        let (ours, its) = known.ok_or_else(|| {
            let known: Vec<_> = all().map(|(ours, _)| ours).collect();
            invalid(format!("the URL's `sslmode` must be one of {}", known.join(", ")))
        })?;
        if (ours == "require" || ours.starts_with("verify")) && !cfg!(feature = "tls") {
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
        let text = "the URL is malformed; it looks like postgres://user:password@host:5432/database, or \
                    mysql://user:password@host:3306/database";
        parsed.ok_or_else(|| invalid(text))
    }
}

#[cfg(all(test, feature = "postgres", feature = "mysql"))]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<String> {
        let mut url = Url::parse(url)?;
        let told = driver_url(&mut url)?;
        url.finish()?;
        Ok(told)
    }

    #[test]
    fn the_driver_is_told_in_its_own_words() {
        for (url, told) in [
            ("postgres://h/d?socket=/run", "postgres://h/d?host=%2Frun"),
            ("postgres://h/d?sslmode=allow", "postgres://h/d?sslmode=allow"),
            (
                "postgres://h/d?options[jit]=off&options=-ca%3D1",
                "postgres://h/d?options=%2Dca%3D1&options%5Bjit%5D=off",
            ),
            (
                "mariadb://h/d?sslmode=disable&time-zone=UTC",
                "mysql://h/d?timezone=UTC&ssl-mode=DISABLED",
            ),
        ] {
            assert_eq!(read(url).unwrap(), told);
        }
        assert!(Options::read(&mut Url::parse("postgres://h/d?options[jit]=off").unwrap()).is_ok());
        for url in [
            "mysql://h/d?sslmode=allow",
            "mysql://h/d?options[jit]=off",
            "postgres://h/d?charset=x",
        ] {
            assert_eq!(
                read(url).unwrap_err().kind(),
                dlock_core::ErrorKind::InvalidInput,
                "{url}"
            );
        }
    }

    #[test]
    fn two_words_for_one_thing_are_refused_together() {
        let file = std::env::current_exe().unwrap();
        for (scheme, one, other) in [
            ("postgres", "socket", "host"),
            ("postgres", "sslmode", "ssl-mode"),
            ("mysql", "timezone", "time-zone"),
            #[cfg(feature = "tls")]
            ("postgres", "ca", "sslrootcert"),
            #[cfg(feature = "tls")]
            ("postgres", "ssl-ca", "ssl-root-cert"),
            #[cfg(feature = "tls")]
            ("mysql", "cert", "sslcert"),
        ] {
            let e = read(&format!("{scheme}://h/d?{one}={0}&{other}={0}", file.display())).unwrap_err();
            assert!(e.to_string().contains("which say the same"), "{e}");
        }
    }
}
