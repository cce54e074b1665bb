//! A primary of PostgreSQL and its standby behind one address, as behind a virtual IP or a name: a client
//! sees a server that is gone and comes back, and it is another one.

use std::io;
use std::time::Duration;

use crate::postgres::PostgresServer;
use crate::proxy::Proxy;
use crate::until::until;

const LONG: Duration = Duration::from_secs(30);

/// How the standby follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Following {
    /// Nothing is answered that it does not have on its disk.
    InStep,
    /// It has what was written a moment ago, or not.
    Behind,
}

/// Two servers and the address of the primary, whichever it is.
#[derive(Debug)]
pub struct PostgresPair {
    /// Closed before they are.
    proxy: Proxy,
    first: PostgresServer,
    second: PostgresServer,
}

impl PostgresPair {
    /// The second one follows the first, and has what that has.
    ///
    /// # Errors If a program is not installed, or a server does not start.
    pub fn start(following: Following) -> io::Result<Self> {
        let first = PostgresServer::start()?;
        let second = PostgresServer::standby_of(&first)?;
        if following == Following::InStep {
            // Not before the copy was made: the copy would wait for a standby of its own.
            first.set("synchronous_standby_names", "*")?;
        }
        let pair = Self {
            proxy: Proxy::start(first.address())?,
            first,
            second,
        };
        pair.wait_until_followed(following)?;
        Ok(pair)
    }

    fn wait_until_followed(&self, following: Following) -> io::Result<()> {
        let wanted = match following {
            Following::InStep => "sync",
            Following::Behind => "async",
        };
        until("the standby follows", LONG, || {
            let how = self.first.ask("SELECT sync_state FROM pg_stat_replication")?;
            Ok(how == wanted)
        })
    }

    /// The address of the primary.
    pub fn url(&self) -> String {
        let there = self.first.address().to_string();
        self.first
            .url()
            .replace(&there, &self.proxy.address().to_string())
    }

    /// The first primary.
    pub fn first(&self) -> &PostgresServer {
        &self.first
    }

    /// What was its standby.
    pub fn second(&self) -> &PostgresServer {
        &self.second
    }

    /// The standby has all that was written until now.
    ///
    /// # Errors
    /// If it does not come to that.
    pub fn catch_up(&self) -> io::Result<()> {
        let end = self.first.ask("SELECT pg_current_wal_lsn()")?;
        let there = format!("SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= '{end}'");
        until("the standby has all of it", LONG, || {
            Ok(self.first.number(&there)? == 1)
        })
    }

    /// The standby hears nothing more from here on: what is written now it will not have.
    ///
    /// # Errors
    /// If it goes on.
    pub fn part(&self) -> io::Result<()> {
        self.second.set("primary_conninfo", "")?;
        until("nobody follows", LONG, || {
            Ok(self.first.number("SELECT count(*) FROM pg_stat_replication")? == 0)
        })
    }

    /// The primary is killed, and its standby takes its place and address.
    ///
    /// # Errors
    /// If it does not.
    pub fn fail_over(&self) -> io::Result<()> {
        self.first.crash()?;
        // Answered when it takes writes.
        match self.second.ask("SELECT pg_promote()")?.as_str() {
            "t" => self.proxy.lead_to(self.second.address()),
            _ => return Err(io::Error::other("the standby was not promoted")),
        }
        Ok(())
    }
}
