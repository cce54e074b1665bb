//! What of a URL is for the driver.

use dlock_core::Result;
use dlock_core::spi::Url;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::failure::{invalid, unsupported};

/// How the driver calls what URLs here call by one name for all servers.
struct Words {
    scheme: &'static str,
    socket: &'static str,
    mode: &'static str,
    /// The values of `sslmode`, in the order of [`MODES`].
    modes: [&'static str; 5],
    ca: &'static str,
    cert: &'static str,
    key: &'static str,
    /// Keys of the driver's own, which are passed on as they are.
    passed_on: &'static [&'static str],
    /// Those that name files, for TLS.
    files: &'static [&'static str],
}

const MODES: [&str; 5] = ["disable", "prefer", "require", "verify-ca", "verify-full"];

const POSTGRES: Words = Words {
    scheme: "postgres",
    socket: "host",
    mode: "sslmode",
    modes: MODES,
    ca: "sslrootcert",
    cert: "sslcert",
    key: "sslkey",
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
    files: &[
        "sslrootcert",
        "ssl-root-cert",
        "ssl-ca",
        "sslcert",
        "ssl-cert",
        "sslkey",
        "ssl-key",
    ],
};

const MYSQL: Words = Words {
    scheme: "mysql",
    socket: "socket",
    mode: "ssl-mode",
    modes: [
        "DISABLED",
        "PREFERRED",
        "REQUIRED",
        "VERIFY_CA",
        "VERIFY_IDENTITY",
    ],
    ca: "ssl-ca",
    cert: "ssl-cert",
    key: "ssl-key",
    passed_on: &["charset", "collation", "time-zone", "timezone"],
    files: &["sslca", "ssl-ca", "sslcert", "ssl-cert", "sslkey", "ssl-key"],
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
    if cfg!(feature = "tls") {
        // Read here, so that the message names the key of our URL.
        let mut file = |key: &'static str| -> Result<Option<String>> {
            Ok(url
                .take_file(key)?
                .map(|(path, _)| path.to_string_lossy().into_owned()))
        };
        for key in words.files {
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
        let known = MODES.iter().zip(words.modes);
        let mut known = known.map(|(ours, its)| *ours == mode || its.eq_ignore_ascii_case(&mode));
        let Some(n) = known.position(|is_it| is_it) else {
            let text = format!("the URL's `sslmode` must be one of {}", MODES.join(", "));
            return Err(invalid(text));
        };
        if n > 1 && !cfg!(feature = "tls") {
            let text = "this build has no TLS for databases: enable the feature `sql-tls` of `dlock-rs`";
            return Err(unsupported(text));
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
