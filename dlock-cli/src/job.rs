//! A command that runs while a lock is valid: the process that holds the lock.
//!
//! This process does not start the command itself. A second process of this program does, its
//! [leash](crate::leash), which receives the deadline each time that it moves. So the command is ended in
//! time whatever happens to this process:
//!
//! * *This process is killed*: its end of the socket closes, and the leash ends the command.
//! * *This process is stopped*, or cut off from the store: no later deadline arrives, and the leash ends the
//!   command before the last one.
//! * *The leash is killed*: its end of the socket closes. This process inherits its children (Linux), and
//!   ends them.
//! * *Both are killed at once*, or both stopped: no process is left to end the command. The fencing token is
//!   for that case.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::time::Duration;

use dlock::{Held, LossReason};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};

use crate::args::Hold;
use crate::failure::{Failure, code};
use crate::leash::{self, Leash, Said, Told};
use crate::signals::Signals;

/// How long the leash may take to connect.
const STARTING: Duration = Duration::from_secs(10);

/// The time between TERM and KILL under a lock of this ttl.
fn kill_after(asked: Option<Duration>, ttl: Duration) -> Result<Duration, Failure> {
    match asked {
        None => Ok((ttl / 6).min(Duration::from_secs(10))),
        Some(asked) if asked <= ttl / 3 => Ok(asked),
        Some(_) => Err(Failure::usage(format!(
            "--kill-after must be at most {:?}, a third of the lock's ttl of {ttl:?}",
            ttl / 3
        ))),
    }
}

pub(crate) struct Job {
    command: Vec<OsString>,
    kill_after: Option<Duration>,
    url: String,
    told_to_end: bool,
}

/// How the command ended. No process of it is left in either case.
pub(crate) enum Outcome {
    /// On its own, or by a signal that was passed on, with this exit code.
    Ended(u8),
    /// The lock was lost, and the command was ended.
    Lost(LossReason),
}

impl Job {
    pub(crate) fn new(hold: &Hold, command: Vec<OsString>, url: String) -> Result<Self, Failure> {
        kill_after(hold.kill_after, hold.ttl)?;
        leash::inherit_orphans();
        Ok(Self {
            command,
            kill_after: hold.kill_after,
            url,
            told_to_end: false,
        })
    }

    /// Whether a signal that ends programs was passed on to the command.
    pub(crate) fn was_told_to_end(&self) -> bool {
        self.told_to_end
    }

    /// Runs the command, and ends it if the lock is lost.
    pub(crate) async fn run(&mut self, held: &Held, signals: &mut Signals) -> Result<Outcome, Failure> {
        let (mut leash, stream) = self.start(held).await?;
        let (read, write) = stream.into_split();
        let mut side = Side {
            lines: BufReader::new(read).lines(),
            write,
            group: None,
        };
        let outcome = self.tend(held, signals, &mut side).await;
        if outcome.is_err() {
            // The leash is gone without an answer. This process has inherited its children.
            leash::end_all(side.group);
        }
        drop(side);
        let _ = leash.wait();
        take_terminal(getpgrp());
        outcome
    }

    async fn start(&self, held: &Held) -> Result<(Child, UnixStream), Failure> {
        let cannot =
            |e: std::io::Error| Failure::new(code::NOT_STARTED, format!("cannot start the command: {e}"));
        // The ttl of a session may be shorter than the one that was asked for.
        let kill_after = kill_after(self.kill_after, held.ttl())?;
        let folder = tempfile::tempdir().map_err(cannot)?;
        let socket = folder.path().join("leash");
        let listener = UnixListener::bind(&socket).map_err(cannot)?;
        let mut leash = Command::new(own_program().map_err(cannot)?)
            .arg(Leash::WORD)
            .arg(&socket)
            .arg(kill_after.as_millis().to_string())
            .args(&self.command)
            .env(
                "DLOCK_NAME",
                String::from_utf8_lossy(held.name().as_bytes()).as_ref(),
            )
            .envs(held.token().map(|token| ("DLOCK_TOKEN", token.to_string())))
            .env("DLOCK_URL", &self.url)
            .env_remove("DLOCK_PASSWORD_FILE")
            // Not reached by signals to our own group, such as Ctrl-C.
            .process_group(0)
            .spawn()
            .map_err(cannot)?;
        let connected = tokio::time::timeout(STARTING, listener.accept()).await;
        match connected.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
            Ok((stream, _)) => Ok((leash, stream)),
            Err(e) => {
                let _ = leash.kill();
                let _ = leash.wait();
                Err(cannot(e))
            }
        }
    }

    async fn tend(
        &mut self,
        held: &Held,
        signals: &mut Signals,
        leash: &mut Side,
    ) -> Result<Outcome, Failure> {
        let gone = || {
            Failure::new(
                code::NOT_STARTED,
                "the process that supervises the command was killed, so the command was ended",
            )
        };
        let mut lost = std::pin::pin!(held.lost());
        let mut reason = None;
        let mut deadline = held.deadline();
        leash.tell(Told::Deadline(deadline.as_nanos())).await;
        let mut tick =
            tokio::time::interval((held.ttl() / 30).clamp(Duration::from_millis(5), Duration::from_secs(1)));
        loop {
            tokio::select! {
                line = leash.lines.next_line() => match line.ok().flatten().as_deref().and_then(Said::read) {
                    Some(Said::Started(group)) => {
                        leash.group = Some(group);
                        give_terminal(group);
                    }
                    Some(Said::Ended(code)) => return Ok(Outcome::Ended(code)),
                    // The deadline passed: this process may have been stopped.
                    Some(Said::Lost) => {
                        let why = reason.or(held.loss()).unwrap_or(LossReason::Expired);
                        return Ok(Outcome::Lost(why));
                    }
                    Some(Said::NotStarted(code, why)) => {
                        let command = self.command.first().map(|c| c.to_string_lossy().into_owned());
                        let message = format!("cannot run {}: {why}", command.unwrap_or_default());
                        return Err(Failure::new(code, message));
                    }
                    None => return Err(gone()),
                },
                why = &mut lost, if reason.is_none() => {
                    reason = Some(why);
                    leash.tell(Told::Lost).await;
                }
                signal = signals.next() => {
                    self.told_to_end |= !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2);
                    leash.tell(Told::Signal(signal)).await;
                }
                _ = tick.tick(), if reason.is_none() => {
                    let now = held.deadline();
                    if now != deadline {
                        deadline = now;
                        leash.tell(Told::Deadline(deadline.as_nanos())).await;
                    }
                }
            }
        }
    }
}

/// This side of the socket.
struct Side {
    lines: tokio::io::Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
    /// The process group of the command.
    group: Option<Pid>,
}

impl Side {
    /// An error is ignored here: the next read reports that the leash is gone.
    async fn tell(&mut self, told: Told) {
        let _ = self.write.write_all(told.to_string().as_bytes()).await;
    }
}

/// The path of this program, even if its file was replaced meanwhile.
fn own_program() -> std::io::Result<std::path::PathBuf> {
    let own = std::path::Path::new("/proc/self/exe");
    if own.exists() {
        Ok(own.to_owned())
    } else {
        std::env::current_exe()
    }
}

/// Puts the command into the foreground of the terminal, so that it can read it and gets Ctrl-C.
fn give_terminal(group: Pid) {
    let stdin = std::io::stdin();
    if stdin.is_terminal() && tcgetpgrp(&stdin) == Ok(getpgrp()) && tcsetpgrp(&stdin, group).is_ok() {
        // It may have read before this, and was stopped for it.
        let _ = killpg(group, Signal::SIGCONT);
    }
}

/// Takes the terminal back, for the program that continues after this one.
fn take_terminal(own: Pid) {
    let stdin = std::io::stdin();
    if stdin.is_terminal() && tcgetpgrp(&stdin).is_ok_and(|group| group != own) {
        // A background process that does this is stopped, unless it blocks SIGTTOU.
        let mut knows = SigSet::empty();
        knows.add(Signal::SIGTTOU);
        let _ = knows.thread_block();
        let _ = tcsetpgrp(&stdin, own);
        let _ = knows.thread_unblock();
    }
}
