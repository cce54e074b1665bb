//! One MariaDB server.
//!
//! It is not run as root: then it is run by the user of Debian's package, from the start, since a process
//! that changes its user later would outlive the test program.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;

use crate::clock::Clock;
use crate::place::Folder;
use crate::ports::Port;
use crate::postgres::ReadOnly;
use crate::process::{Process, as_user, find, run};
use crate::until::until;

/// How long a start may take, on a machine that has much else to do; after a crash it reads its log first.
const START: Duration = Duration::from_secs(60);

/// How long it may take to end in order: it writes what it has.
const STOP: Duration = Duration::from_secs(30);

/// How often another port is tried where somebody who knows nothing of our claims was faster.
const PORTS: u32 = 5;

/// Who runs it where the tests are run by root.
const USER: &str = "mysql";

/// Its log is copied for each server, and is 96 MB by default.
const LOG_SIZE: &str = "--innodb-log-file-size=16M";

/// The user of the tests, who may do everything except write while the server is read-only. The password is
/// no secret.
pub(crate) const KEEPER: (&str, &str) = ("keeper", "of-the-tests");

/// The database that is there.
const DATABASE: &str = "dlock";

/// How a server is to be.
#[derive(Clone, Debug, Default)]
pub struct MariaDbOptions {
    durable: bool,
    own_clock: bool,
    settings: Vec<(String, String)>,
}

impl MariaDbOptions {
    /// A server that does not wait for the disk: its answers survive a crash of the server, not of the
    /// machine.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits for the disk, as servers do.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Makes its wall clock settable.
    #[must_use]
    pub fn own_clock(mut self) -> Self {
        self.own_clock = true;
        self
    }

    /// A setting, such as `innodb_lock_wait_timeout`, `1`.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// A MariaDB server, killed when it is dropped.
#[derive(Debug)]
pub struct MariaDbServer {
    process: Process,
    options: MariaDbOptions,
    clock: Option<Clock>,
    port: Mutex<Port>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MariaDbServer {
    /// A server as [`MariaDbOptions::new`] has it, which answers.
    ///
    /// # Errors If a program is not installed, or the server does not start; with its log.
    pub fn start() -> io::Result<Self> {
        Self::with(MariaDbOptions::new())
    }

    /// A server with those options, which answers.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn with(options: MariaDbOptions) -> io::Result<Self> {
        let folder = Folder::new("mariadb")?;
        // Its own: each server removes what looks like a temporary table of one that crashed, also another
        // server's.
        folder.empty("tmp", USER)?;
        folder.data("mariadb", USER, |folder| {
            // As that user, so that it changes nothing outside of the folder.
            let mut init = as_user(Some(USER), &find("mariadb-install-db")?)?;
            init.arg("--no-defaults").arg(datadir(&folder.file("data")));
            init.args([
                LOG_SIZE,
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
            ]);
            init.env("TMPDIR", folder.empty("tmp", USER)?);
            run(init.current_dir(folder.path())).map(drop)
        })?;
        let first = folder.file("first.sql");
        std::fs::write(&first, users())?;
        let file = folder.file("my.cnf");
        let mut arguments: Vec<OsString> = Vec::new();
        let mut word = OsString::from("--defaults-file=");
        word.push(&file);
        arguments.push(word);
        let clock = options.own_clock.then(|| Clock::new(&folder)).transpose()?;
        let environment = clock.as_ref().map(Clock::environment).unwrap_or_default();
        let server = Self {
            process: Process::new("mariadb", folder, "mariadbd", &environment, &arguments)?.run_by(USER),
            options,
            clock,
            port: Mutex::new(Port::free()?),
        };
        for n in 1.. {
            server.configure()?;
            match server.start_again() {
                Err(_) if n < PORTS && server.process.log().contains("Address already in use") => {
                    *lock(&server.port) = Port::free()?;
                }
                started => {
                    started?;
                    break;
                }
            }
        }
        Ok(server)
    }

    fn configure(&self) -> io::Result<()> {
        let folder = self.process.folder();
        let data = self.data();
        let mut text = format!(
            "[mariadbd]\ndatadir={data}\ntmpdir={temporary}\nport={port}\nbind-address=127.0.0.1\n\
             socket={data}/s.sock\npid-file={data}/m.pid\ninit-file={first}\nskip-name-resolve\n\
             character-set-server=utf8mb4\nmax-connections=300\ninnodb-buffer-pool-size=32M\n\
             {log_size}\n",
            log_size = LOG_SIZE.trim_start_matches('-'),
            data = data.display(),
            temporary = folder.file("tmp").display(),
            port = lock(&self.port).number(),
            first = folder.file("first.sql").display(),
        );
        if !self.options.durable {
            // It is written at each commit, and the disk has it some time later.
            text.push_str("innodb-flush-log-at-trx-commit=2\n");
        }
        for (name, value) in &self.options.settings {
            text.push_str(&format!("{name}={value}\n"));
        }
        std::fs::write(folder.file("my.cnf"), text)
    }

    fn data(&self) -> PathBuf {
        self.process.folder().file("data")
    }

    // --- where it is ---

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        lock(&self.port).address()
    }

    /// The address of its database as a URL, as a user who may do everything.
    pub fn url(&self) -> String {
        let (user, password) = KEEPER;
        self.url_of(user, password)
    }

    /// The address of its database as a URL, as that user.
    pub fn url_of(&self, user: &str, password: &str) -> String {
        format!("mysql://{user}:{password}@{}/{DATABASE}", self.address())
    }

    /// The id of its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Its own wall clock.
    ///
    /// # Errors
    /// Unless it was started with one.
    pub fn clock(&self) -> io::Result<&Clock> {
        self.clock.as_ref().ok_or_else(|| {
            io::Error::other("this server has the clock of the machine: MariaDbOptions::own_clock")
        })
    }

    /// Its log, over all its starts.
    pub fn log(&self) -> String {
        self.process.log()
    }

    // --- what is asked of it ---

    /// What statements answer, on a connection of their own, as a user who may do everything: a line for each
    /// row, tabulators between its values, the word NULL for what is none.
    ///
    /// # Errors The server's error, or that it did not answer.
    pub fn ask(&self, sql: &str) -> io::Result<String> {
        let (user, password) = KEEPER;
        let mut command = Command::new(find("mariadb")?);
        command
            .args(["--no-defaults", "-h127.0.0.1", "--connect-timeout=10", "-N", "-B"])
            .arg(format!("-P{}", lock(&self.port).number()))
            .arg(format!("-u{user}"))
            .args([DATABASE, "-e", sql])
            .env("MYSQL_PWD", password);
        run(&mut command)
    }

    /// The one number that a statement answers.
    ///
    /// # Errors
    /// As [`ask`](Self::ask); and if it is none.
    pub fn number(&self, sql: &str) -> io::Result<i64> {
        self.ask(sql)?.parse().map_err(io::Error::other)
    }

    /// A number of `SHOW GLOBAL STATUS`, such as `Questions`.
    ///
    /// # Errors
    /// As [`number`](Self::number).
    pub fn status(&self, name: &str) -> io::Result<i64> {
        let text = self.ask(&format!("SHOW GLOBAL STATUS LIKE '{name}'"))?;
        let value = text.split('\t').next_back().unwrap_or_default();
        value.parse().map_err(io::Error::other)
    }

    /// The numbers of the connections of programs, except the one that asks.
    pub fn connections(&self) -> io::Result<Vec<i64>> {
        let sql = "SELECT id FROM information_schema.processlist WHERE command <> 'Daemon' AND user <> \
            'system user' \
                   AND id <> connection_id()";
        let text = self.ask(sql)?;
        text.lines()
            .map(|n| n.parse().map_err(io::Error::other))
            .collect()
    }

    /// Ends a connection from the server's side, as an operator does, and waits until it has ended.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn kill_connection(&self, id: i64) -> io::Result<()> {
        self.ask(&format!("KILL {id}"))?;
        until("the connection has ended", Duration::from_secs(5), || {
            Ok(!self.connections()?.contains(&id))
        })
    }

    /// Ends the present statement of a connection, without waiting.
    pub fn kill_query(&self, id: i64) -> io::Result<()> {
        self.ask(&format!("KILL QUERY {id}")).map(drop)
    }

    /// Waits until that many transactions wait for a lock of a row.
    pub fn wait_until_blocked(&self, count: i64, limit: Duration) -> io::Result<()> {
        // Not from `innodb_trx`, which is a tenth of a second old for frequent readers.
        let sql = "SELECT variable_value FROM information_schema.global_status WHERE variable_name = \
            'INNODB_ROW_LOCK_CURRENT_WAITS'";
        until(&format!("{count} or more wait for locks"), limit, || {
            Ok(self.number(sql)? >= count)
        })
    }

    // --- what is done to it ---

    /// Whether it takes writes, from now on and until it is started again. Of some users only: who has
    /// `SUPER` or `READ ONLY ADMIN` may write.
    pub fn set_read_only(&self, read_only: ReadOnly) -> io::Result<()> {
        let value = match read_only {
            ReadOnly::On => "ON",
            ReadOnly::Off => "OFF",
        };
        self.ask(&format!("SET GLOBAL read_only = {value}")).map(drop)
    }

    /// Starts it on the same port, with what its folder has; returns when it answers.
    ///
    /// # Errors If it runs already, or does not start; with its log.
    pub fn start_again(&self) -> io::Result<()> {
        self.process.start()?;
        let pid = self.process.pid().map(|n| n.to_string());
        let mut ended = None;
        let ready = until("the server answers", START, || {
            ended = self.process.ended()?;
            if ended.is_some() {
                return Ok(true);
            }
            // Its own process, and nobody who had the port before it.
            let written = std::fs::read_to_string(self.data().join("m.pid"))?;
            Ok(Some(written.trim()) == pid.as_deref() && self.ask("SELECT 1")? == "1")
        });
        let ready = match ended {
            Some(status) => Err(io::Error::other(status.to_string())),
            None => ready,
        };
        ready.map_err(|e| {
            let trouble = self.process.trouble(e);
            let _ = self.process.kill();
            trouble
        })
    }

    /// Kills it (SIGKILL).
    pub fn crash(&self) -> io::Result<()> {
        self.process.kill()
    }

    /// Ends it as an operator does (SIGTERM): transactions are rolled back.
    ///
    /// # Errors If it does not run, or does not end in time; then it was killed.
    pub fn stop_in_order(&self) -> io::Result<()> {
        self.process.end(Signal::TERM, STOP)
    }

    /// Stops it in order, and starts it again.
    pub fn restart(&self) -> io::Result<()> {
        self.stop_in_order()?;
        self.start_again()
    }

    /// Pauses the process (SIGSTOP): connections stay open, and nothing is answered. Returns when it has
    /// stopped.
    pub fn pause(&self) -> io::Result<()> {
        self.process.pause()
    }

    /// Resumes it.
    pub fn go_on(&self) -> io::Result<()> {
        self.process.go_on()
    }
}

fn datadir(data: &std::path::Path) -> OsString {
    let mut word = OsString::from("--datadir=");
    word.push(data);
    word
}

/// What the server does at each start, before it lets anybody in. Each statement stands on a line of its own.
fn users() -> String {
    let (user, password) = KEEPER;
    format!(
        "CREATE DATABASE IF NOT EXISTS {DATABASE};\n\
         CREATE USER IF NOT EXISTS {user}@'%' IDENTIFIED BY '{password}';\n\
         GRANT ALL ON *.* TO {user}@'%' WITH GRANT OPTION;\n"
    )
}
