//! Opening servers for plain locks.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dlock_core::spi::Unanswered;
use dlock_core::{Result, Runtime};
use redis::Client;

use super::{Plain, PlainLock, Scripts, capabilities};
use crate::address::Address;
use crate::failure::nothing_done;
use crate::link::Link;
use crate::lock::invalid;
use crate::open::{Builder, own};
use crate::pushes::Pushes;
use crate::single::Source;

impl Builder {
    /// Opens the server, or the servers, of that URL for [`PlainLock`]s, which other clients of Redis know. All forms of [`open`](Self::open) are
    /// taken. The prefix is empty unless set, and may be any text without blanks, up to 64 bytes.
    ///
    /// # Cancel safety
    /// Dropped before it is done, nothing is left but a connection that is closed when it is made.
    ///
    /// # Errors
    /// As [`open`](Self::open); `InvalidInput` also for a claim window or replicas, which plain locks do not have.
    pub async fn open_plain(self, url: &str, runtime: Arc<dyn Runtime>) -> Result<PlainLock> {
        self.check_plain()?;
        let address = Address::parse(url)?;
        let at: Arc<str> = address.to_string().into();
        #[cfg(feature = "tls")]
        if address.tls {
            crate::open::choose_provider();
        }
        let (pushes, scripts) = (Pushes::new(false), Scripts::new());
        let way = self.way(address.is_cluster(), &runtime, scripts.all(), &pushes);
        let link = self.link(&address, &at, &way)?;
        self.finish_plain(link, at, scripts, pushes).await
    }

    /// Opens the server of a client that is there already for [`PlainLock`]s, with its credentials and its certificates. A connection of its own is
    /// made.
    ///
    /// # Errors
    /// As [`open_plain`](Self::open_plain).
    pub async fn open_plain_client(self, client: Client, runtime: Arc<dyn Runtime>) -> Result<PlainLock> {
        self.check_plain()?;
        let (client, at) = own(client)?;
        let (pushes, scripts) = (Pushes::new(false), Scripts::new());
        let way = self.way(false, &runtime, scripts.all(), &pushes);
        let link = Link::Single(way.line(Source::Server(Box::new(client))));
        self.finish_plain(link, at, scripts, pushes).await
    }

    /// Checks the options and the URL for [`open_plain`](Self::open_plain), without a connection.
    ///
    /// # Errors
    /// `InvalidInput` if one of them is wrong, `Unsupported` if the URL is of a form whose feature is not enabled.
    pub fn check_plain_url(&self, url: &str) -> Result<()> {
        self.check_plain()?;
        Address::parse(url).map(drop)
    }

    async fn finish_plain(
        self,
        link: Link,
        at: Arc<str>,
        scripts: Scripts,
        pushes: Arc<Pushes>,
    ) -> Result<PlainLock> {
        link.ready().await.map_err(|e| nothing_done(e, &at))?;
        Ok(PlainLock(Arc::new(Plain {
            link,
            at,
            prefix: self.prefix.unwrap_or_else(|| "".into()),
            scripts,
            pushes,
            unanswered: Unanswered::default(),
            capabilities: capabilities(),
            closed: AtomicBool::new(false),
        })))
    }

    fn check_plain(&self) -> Result<()> {
        let refused = |what: &str| Err(invalid(what.to_owned()));
        if self.window.is_some() {
            return refused("a plain lock has no hand-over, and so no claim window");
        }
        if self.replicas > 0 {
            return refused("a plain lock is acknowledged by no replicas");
        }
        if self.rejoin.is_some() {
            return refused("a plain lock is no member of a quorum, which `rejoin_after` is for");
        }
        let prefix = self.prefix.as_deref().unwrap_or_default();
        if prefix.len() > 64 || !prefix.bytes().all(|b| b.is_ascii_graphic()) {
            return refused("the prefix of plain locks is text without blanks, 64 bytes at most");
        }
        self.check_timeout()
    }
}

impl PlainLock {
    /// Opens the server of that URL as it is usually done.
    ///
    /// # Errors
    /// As [`Builder::open_plain`].
    pub async fn open(url: &str, runtime: Arc<dyn Runtime>) -> Result<Self> {
        Builder::default().open_plain(url, runtime).await
    }
}
