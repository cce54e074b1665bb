//! The process that starts a command and ends it in time, whatever happens to the process that holds the
//! lock: see [`job`](crate::job).
//!
//! It considers the lock valid up to the deadline that it received last, by the clock since boot that all
//! processes of a machine share. The command's group gets TERM `kill_after` before the deadline, and KILL
//! just before it. Processes that the command leaves behind, in its group or outside, become children of this
//! process (Linux), which ends them too.
//!
//! *The machine sleeps, or this process is stopped, past the deadline*: the command may run on until this
//! process has read the clock. The fencing token is for that case.

use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock::Timestamp;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::Pid;

use crate::failure::code;

/// KILL is sent this long before the deadline, since ending takes a moment.
const DYING: Duration = Duration::from_millis(100);

/// How often the clock is read: no timer counts the time that a machine slept.
const LOOK: Duration = Duration::from_millis(100);

/// The pause between two rounds of KILL: a process that ends leaves its children to this one.
const KILL_AGAIN: Duration = Duration::from_millis(10);

/// The messages to the leash, one per line.
pub(crate) enum Told {
    /// The lock is valid until then, in nanoseconds since boot.
    Deadline(u64),
    /// A signal to pass on.
    Signal(Signal),
    /// The lock is lost: the command has to end.
    Lost,
}

/// The messages from the leash, one per line.
pub(crate) enum Said {
    /// The command runs in this process group.
    Started(Pid),
    NotStarted(u8, String),
    /// The command ended with this code, and no process of it is left.
    Ended(u8),
    /// The command was ended, because the deadline came or the lock was lost.
    Lost,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline(nanos) => writeln!(f, "deadline {nanos}"),
            Self::Signal(signal) => writeln!(f, "signal {}", *signal as i32),
            Self::Lost => writeln!(f, "lost"),
        }
    }
}

impl Told {
    fn read(line: &str) -> Option<Self> {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("deadline", nanos) => nanos.parse().ok().map(Self::Deadline),
            ("signal", number) => Signal::try_from(number.parse::<i32>().ok()?)
                .ok()
                .map(Self::Signal),
            ("lost", "") => Some(Self::Lost),
            _ => None,
        }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(group) => writeln!(f, "started {group}"),
            Self::NotStarted(code, why) => writeln!(f, "not_started {code} {}", why.replace('\n', " ")),
            Self::Ended(code) => writeln!(f, "ended {code}"),
            Self::Lost => writeln!(f, "lost"),
        }
    }
}

impl Said {
    pub(crate) fn read(line: &str) -> Option<Self> {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("started", group) => group
                .parse()
                .ok()
                .map(|group| Self::Started(Pid::from_raw(group))),
            ("not_started", rest) => {
                let (code, why) = rest.split_once(' ')?;
                Some(Self::NotStarted(code.parse().ok()?, why.to_owned()))
            }
            ("ended", code) => code.parse().ok().map(Self::Ended),
            ("lost", "") => Some(Self::Lost),
            _ => None,
        }
    }
}

/// What the three threads share.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    group: Pid,
    kill_after: Duration,
}

struct State {
    deadline: Timestamp,
    /// The command is being ended, and is killed at this time.
    kill_at: Option<Timestamp>,
    /// It is ended because the lock is lost, not because it ended on its own.
    lost: bool,
}

/// The arguments of the leash: `__leash SOCKET KILL_AFTER_MS COMMAND ARGS...`. Internal, and not shown in the
/// help.
pub(crate) struct Leash {
    socket: OsString,
    kill_after: Duration,
    command: Vec<OsString>,
}

impl Leash {
    pub(crate) const WORD: &str = "__leash";

    pub(crate) fn read(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        let is_leash = args.next().is_some_and(|word| word == Self::WORD);
        let (socket, ms) = is_leash.then(|| Some((args.next()?, args.next()?)))??;
        let kill_after = Duration::from_millis(ms.to_str()?.parse().ok()?);
        Some(Self {
            socket,
            kill_after,
            command: args.collect(),
        })
    }

    pub(crate) fn run(&self) -> ExitCode {
        main(self)
    }
}

fn main(leash: &Leash) -> ExitCode {
    let Ok(mut stream) = UnixStream::connect(&leash.socket) else {
        eprintln!("dlock: `__leash` is internal: use `dlock run` or `dlock elect`");
        return ExitCode::from(code::USAGE);
    };
    let Ok(lines) = stream.try_clone() else {
        return ExitCode::from(code::NOT_STARTED);
    };
    let mut lines = BufReader::new(lines).lines();
    // Nothing is started before the first deadline is known.
    let Some(Told::Deadline(nanos)) = lines.next().and_then(Result::ok).as_deref().and_then(Told::read)
    else {
        return ExitCode::from(code::NOT_STARTED);
    };
    inherit_orphans();
    let (command, arguments) = leash
        .command
        .split_first()
        .map_or((None, &[][..]), |(c, a)| (Some(c), a));
    let started = Command::new(command.map_or_else(Default::default, Clone::clone))
        .args(arguments)
        .process_group(0)
        .spawn();
    let child = match started {
        Ok(child) => child,
        Err(e) => {
            let is_missing = e.kind() == std::io::ErrorKind::NotFound;
            let code = if is_missing {
                code::NOT_FOUND
            } else {
                code::NOT_STARTED
            };
            let _ = stream.write_all(Said::NotStarted(code, e.to_string()).to_string().as_bytes());
            return ExitCode::from(code);
        }
    };
    let group = Pid::from_raw(child.id().cast_signed());
    let _ = stream.write_all(Said::Started(group).to_string().as_bytes());
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            deadline: Timestamp::from_nanos(nanos),
            kill_at: None,
            lost: false,
        }),
        changed: Condvar::new(),
        group,
        kill_after: leash.kill_after,
    });
    let hearing = shared.clone();
    std::thread::spawn(move || {
        // When the stream ends, no later deadline can arrive.
        lines
            .map_while(Result::ok)
            .filter_map(|line| Told::read(&line))
            .for_each(|told| hearing.hear(&told));
        hearing.hear(&Told::Lost);
    });
    let enforcing = shared.clone();
    std::thread::spawn(move || enforcing.enforce());
    let code = shared.wait();
    let said = if shared.state().lost {
        Said::Lost
    } else {
        Said::Ended(code)
    };
    let _ = stream.write_all(said.to_string().as_bytes());
    ExitCode::from(code)
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, told: &Told) {
        match told {
            Told::Deadline(nanos) => self.state().deadline = Timestamp::from_nanos(*nanos),
            Told::Signal(signal) => {
                let _ = killpg(self.group, *signal);
            }
            Told::Lost => self.begin_end(true),
        }
        self.changed.notify_all();
    }

    /// Sends TERM now, and KILL after `kill_after`, but before the deadline if that is still ahead.
    fn begin_end(&self, lost: bool) {
        let mut state = self.state();
        if state.kill_at.is_none() {
            let (now, last) = (Timestamp::now(), state.deadline);
            let by_deadline = Timestamp::from_nanos(last.as_nanos().saturating_sub(DYING.as_nanos() as u64));
            let after = now + self.kill_after;
            state.kill_at = Some(if last > now { after.min(by_deadline) } else { after });
            state.lost = lost;
            self.tell_all(Signal::SIGTERM);
            // A stopped process gets no other signal before this.
            self.tell_all(Signal::SIGCONT);
        }
        drop(state);
        self.changed.notify_all();
    }

    fn tell_all(&self, signal: Signal) {
        let _ = killpg(self.group, signal);
        for orphan in children() {
            let _ = kill(orphan, signal);
        }
    }

    fn enforce(&self) {
        loop {
            let (now, state) = (Timestamp::now(), self.state());
            let (deadline, kill_at) = (state.deadline, state.kill_at);
            drop(state);
            let pause = match kill_at {
                Some(kill_at) if now >= kill_at => {
                    self.tell_all(Signal::SIGKILL);
                    KILL_AGAIN
                }
                Some(kill_at) => now.until(kill_at).min(LOOK),
                None if now + self.kill_after + DYING >= deadline => {
                    self.begin_end(true);
                    continue;
                }
                None => (now + self.kill_after + DYING).until(deadline).min(LOOK),
            };
            let state = self.state();
            let _ = self
                .changed
                .wait_timeout(state, pause.max(Duration::from_millis(1)));
        }
    }

    /// Waits until no process of the command is left, and returns its exit code.
    fn wait(&self) -> u8 {
        let mut code = 0;
        loop {
            match wait() {
                Ok(ended) if ended.pid() == Some(self.group) => {
                    code = code_of(ended).unwrap_or(code);
                    if !children().is_empty() {
                        self.begin_end(false);
                    }
                }
                Err(Errno::ECHILD) => return code,
                Ok(_) | Err(_) => {}
            }
        }
    }
}

fn code_of(ended: WaitStatus) -> Option<u8> {
    match ended {
        WaitStatus::Exited(_, code) => u8::try_from(code & 0xff).ok(),
        WaitStatus::Signaled(_, signal, _) => Some(128 + signal as u8),
        _ => None,
    }
}

/// Makes orphaned descendants children of this process.
pub(crate) fn inherit_orphans() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_child_subreaper(true);
}

/// The children of this process, including those that it inherited.
#[cfg(target_os = "linux")]
fn children() -> Vec<Pid> {
    let mut all = Vec::new();
    for task in std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
    {
        let listed = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(
            listed
                .split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .map(Pid::from_raw),
        );
    }
    all
}

#[cfg(not(target_os = "linux"))]
fn children() -> Vec<Pid> {
    Vec::new()
}

/// Kills a process group, and all children of this process.
pub(crate) fn end_all(group: Option<Pid>) {
    for _ in 0..500 {
        if let Some(group) = group {
            let _ = killpg(group, Signal::SIGKILL);
        }
        for child in children() {
            let _ = kill(child, Signal::SIGKILL);
        }
        while let Ok(ended) = nix::sys::wait::waitpid(None, Some(nix::sys::wait::WaitPidFlag::WNOHANG)) {
            if ended == WaitStatus::StillAlive {
                break;
            }
        }
        if children().is_empty() {
            return;
        }
        std::thread::sleep(KILL_AGAIN);
    }
}
