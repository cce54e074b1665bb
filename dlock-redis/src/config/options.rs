//! The checks of options, and the keys of a URL's query. No message repeats a value: it may be a password.

use std::time::Duration;

#[cfg(feature = "tls")]
use dlock_core::Error;
use dlock_core::Result;
use dlock_core::combinators::Quorum;
use dlock_core::spi::Url;

use super::url::Form;
use super::{Config, PREFIX, WINDOW};
use crate::connection::rejoin::Rejoin;
use crate::failure::invalid;

/// What is longer was not meant: an operation ends by its own limit.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(3600);

impl Config {
    /// Sets what the query says.
    pub(super) fn take_all(&mut self, url: &mut Url) -> Result<()> {
        match url.take::<String>("recipe")?.as_deref() {
            None => {}
            Some("plain") => self.plain = true,
            Some(_) => return Err(invalid("the URL's `recipe` must be `plain`, or be left out")),
        }
        self.prefix = url.take::<String>("prefix")?.map(Into::into);
        self.window = url.take("claim_window")?;
        self.timeout = url.take("timeout")?.unwrap_or(self.timeout);
        self.allow_eviction = url.take("allow_eviction")?.unwrap_or(false);
        self.replicas = url.take("replicas")?.unwrap_or(0);
        self.rejoin = url.take("rejoin_after")?.map(Rejoin::new);
        match url.take::<String>("protocol")?.as_deref() {
            None | Some("3" | "resp3") => {}
            Some(_) => {
                return Err(invalid(
                    "the URL's `protocol` must be `resp3`, or be left out: waiters are woken by pushes, \
                     which RESP2 does not have",
                ));
            }
        }
        #[cfg(feature = "tls")]
        {
            let mut pem = |key| Ok::<_, Error>(url.take_file(key)?.map(|(_, pem)| pem));
            self.certificates.root_cert = pem("ca")?;
            let client = Url::both(("cert", pem("cert")?), ("key", pem("key")?))?;
            self.certificates.client_tls = client.map(|(client_cert, client_key)| redis::ClientTlsConfig {
                client_cert,
                client_key,
            });
        }
        #[cfg(feature = "sentinel")]
        match (url.take("sentinel_user")?, url.take("sentinel_password")?) {
            (user, Some(password)) => self.sentinel_login = Some((user, password)),
            (Some(_), None) => {
                return Err(invalid(
                    "the URL gives a `sentinel_user` without a `sentinel_password`",
                ));
            }
            (None, None) => {}
        }
        self.take_of_socket(url)
    }

    /// As the driver's URLs have them, for a socket alone: elsewhere they have a place of their own.
    fn take_of_socket(&mut self, url: &mut Url) -> Result<()> {
        let (user, password) = (url.take::<String>("user")?, url.take::<String>("pass")?);
        let database = url.take::<String>("db")?;
        if user.is_none() && password.is_none() && database.is_none() {
            return Ok(());
        }
        let address = &mut self.address;
        if !matches!(address.form, Form::Socket(_)) {
            return Err(invalid(
                "`db`, `user` and `pass` in the URL's query are for sockets only: write \
                 `redis://user:password@host/database`",
            ));
        }
        address.user = user.or(address.user.take());
        address.password = password.or(address.password.take());
        if let Some(database) = database {
            address.database = super::url::number(&database)?;
        }
        Ok(())
    }

    /// Checks the options, without a connection.
    ///
    /// # Errors
    /// `InvalidInput` if one of them is wrong.
    pub fn check(&self) -> Result<()> {
        let prefix = self.prefix.as_deref().unwrap_or(PREFIX);
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
        let fits = match self.plain {
            true => prefix.bytes().all(|b| b.is_ascii_graphic()),
            false => !prefix.is_empty() && prefix.bytes().all(fits),
        };
        let window = self.window.unwrap_or(WINDOW);
        let (least, longest) = (Quorum::MIN_TTL, self.rejoin.map(Rejoin::longest_ttl));
        let why = if self.timeout.is_zero() || self.timeout > LONGEST_TIMEOUT {
            "a timeout is longer than nothing, and 3600s at most"
        } else if self.plain && self.window.is_some() {
            "a plain lock has no hand-off, and so no claim window"
        } else if self.plain && self.replicas > 0 {
            "a plain lock is acknowledged by no replicas"
        } else if self.plain && self.rejoin.is_some() {
            "`rejoin_after` is for members of a quorum, which plain locks cannot be"
        } else if self.plain && (prefix.len() > 64 || !fits) {
            "the prefix of plain locks is text without blanks, 64 bytes at most"
        } else if prefix.len() > 64 || !fits {
            "a prefix is made of 1 to 64 letters, digits, `_`, `-` and `.`"
        } else if !(Duration::from_millis(50)..=Duration::from_secs(60)).contains(&window) {
            "a claim window is 50 ms to 60 s long"
        } else if self.rejoin.is_some() && !self.address.is_single() {
            "`rejoin_after` needs a single server: of several, one that is up for long may know nothing of \
             the locks"
        } else if self.lazily && self.address.is_cluster() {
            "a cluster cannot be connected to lazily"
        } else if longest.is_some_and(|longest| longest < least) {
            return Err(invalid(format!(
                "`rejoin_after` must be at least {least:?} plus the drift margin, so that all leases have \
                 run out"
            )));
        } else {
            return Ok(());
        };
        Err(invalid(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_query_says_is_set() {
        let query = "prefix=shop&claim_window=500ms&timeout=1m&replicas=2&allow_eviction=true&protocol=resp3";
        let config = Config::from_url(&format!("redis://h?{query}")).unwrap();
        assert_eq!((config.prefix.as_deref(), config.replicas), (Some("shop"), 2));
        assert_eq!(config.window, Some(Duration::from_millis(500)));
        assert!(config.allow_eviction && config.timeout == Duration::from_secs(60));
        let config = Config::from_url("redis+unix:///s?db=3&user=bob&pass=hunter2&recipe=plain").unwrap();
        assert!(config.is_plain() && !format!("{config:?}").contains("hunter2"));
    }

    #[test]
    fn an_unknown_key_is_named_with_the_nearest_and_a_value_never() {
        let refused = |query: &str| {
            let e = Config::from_url(&format!("redis://h?{query}")).expect_err(query);
            assert_eq!(e.kind(), dlock_core::ErrorKind::InvalidInput, "{query}");
            assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
            e.to_string()
        };
        let message = refused("prefx=hunter2");
        assert!(
            message.contains("`prefx`") && message.contains("`prefix`"),
            "{message}"
        );
        for (query, says) in [
            ("hunter2@h=1", "is not known"),
            ("protocol=resp2", "RESP2"),
            ("pass=hunter2", "sockets"),
            ("timeout=hunter2", "30s"),
            ("prefix=a&prefix=hunter2", "twice"),
            ("replicas=0", "above zero"),
            ("prefix", "key=value"),
            ("recipe=hunter2", "plain"),
            ("recipe=plain&replicas=1", "no replicas"),
        ] {
            let message = refused(query);
            assert!(message.contains(says), "{query}: {message}");
        }
    }
}
