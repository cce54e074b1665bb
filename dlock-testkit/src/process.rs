//! A server as a process: started, killed, stopped and continued, and gone when the test program is.
//!
//! # How it ends with the test program
//!
//! A test program that is killed runs no destructor. The kernel does it instead: `setpriv --pdeathsig KILL`
//! asks it to kill the server when its parent ends, and then becomes the server, so that the process has the
//! number that we know. Two details:
//!
//! * The signal comes when the *thread* that started the process ends, and the thread of a test ends with the
//!   test. So all servers are started by one thread that lives as long as the program.
//! * Should the program be killed before the kernel was asked, nobody would tell. So the shell between the
//!   two looks who its parent is *after* that, and goes on only if it is the program still.
//!
//! A watchdog process would do too, but it has to be told of each server, and could itself be killed. The
//! folders cannot be left to the kernel, so there is one for those (`place.rs`); if that is killed, a folder
//! stays and no process.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::place::Folder;
use crate::until::until;

/// Only if it is still the child of the test program, whose number comes first; then it becomes the server.
const GUARDED: &str = r#"test "$PPID" = "$0" && exec "$@""#;

/// How much of a log is shown.
const TAIL: usize = 40;

/// A program, and the process that runs it, if one does.
#[derive(Debug)]
pub struct Process {
    what: &'static str,
    words: Vec<OsString>,
    user: Option<&'static str>,
    folder: Folder,
    running: Mutex<Option<Child>>,
}

type Job = (Command, Sender<io::Result<Child>>);

/// Starts it from the thread that never ends.
fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, taken) = channel::<Job>();
        // If it cannot be started nobody answers, which is an error below.
        let _ = std::thread::Builder::new().name("servers".into()).spawn(move || {
            for (mut command, answer) in taken {
                let _ = answer.send(command.spawn());
            }
        });
        jobs
    });
    let (answer, answered) = channel();
    let nobody = || io::Error::other("the thread that starts servers is not there");
    spawner.send((command, answer)).map_err(|_| nobody())?;
    answered.recv().map_err(|_| nobody())?
}

/// Where a program is found, or what to do where it is not.
pub(crate) fn find(program: impl AsRef<Path>) -> io::Result<PathBuf> {
    let program = program.as_ref();
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Where Debian puts what administrators start, and users often have no path to.
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let mut found = places.map(|p| p.join(program)).filter(|p| p.is_file());
    found.next().ok_or_else(|| {
        let text = format!(
            "{} is not installed: run scripts/services, which installs what the tests need",
            program.display()
        );
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}

/// A command that is run by that user, if root runs the tests.
///
/// Both this and what asks for the signal at the parent's end are `setpriv`, one after the other and in that
/// order: the kernel forgets such a wish when a process changes its user.
///
/// # Errors
/// If `setpriv` is not installed.
pub(crate) fn as_user(user: Option<&str>, program: &Path) -> io::Result<Command> {
    match user {
        Some(user) if rustix::process::geteuid().is_root() => {
            let mut command = Command::new(find("setpriv")?);
            command
                .args(["--reuid", user, "--regid", user, "--init-groups", "--"])
                .arg(program);
            Ok(command)
        }
        _ => Ok(Command::new(program)),
    }
}

/// Gives a folder to that user, if root runs the tests; nobody else may look into it.
///
/// # Errors
/// If there is no such user, which is made by the package of the server.
pub(crate) fn give_to(user: &str, folder: &Path) -> io::Result<()> {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))?;
    if rustix::process::geteuid().is_root() {
        let mut command = Command::new("chown");
        run(command.arg(format!("{user}:")).arg(folder))?;
    }
    Ok(())
}

/// Runs a program to its end, and gives what it has said.
///
/// # Errors
/// If it cannot be run, or fails; with what it has said.
pub(crate) fn run(command: &mut Command) -> io::Result<String> {
    let what = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| io::Error::new(e.kind(), format!("{what} cannot be run: {e}")))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if output.status.success() {
        return Ok(said(&output.stdout));
    }
    let text = format!("{what}: {} {}", output.status, said(&output.stderr));
    Err(io::Error::other(text))
}

impl Process {
    /// A program that runs in that folder; not started yet.
    ///
    /// # Errors
    /// If it is not installed.
    pub fn new(
        what: &'static str,
        folder: Folder,
        program: impl AsRef<Path>,
        environment: &[(&str, OsString)],
        arguments: &[OsString],
    ) -> io::Result<Self> {
        let mut words: Vec<OsString> = vec!["env".into()];
        // For the server alone: the shell before it keeps the real clock.
        words.extend(environment.iter().map(|(name, value)| {
            let mut word = OsString::from(format!("{name}="));
            word.push(value);
            word
        }));
        words.push(find(program)?.into());
        words.extend_from_slice(arguments);
        Ok(Self {
            what,
            words,
            user: None,
            folder,
            running: Mutex::new(None),
        })
    }

    /// Run by that user where the tests are run by root, which some servers refuse to be.
    #[must_use]
    pub fn run_by(mut self, user: &'static str) -> Self {
        self.user = Some(user);
        self
    }

    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_file(&self) -> PathBuf {
        self.folder.file("log")
    }

    /// What it has written so far, over all its starts.
    pub fn log(&self) -> String {
        std::fs::read(self.log_file()).map_or_else(
            |e| format!("(no log: {e})"),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }

    /// An error with the end of its log.
    pub fn trouble(&self, what: impl std::fmt::Display) -> io::Error {
        io::Error::other(format!(
            "{}: {what}; the end of its log:\n{}",
            self.what,
            self.tail()
        ))
    }

    fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }

    /// Starts it. Whether it is ready is for the caller to find out.
    ///
    /// # Errors
    /// If it runs already, or the system refuses.
    pub fn start(&self) -> io::Result<()> {
        let mut running = self.lock();
        if running.is_some() {
            return Err(io::Error::other(format!("{} runs already", self.what)));
        }
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file())?;
        let mut command = as_user(self.user, &find("setpriv")?)?;
        command
            .args(["--pdeathsig", "KILL", "--", "sh", "-c", GUARDED])
            .arg(std::process::id().to_string())
            .args(&self.words)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(File::try_clone(&log)?)
            .stderr(log)
            // An interrupt from the keyboard ends the test, and the test's end ends this.
            .process_group(0);
        *running = Some(spawn(command)?);
        Ok(())
    }

    /// The number of the process, if there is one.
    pub fn pid(&self) -> Option<u32> {
        self.lock().as_ref().map(Child::id)
    }

    /// How it ended, if it was not ended here.
    pub fn ended(&self) -> io::Result<Option<ExitStatus>> {
        let mut running = self.lock();
        match &mut *running {
            Some(child) => child.try_wait(),
            None => Ok(None),
        }
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let running = self.lock();
        let gone = || io::Error::other(format!("{} does not run", self.what));
        let child = running.as_ref().ok_or_else(gone)?;
        Ok(kill_process(Pid::from_child(child), signal)?)
    }

    /// Kills it, stopped or not, and waits until it is gone. Nothing to do if it is already.
    pub fn kill(&self) -> io::Result<()> {
        let Some(mut child) = self.lock().take() else {
            return Ok(());
        };
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Asks it to end, and waits until it has.
    ///
    /// # Errors
    /// If it does not run, or goes on after the limit; then it was killed.
    pub fn end(&self, signal: Signal, limit: Duration) -> io::Result<()> {
        // A stopped process takes no signal but to be killed.
        self.signal(Signal::CONT)?;
        self.signal(signal)?;
        let ended = until("the server ends", limit, || Ok(self.ended()?.is_some()));
        self.kill()?;
        ended.map_err(|e| self.trouble(e))
    }

    /// Stops it (SIGSTOP), and waits until it stands still: the signal alone is only a request.
    pub fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        let pid = self.pid().and_then(|n| Pid::from_raw(n.try_into().ok()?));
        let pid = pid.ok_or_else(|| io::Error::other("it has gone meanwhile"))?;
        // Only stops are asked for: its end is for `Child::wait` to collect.
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        until("the server stands still", Duration::from_secs(5), || {
            Ok(waitid(WaitId::Pid(pid), stopped)?.is_some())
        })
    }

    /// Lets it go on (SIGCONT).
    pub fn go_on(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[allow(clippy::print_stderr)] // it is what explains the failure
            {
                eprintln!("the end of the log of {}:\n{}", self.what, self.tail());
            }
        }
        let _ = self.kill();
    }
}
