//! One PostgreSQL server.
//!
//! It refuses to run as root: then the user of Debian's package runs it. It has one process for each
//! connection, and all of them must be killed or paused: the children go on for a while without the parent,
//! and answer.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::clock::Clock;
use crate::place::Folder;
use crate::ports::Port;
use crate::process::{Process, as_user, run};
use crate::until::until;

/// How long a start may take, on a machine that has much else to do; after a crash it reads its log first.
const START: Duration = Duration::from_secs(60);

const STOP: Duration = Duration::from_secs(20);

/// How long it may take to end without order.
const AT_ONCE: Duration = Duration::from_secs(5);

/// How often another port is tried where somebody who knows nothing of our claims was faster.
const PORTS: u32 = 5;

/// Who runs it where the tests are run by root.
const USER: &str = "postgres";

/// The superuser of the tests. The password is no secret.
pub(crate) const KEEPER: (&str, &str) = ("keeper", "of-the-tests");

/// The database that is there.
pub(crate) const DATABASE: &str = "dlock";

/// How the fixtures' own connections call themselves.
const HANDS: &str = "hands of the tests";

/// How a server is to be.
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    durable: bool,
    own_clock: bool,
    settings: Vec<(String, String)>,
}

impl PostgresOptions {
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

    /// A setting of `postgresql.conf`, such as `idle_session_timeout`, `1s`.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// A PostgreSQL server, killed when it is dropped.
#[derive(Debug)]
pub struct PostgresServer {
    process: Process,
    programs: PathBuf,
    options: PostgresOptions,
    clock: Option<Clock>,
    port: Mutex<Port>,
    stopped: Mutex<Option<Stopped>>,
}

/// Processes that stand still, and who ends them should the test program be killed meanwhile: no signal
/// reaches them otherwise.
#[derive(Debug)]
struct Stopped {
    all: Vec<Pid>,
    guardian: Child,
}

/// Reads until the test program, which alone can write to it, has ended; however it does.
const END: &str = r#"cat >/dev/null; kill -KILL "$@""#;

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where Debian keeps the programs of the newest version that is installed.
fn programs() -> io::Result<PathBuf> {
    let version = |path: &Path| {
        let name = path.parent()?.file_name()?.to_str()?;
        name.parse::<u32>().ok()
    };
    let all = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let bins = all.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    let whole = bins.filter(|bin| bin.join("postgres").is_file() && bin.join("initdb").is_file());
    whole.max_by_key(|bin| version(bin)).ok_or_else(|| {
        let text = "PostgreSQL is not installed: run scripts/services, which installs what the tests need";
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}

impl PostgresServer {
    /// A server as [`PostgresOptions::new`] has it, which answers.
    ///
    /// # Errors If a program is not installed, or the server does not start; with its log.
    pub fn start() -> io::Result<Self> {
        Self::with(PostgresOptions::new())
    }

    /// A server with those options, which answers.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn with(options: PostgresOptions) -> io::Result<Self> {
        let server = Self::of(options, |programs, folder| {
            folder.data("postgres", USER, |folder| {
                let (user, password) = KEEPER;
                let secret = folder.file("password");
                std::fs::write(&secret, password)?;
                let mut init = as_user(Some(USER), &programs.join("initdb"))?;
                init.arg("-D").arg(folder.file("data"));
                init.arg("-U").arg(user).arg("--pwfile").arg(&secret);
                // Tests log in by the thousand, and a login by SCRAM hashes thousands of times.
                init.args(["-A", "md5", "-E", "UTF8", "--locale=C", "--no-sync"]);
                run(init.current_dir(folder.path())).map(drop)
            })
        })?;
        server.ask_in("postgres", &format!("CREATE DATABASE {DATABASE}"))?;
        Ok(server)
    }

    /// A standby, which takes no writes and follows that one, and has whatever that had when it was copied.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn standby_of(primary: &Self) -> io::Result<Self> {
        Self::of(primary.options.clone(), |programs, folder| {
            let (user, password) = KEEPER;
            let data = folder.empty("data", USER)?;
            let mut copy = as_user(Some(USER), &programs.join("pg_basebackup"))?;
            copy.args(["-h", "127.0.0.1", "-U", user, "-w", "-p"]);
            copy.arg(primary.address().port().to_string());
            copy.arg("-D").arg(&data);
            // It follows the server that it was copied from; it is copied without a wait for the disk.
            copy.args(["-R", "-X", "stream", "-c", "fast", "--no-sync"]);
            copy.env("PGPASSWORD", password);
            run(copy.current_dir(folder.path()))?;
            Ok(data)
        })
    }

    /// One whose data that makes, and which answers.
    fn of(
        options: PostgresOptions,
        data: impl FnOnce(&Path, &Folder) -> io::Result<PathBuf>,
    ) -> io::Result<Self> {
        let programs = programs()?;
        let folder = Folder::new("postgres")?;
        let data = data(&programs, &folder)?;
        let arguments: [OsString; 2] = ["-D".into(), data.into()];
        let program = programs.join("postgres");
        let clock = options.own_clock.then(|| Clock::new(&folder)).transpose()?;
        let environment = clock.as_ref().map(Clock::environment).unwrap_or_default();
        let server = Self {
            process: Process::new("postgres", folder, &program, &environment, &arguments)?.run_by(USER),
            programs,
            options,
            clock,
            port: Mutex::new(Port::free()?),
            stopped: Mutex::new(None),
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

    /// Adds to the end of its configuration, where the last word counts.
    fn configure(&self) -> io::Result<()> {
        let mut text = format!(
            "\nlisten_addresses = '127.0.0.1'\nport = {}\nunix_socket_directories = ''\nmax_connections = \
                200\n\
             shared_buffers = 32MB\ndynamic_shared_memory_type = mmap\nlogging_collector = \
             off\nlog_line_prefix = '%m [%p] '\n",
            lock(&self.port).number()
        );
        if !self.options.durable {
            // Each commit is written all the same (`synchronous_commit`): what was answered outlives a crash
            // of the processes.
            text.push_str("fsync = off\nfull_page_writes = off\n");
        }
        for (name, value) in &self.options.settings {
            text.push_str(&format!("{name} = '{}'\n", value.replace('\'', "''")));
        }
        let file = self.data().join("postgresql.conf");
        let before = std::fs::read_to_string(&file)?;
        std::fs::write(&file, before + &text)
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
        format!("postgres://{user}:{password}@{}/{DATABASE}", self.address())
    }

    /// The number of its first process, while there is one.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Its own wall clock.
    ///
    /// # Errors
    /// Unless it was started with one.
    pub fn clock(&self) -> io::Result<&Clock> {
        self.clock.as_ref().ok_or_else(|| {
            io::Error::other("this server has the clock of the machine: PostgresOptions::own_clock")
        })
    }

    /// Its log, over all its starts.
    pub fn log(&self) -> String {
        self.process.log()
    }

    // --- what is asked of it ---

    /// What statements answer, on a connection of their own, as a user who may do everything: a line for each
    /// row, `|` between its values, nothing for NULL. Several statements are one transaction.
    ///
    /// # Errors The server's error, or that it did not answer.
    pub fn ask(&self, sql: &str) -> io::Result<String> {
        self.ask_in(DATABASE, sql)
    }

    /// As [`ask`](Self::ask), in a database of that name.
    pub fn ask_in(&self, database: &str, sql: &str) -> io::Result<String> {
        let port = lock(&self.port).number();
        psql(&self.programs, port, database, sql)
    }

    /// The one number that a statement answers.
    ///
    /// # Errors
    /// As [`ask`](Self::ask); and if it is none.
    pub fn number(&self, sql: &str) -> io::Result<i64> {
        self.ask(sql)?.parse().map_err(io::Error::other)
    }

    /// The processes that serve connections of programs, except those that ask here: the last one may be
    /// ending still.
    pub fn backends(&self) -> io::Result<Vec<i32>> {
        let text = self.ask(&format!(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name <> \
             '{HANDS}'"
        ))?;
        text.lines()
            .map(|n| n.parse().map_err(io::Error::other))
            .collect()
    }

    /// Ends a connection from the server's side, as an operator does, and waits until it has ended.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn terminate(&self, backend: i32) -> io::Result<()> {
        match self
            .ask(&format!("SELECT pg_terminate_backend({backend}, 5000)"))?
            .as_str()
        {
            "t" => Ok(()),
            _ => Err(io::Error::other(format!("no process {backend} was ended"))),
        }
    }

    /// Ends the present statement of a connection, without waiting.
    pub fn cancel(&self, backend: i32) -> io::Result<()> {
        self.ask(&format!("SELECT pg_cancel_backend({backend})"))?;
        Ok(())
    }

    /// Waits until that many connections wait for a lock of the server.
    pub fn wait_until_blocked(&self, count: i64, limit: Duration) -> io::Result<()> {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        until(&format!("{count} or more wait for locks"), limit, || {
            Ok(self.number(sql)? >= count)
        })
    }

    // --- what is done to it ---

    /// Changes a setting of the server that takes effect without a restart, for what begins from here on.
    ///
    /// # Errors
    /// If the server does not show that value in a while: say it as the server would, `2s` and not `2000`.
    pub fn set(&self, name: &str, value: &str) -> io::Result<()> {
        // Not in one transaction with another statement, which ALTER SYSTEM refuses.
        let quoted = value.replace('\'', "''");
        self.ask(&format!("ALTER SYSTEM SET {name} = '{quoted}'"))?;
        self.ask("SELECT pg_reload_conf()")?;
        until("the setting is in effect", Duration::from_secs(5), || {
            Ok(self.ask(&format!("SHOW {name}"))? == value)
        })
    }

    /// Whether new transactions may write, unless they ask to.
    pub fn set_read_only(&self, read_only: ReadOnly) -> io::Result<()> {
        let value = match read_only {
            ReadOnly::On => "on",
            ReadOnly::Off => "off",
        };
        self.set("default_transaction_read_only", value)
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
            let lines = std::fs::read_to_string(self.data().join("postmaster.pid"))?;
            let is_it = lines.lines().next() == pid.as_deref();
            Ok(is_it && self.ask_in("postgres", "SELECT 1")? == "1")
        });
        let ready = match ended {
            Some(status) => Err(io::Error::other(status.to_string())),
            None => ready,
        };
        ready.map_err(|e| {
            let trouble = self.process.trouble(e);
            let _ = self.crash();
            trouble
        })
    }

    /// All its processes, the first one first. That one stands still when this returns, so that it makes no
    /// more of them.
    fn hold_still(&self) -> io::Result<Vec<Pid>> {
        self.process.pause()?;
        let first = self.process.pid().and_then(|n| Pid::from_raw(n.try_into().ok()?));
        let first = first.ok_or_else(|| io::Error::other("postgres does not run"))?;
        let mut all = vec![first];
        all.extend(children(first)?);
        Ok(all)
    }

    /// Kills it as by a power cut of all its processes (SIGKILL). Nothing to do if it is down.
    pub fn crash(&self) -> io::Result<()> {
        if self.process.pid().is_none() {
            return Ok(());
        }
        let mut all = self.forget_stopped();
        // One that has ended cannot be paused, and has no children.
        if all.is_empty() && self.process.ended()?.is_none() {
            all = self.hold_still()?;
        }
        self.process.kill()?;
        let children = all.get(1..).unwrap_or_default();
        for child in children {
            // It may have noticed, and ended.
            let _ = kill_process(*child, Signal::KILL);
        }
        // They are orphans now, and their new parent collects them.
        until("its processes are gone", STOP, || {
            Ok(!children.iter().any(|child| runs(*child)))
        })
    }

    /// Gives back the piece of shared memory of one that was killed and not started again, which would give
    /// it back itself. One that ended in order has no such file any more.
    fn free_memory(&self) {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let number = file
            .lines()
            .nth(6)
            .and_then(|line| line.split_whitespace().nth(1));
        if let Some(number) = number {
            let _ = run(Command::new("ipcrm").args(["-m", number]));
        }
    }

    /// Ends it as an operator does who does not wait for programs (`pg_ctl stop -m fast`, SIGINT):
    /// transactions are rolled back.
    ///
    /// # Errors If it does not run, or does not end in time; then it was killed.
    pub fn stop_in_order(&self) -> io::Result<()> {
        if lock(&self.stopped).is_some() {
            self.go_on()?;
        }
        self.process.end(Signal::INT, STOP)
    }

    /// Stops it in order, and starts it again.
    pub fn restart(&self) -> io::Result<()> {
        self.stop_in_order()?;
        self.start_again()
    }

    /// Stops all its processes (SIGSTOP): connections stay, and nothing is answered. Returns when they stand
    /// still.
    pub fn pause(&self) -> io::Result<()> {
        let mut stopped = lock(&self.stopped);
        let all = self.hold_still()?;
        let mut command = Command::new("sh");
        command.args(["-c", END, "sh"]);
        command.args(all.iter().map(|pid| pid.as_raw_nonzero().to_string()));
        command
            .stdin(Stdio::piped())
            // An interrupt from the keyboard ends the test program first.
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        *stopped = Some(Stopped {
            guardian: command.spawn()?,
            all: all.clone(),
        });
        for child in &all[1..] {
            // It may have ended meanwhile.
            let _ = kill_process(*child, Signal::STOP);
        }
        until("its processes stand still", Duration::from_secs(5), || {
            Ok(all[1..]
                .iter()
                .all(|child| matches!(state(*child), None | Some('T' | 'Z' | 'X'))))
        })
    }

    /// Lets them go on, the first one last: it sees to what its children have to say.
    pub fn go_on(&self) -> io::Result<()> {
        let all = self.forget_stopped();
        for pid in all.iter().rev() {
            let _ = kill_process(*pid, Signal::CONT);
        }
        Ok(())
    }

    /// Sends home who would have killed them, before that can take this for the end of the program.
    fn forget_stopped(&self) -> Vec<Pid> {
        let Some(mut stopped) = lock(&self.stopped).take() else {
            return Vec::new();
        };
        // Its `cat` is another process, which ends when the pipe is closed, and then nobody reads on.
        let _ = stopped.guardian.kill();
        let _ = stopped.guardian.wait();
        stopped.all
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        let _ = self.go_on();
        // At once, and yet it gives back a piece of shared memory, which would outlive a process that is
        // killed.
        let _ = self.process.end(Signal::QUIT, AT_ONCE);
        let _ = self.crash();
        self.free_memory();
    }
}

/// Whether a server takes writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOnly {
    On,
    Off,
}

/// What a command line client answers.
pub(crate) fn psql(programs: &Path, port: u16, database: &str, sql: &str) -> io::Result<String> {
    let (user, password) = KEEPER;
    let mut command = Command::new(programs.join("psql"));
    command
        .args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-w",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            "127.0.0.1",
        ])
        .args(["-p", &port.to_string(), "-U", user, "-d", database, "-c", sql])
        .env("PGPASSWORD", password)
        .env("PGCONNECT_TIMEOUT", "10")
        .env("PGAPPNAME", HANDS);
    run(&mut command)
}

/// Where its programs are, for who speaks to a pooler before it.
pub(crate) fn psql_of(server: &PostgresServer) -> &Path {
    &server.programs
}

/// What a process does: `S` sleeps, `T` stands still, `Z` has ended; `None` if there is none.
fn state(pid: Pid) -> Option<char> {
    let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name before it may have spaces and brackets.
    status.rsplit(") ").next()?.chars().next()
}

fn runs(pid: Pid) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

/// The processes that this one has started and that have not ended.
fn children(of: Pid) -> io::Result<Vec<Pid>> {
    let of = of.as_raw_nonzero().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        // One that ends between the two looks has nothing to be read.
        let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        let status = status.unwrap_or_default();
        let parent = status.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
        if parent == Some(of.as_str()) {
            found.push(pid);
        }
    }
    Ok(found)
}
