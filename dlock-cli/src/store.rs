//! The store that is used, and the parts of its URL that may be shown.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dlock::{Client, LockOptions};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::args;
use crate::failure::Failure;

/// The URL of a store, with its password in it.
pub(crate) struct Store(String);

/// The content of a configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    url: Option<String>,
    password_file: Option<PathBuf>,
}

/// Encodes everything but what the path of a URL may contain as it is.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'.')
    .remove(b'-')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// Keys of a query whose values are secrets.
const SECRETS: [&str; 4] = ["pass", "password", "sentinel_password", "sasl_password"];

pub(crate) fn find(args: args::Store) -> Result<Store, Failure> {
    let config = match args.url {
        Some(_) => File::default(),
        None => read_files()?,
    };
    let url = match args.url.or(config.url) {
        Some(url) => url,
        None => of_this_user()?,
    };
    if ["memory:", "sqlite::memory:"]
        .iter()
        .any(|own| url.starts_with(own))
    {
        let text = "locks in the memory of this process exclude nobody: choose another store with --url";
        return Err(Failure::usage(text));
    }
    Ok(Store(match args.password_file.or(config.password_file) {
        Some(file) => with_password(&url, &file)?,
        None => url,
    }))
}

impl Store {
    pub(crate) async fn connect(&self, ttl: Option<Duration>) -> Result<Client, Failure> {
        let mut connect = dlock::connect(&self.0);
        if let Some(ttl) = ttl {
            connect = connect.defaults(LockOptions::new().ttl(ttl));
        }
        Ok(connect.await?)
    }

    /// The URL without passwords. An unexpected `@` may follow a part of a password; then only the scheme is
    /// shown.
    pub(crate) fn shown(&self) -> String {
        let (place, query) = self.0.split_once('?').unwrap_or((&self.0, ""));
        let parts = parts(place);
        if query.contains('@') || parts.is_none() && place.contains('@') {
            return format!("{}:…", place.split(':').next().unwrap_or_default());
        }
        let place = match parts {
            Some((scheme, user, rest)) => match user.split_once(':') {
                Some(("", _)) => format!("{scheme}://{rest}"),
                Some((user, _)) => format!("{scheme}://{user}@{rest}"),
                None => place.to_owned(),
            },
            None => place.to_owned(),
        };
        let is_secret = |pair: &&str| SECRETS.contains(&pair.split('=').next().unwrap_or_default());
        let pairs: Vec<_> = query
            .split('&')
            .filter(|pair| !pair.is_empty() && !is_secret(pair))
            .collect();
        match pairs.is_empty() {
            true => place,
            false => format!("{place}?{}", pairs.join("&")),
        }
    }
}

/// The scheme, the user with password, and the rest of a URL that has a user, split as by `dlock::spi::Url`.
fn parts(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let (user, _) = rest.split('?').next()?.rsplit_once('@')?;
    Some((scheme, user, &rest[user.len() + 1..]))
}

fn with_password(url: &str, file: &Path) -> Result<String, Failure> {
    let text = fs::read_to_string(file)
        .map_err(|e| Failure::usage(format!("cannot read the password file {}: {e}", file.display())))?;
    let password = text.lines().next().unwrap_or_default();
    if password.is_empty() {
        let text = format!("the first line of the password file {} is empty", file.display());
        return Err(Failure::usage(text));
    }
    let password = utf8_percent_encode(password, NON_ALPHANUMERIC);
    match (parts(url), url.split_once("://")) {
        (Some((_, user, _)), _) if user.contains(':') => Err(Failure::usage(
            "both the URL and the password file have a password: remove one of them",
        )),
        (Some((scheme, user, rest)), _) => Ok(format!("{scheme}://{user}:{password}@{rest}")),
        (None, Some((scheme, rest))) => Ok(format!("{scheme}://:{password}@{rest}")),
        (None, None) => Ok(url.to_owned()),
    }
}

fn read_files() -> Result<File, Failure> {
    let own = in_home("XDG_CONFIG_HOME", ".config").map(|folder| folder.join("dlock.toml"));
    for path in own.into_iter().chain([PathBuf::from("/etc/dlock.toml")]) {
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => return Err(Failure::usage(format!("cannot read {}: {e}", path.display()))),
        };
        return toml::from_str(&text).map_err(|e| {
            // The line itself is not shown, since it may be the URL.
            let text = "takes `url` and `password_file`, each a string in quotes";
            let line = e.span().map(|span| line_number(&text_of(&path), span.start));
            let line = line.map_or(String::new(), |n| format!(", line {n}"));
            Failure::usage(format!("{}{line}: this file {text}", path.display()))
        });
    }
    Ok(File::default())
}

fn text_of(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The number of the line with this byte.
fn line_number(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|b| **b == b'\n').count() + 1
}

/// A folder of the user: from its variable, or below the home folder.
fn in_home(variable: &str, below: &str) -> Option<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    set(variable).or_else(|| Some(set("HOME")?.join(below)))
}

/// The default store: a SQLite file of the user, for the processes of one machine.
fn of_this_user() -> Result<String, Failure> {
    let folder = in_home("XDG_STATE_HOME", ".local/state").ok_or_else(|| {
        Failure::usage("there is no --url, and no home folder for the default store: set DLOCK_URL")
    })?;
    let folder = folder.join("dlock");
    let cannot = |e| {
        Failure::usage(format!(
            "cannot create the folder {}: {e}; set DLOCK_URL to use another store",
            folder.display()
        ))
    };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(cannot)?;
    let path = folder.join("locks.db");
    let path = path
        .to_str()
        .ok_or_else(|| Failure::usage("the path of the state folder is not UTF-8: set DLOCK_URL"))?;
    Ok(format!("sqlite://{}", utf8_percent_encode(path, ENCODED)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (url, shown) in [
            ("redis://u:secret@h:1/2?ttl=3s", "redis://u@h:1/2?ttl=3s"),
            ("redis://:secret@h", "redis://h"),
            ("redis://u@h", "redis://u@h"),
            (
                "zk://h/p?sasl_user=a&sasl_password=secret",
                "zk://h/p?sasl_user=a",
            ),
            ("redis+unix:///s?pass=secret&db=1", "redis+unix:///s?db=1"),
            ("mysql://u:se@cret@h/d", "mysql://u@h/d"),
            ("redis://app:s3/cret@db", "redis://app@db"),
            ("redis://app:s3/cret@db/1?ttl=3s", "redis://app@db/1?ttl=3s"),
            ("redis://app:se?cret@db", "redis:…"),
            ("redis:app:secret@db", "redis:…"),
            ("sqlite:///a/b", "sqlite:///a/b"),
            ("sqlite::memory:", "sqlite::memory:"),
        ] {
            assert_eq!(Store(url.to_owned()).shown(), shown);
        }
    }

    #[test]
    fn a_password_of_a_file_is_put_in() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(&file, "p/w @\nmore\n").expect("to write");
        let with = |url| with_password(url, file.path()).map_err(|e| e.code);
        assert_eq!(with("redis://h/1"), Ok("redis://:p%2Fw%20%40@h/1".to_owned()));
        assert_eq!(with("redis://u@h/1"), Ok("redis://u:p%2Fw%20%40@h/1".to_owned()));
        assert_eq!(
            with("redis://u@h/1?owner=a@b"),
            Ok("redis://u:p%2Fw%20%40@h/1?owner=a@b".to_owned())
        );
        assert_eq!(with("redis://u:ot/her@h"), Err(crate::failure::code::USAGE));
    }
}
