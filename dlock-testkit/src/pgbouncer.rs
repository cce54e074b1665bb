//! One PgBouncer before a PostgreSQL server.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;

use crate::place::Folder;
use crate::ports::Port;
use crate::postgres::{DATABASE, KEEPER, PostgresServer, psql, psql_of};
use crate::process::Process;
use crate::until::until;

const START: Duration = Duration::from_secs(30);
const STOP: Duration = Duration::from_secs(10);

/// How often another port is tried where somebody who knows nothing of our claims was faster.
const PORTS: u32 = 5;

/// Who runs it where the tests are run by root: Debian's package makes no user of its own for it.
const USER: &str = "postgres";

/// For how long a program has one connection to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// As long as it is connected.
    Session,
    /// For a transaction.
    Transaction,
}

/// A pooler, killed when it is dropped. The server before which it stands may come and go.
#[derive(Debug)]
pub struct PgBouncer {
    process: Process,
    programs: PathBuf,
    server: SocketAddr,
    mode: PoolMode,
    size: u32,
    port: Mutex<Port>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PgBouncer {
    /// A pooler before that server, with at most `size` connections to it for each user, which answers.
    ///
    /// Users of the server are known to it if they are the tests' own.
    ///
    /// # Errors If it is not installed, or does not start; with its log.
    pub fn start(server: &PostgresServer, mode: PoolMode, size: u32) -> io::Result<Self> {
        let folder = Folder::new("pgbouncer")?;
        let (user, password) = KEEPER;
        std::fs::write(folder.file("users.txt"), format!("\"{user}\" \"{password}\"\n"))?;
        let file: [OsString; 1] = [folder.file("pgbouncer.ini").into()];
        let pooler = Self {
            process: Process::new("pgbouncer", folder, "pgbouncer", &[], &file)?.run_by(USER),
            programs: psql_of(server).to_owned(),
            server: server.address(),
            mode,
            size,
            port: Mutex::new(Port::free()?),
        };
        for n in 1.. {
            pooler.configure()?;
            match pooler.start_again() {
                Err(_) if n < PORTS && pooler.process.log().contains("Address already in use") => {
                    *lock(&pooler.port) = Port::free()?;
                }
                started => {
                    started?;
                    break;
                }
            }
        }
        Ok(pooler)
    }

    fn configure(&self) -> io::Result<()> {
        let folder = self.process.folder();
        let mode = match self.mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
        };
        // What drivers say when they connect and it does not know is an error to it, unless it is told to
        // pass it over.
        let text = format!(
            "[databases]\n{DATABASE} = host={} port={}\n\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port \
                = {}\nunix_socket_dir =\n\
             auth_type = md5\nauth_file = {}\nadmin_users = {}\npool_mode = \
             {mode}\ndefault_pool_size = {}\n\
             max_client_conn = 1000\nserver_login_retry = 0.1\nignore_startup_parameters = \
             extra_float_digits\n",
            self.server.ip(),
            self.server.port(),
            lock(&self.port).number(),
            folder.file("users.txt").display(),
            KEEPER.0,
            self.size,
        );
        std::fs::write(folder.file("pgbouncer.ini"), text)
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        lock(&self.port).address()
    }

    /// The address of the server's database by way of it as a URL, as a user with all rights.
    pub fn url(&self) -> String {
        let (user, password) = KEEPER;
        format!("postgres://{user}:{password}@{}/{DATABASE}", self.address())
    }

    /// The id of its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Its log, over all its starts.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// A command of its console, such as `SHOW POOLS`, `PAUSE`, `RESUME`, `KILL dlock`.
    ///
    /// # Errors Its error, or that it did not answer.
    pub fn ask(&self, command: &str) -> io::Result<String> {
        let port = lock(&self.port).number();
        psql(&self.programs, port, "pgbouncer", command)
    }

    /// What the server answers by way of it.
    ///
    /// # Errors
    /// As [`PostgresServer::ask`].
    pub fn ask_server(&self, sql: &str) -> io::Result<String> {
        let port = lock(&self.port).number();
        psql(&self.programs, port, DATABASE, sql)
    }

    /// Starts it on the same port; returns when it answers.
    ///
    /// # Errors If it runs already, or does not start; with its log.
    pub fn start_again(&self) -> io::Result<()> {
        self.process.start()?;
        let mut ended = None;
        let ready = until("the pooler answers", START, || {
            ended = self.process.ended()?;
            // One that found its port taken ends.
            Ok(ended.is_some() || !self.ask("SHOW VERSION")?.is_empty())
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

    /// Starts it anew so that it passes over the `options` that programs connect with, which it refuses
    /// otherwise.
    pub fn restart_deaf_to_options(&self) -> io::Result<()> {
        let file = self.process.folder().file("pgbouncer.ini");
        let known = std::fs::read_to_string(&file)?;
        let text = known.replace("extra_float_digits\n", "extra_float_digits,options\n");
        std::fs::write(&file, text)?;
        self.restart()
    }

    /// Kills it (SIGKILL): connections to both sides break.
    pub fn crash(&self) -> io::Result<()> {
        self.process.kill()
    }

    /// Ends it at once, as an operator does (SIGTERM).
    ///
    /// # Errors If it does not run, or does not end in time; then it was killed.
    pub fn stop_in_order(&self) -> io::Result<()> {
        self.process.end(Signal::TERM, STOP)
    }

    /// Ends it, and starts it again.
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
