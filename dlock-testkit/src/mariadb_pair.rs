//! A primary of MariaDB and its replica behind one address, as behind a virtual IP or a name: a client sees a
//! server that is gone and comes back, and it is another one.

use std::io;
use std::time::Duration;

use crate::mariadb::{KEEPER, MariaDbOptions, MariaDbServer};
use crate::postgres::ReadOnly;
use crate::postgres_pair::Following;
use crate::proxy::Proxy;
use crate::until::until;

const LONG: Duration = Duration::from_secs(30);

/// Longer than a test takes: nothing is answered that the replica does not have.
const NO_LIMIT: &str = "600000";

/// Two servers and the address of the primary, whichever it is.
#[derive(Debug)]
pub struct MariaDbPair {
    /// Closed before they are.
    proxy: Proxy,
    first: MariaDbServer,
    second: MariaDbServer,
}

impl MariaDbPair {
    /// The second one follows the first, and has what that has.
    ///
    /// # Errors If a program is not installed, or a server does not start.
    pub fn start(following: Following) -> io::Result<Self> {
        let semi = match following {
            Following::InStep => "ON",
            Following::Behind => "OFF",
        };
        let first = MariaDbOptions::new()
            .setting("server_id", "1")
            .setting("log_bin", "log")
            .setting("rpl_semi_sync_master_wait_point", "AFTER_SYNC")
            .setting("rpl_semi_sync_master_timeout", NO_LIMIT);
        let second = MariaDbOptions::new()
            .setting("server_id", "2")
            .setting("read_only", "ON")
            .setting("rpl_semi_sync_slave_enabled", semi);
        let second = MariaDbServer::with(second)?;
        let first = MariaDbServer::with(first)?;
        let (user, password) = KEEPER;
        let port = first.address().port();
        second.ask(&format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = '{user}', \
                MASTER_PASSWORD = '{password}', \
             MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1; START SLAVE"
        ))?;
        let pair = Self {
            proxy: Proxy::start(first.address())?,
            first,
            second,
        };
        pair.catch_up()?;
        if following == Following::InStep {
            // Not before somebody follows: its start writes, and would wait for that.
            pair.first.ask("SET GLOBAL rpl_semi_sync_master_enabled = ON")?;
            until("it waits for the replica", LONG, || {
                Ok(pair.first.status("Rpl_semi_sync_master_clients")? == 1)
            })?;
        }
        Ok(pair)
    }

    /// The address of the primary.
    pub fn url(&self) -> String {
        let there = self.first.address().to_string();
        self.first
            .url()
            .replace(&there, &self.proxy.address().to_string())
    }

    /// The first primary.
    pub fn first(&self) -> &MariaDbServer {
        &self.first
    }

    /// The first replica.
    pub fn second(&self) -> &MariaDbServer {
        &self.second
    }

    /// The replica has all that was written until now.
    ///
    /// # Errors
    /// If it does not come to that.
    pub fn catch_up(&self) -> io::Result<()> {
        let end = self.first.ask("SELECT @@gtid_binlog_pos")?;
        self.wait_for(&end)
    }

    fn wait_for(&self, end: &str) -> io::Result<()> {
        let limit = LONG.as_secs();
        let there = format!("SELECT MASTER_GTID_WAIT('{end}', {limit})");
        match self.second.number(&there)? {
            0 => Ok(()),
            _ => Err(io::Error::other(format!("the replica did not come to {end}"))),
        }
    }

    /// Stops replication: the replica will not have later writes.
    pub fn part(&self) -> io::Result<()> {
        self.second.ask("STOP SLAVE IO_THREAD").map(drop)
    }

    /// The primary is killed, and its replica takes its place and address, when it has done what it had heard
    /// of.
    ///
    /// # Errors
    /// If it does not.
    pub fn fail_over(&self) -> io::Result<()> {
        self.first.crash()?;
        self.second.ask("STOP SLAVE IO_THREAD")?;
        // Its thread that writes may not have looked at what the other one has just heard.
        let status = self.second.ask("SHOW SLAVE STATUS\\G")?;
        // Values without names: that comes after the word for how it follows.
        let heard = status.lines().skip_while(|line| *line != "Slave_Pos").nth(1);
        self.wait_for(heard.ok_or_else(|| io::Error::other(format!("no position in {status}")))?)?;
        self.second.ask("STOP SLAVE; RESET SLAVE ALL")?;
        self.second.set_read_only(ReadOnly::Off)?;
        self.proxy.lead_to(self.second.address());
        Ok(())
    }
}
