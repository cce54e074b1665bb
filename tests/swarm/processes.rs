//! The processes of the swarm, from their parent's side.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dlock::Timestamp;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::child::VARIABLE;

/// How long one may take until it is connected.
const STARTING: Duration = Duration::from_secs(45);

/// What one process wrote down, and what was done to it. Times are the machine's clock in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// What its requests begin with.
    pub(crate) client: String,
    pub(crate) lines: Vec<String>,
    pub(crate) killed: Option<u64>,
    /// From when to when it stood still.
    pub(crate) stops: Vec<(u64, u64)>,
}

impl Told {
    /// Whether it was stopped at some time before that, or killed.
    pub(crate) fn was_hit_before(&self, at: u64) -> bool {
        self.killed.is_some_and(|killed| killed <= at) || self.stops.iter().any(|(from, _)| *from <= at)
    }
}

/// A process that runs, killed when it is dropped.
pub(crate) struct Worker {
    child: Child,
    input: ChildStdin,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<std::thread::JoinHandle<()>>,
    told: Told,
}

fn now() -> u64 {
    Timestamp::now().as_nanos()
}

impl Worker {
    /// Starts one, which connects and waits for [`go`](Self::go).
    pub(crate) fn start(what: &str) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(VARIABLE, what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let piped = || io::Error::other("a process has no pipes");
        let input = child.stdin.take().ok_or_else(piped)?;
        let output = child.stdout.take().ok_or_else(piped)?;
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                heard.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Ok(Self {
            child,
            input,
            lines,
            reader: Some(reader),
            told: Told::default(),
        })
    }

    /// Waits until it is connected.
    pub(crate) fn connected(&mut self) -> io::Result<()> {
        let until = Instant::now() + STARTING;
        loop {
            if let Some(line) = self.line(0) {
                let client = line.strip_prefix("ready ");
                let client = client.ok_or_else(|| io::Error::other(line.clone()))?;
                self.told.client = client.to_owned();
                return Ok(());
            }
            if Instant::now() > until {
                return Err(io::Error::other(format!(
                    "a process is not connected after {STARTING:?}"
                )));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn line(&self, n: usize) -> Option<String> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(n)
            .cloned()
    }

    /// Whether that request is one of its.
    pub(crate) fn is_of(&self, id: &str) -> bool {
        id.starts_with(&self.told.client)
    }

    pub(crate) fn go(&mut self) -> io::Result<()> {
        self.tell("go\n")
    }

    /// Nobody in it is to ask again.
    pub(crate) fn last(&mut self) -> io::Result<()> {
        self.tell("last\n")
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        let told = self.input.write_all(line.as_bytes());
        told.map_err(|e| {
            let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            let (last, ended) = (lines.last().cloned().unwrap_or_default(), self.child.try_wait());
            io::Error::other(format!(
                "a process ended by itself ({ended:?}), its last words were {last:?}: {e}"
            ))
        })
    }

    /// Whether all of its waiters are done.
    pub(crate) fn has_ended(&self) -> bool {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.last().is_some_and(|line| line == "end")
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.told
            .stops
            .last()
            .is_some_and(|(_, until)| *until == u64::MAX)
    }

    /// Stops it, and waits until it stands still: the signal alone is only a request.
    pub(crate) fn stop(&mut self) -> io::Result<()> {
        let pid = Pid::from_child(&self.child);
        self.told.stops.push((now(), u64::MAX));
        kill_process(pid, Signal::STOP)?;
        let until = Instant::now() + Duration::from_secs(5);
        while waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG)?.is_none() {
            if Instant::now() > until {
                return Err(io::Error::other("a process has not stopped after 5 s"));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    pub(crate) fn go_on(&mut self) -> io::Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::CONT)?;
        if let Some((_, until)) = self.told.stops.last_mut() {
            *until = now();
        }
        Ok(())
    }

    /// Kills it, stopped or not.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.told.killed = Some(now());
        self.child.kill()
    }

    /// For one that has ended or was killed: its last output is still in its pipe.
    pub(crate) fn bury(mut self) -> io::Result<Told> {
        self.child.wait()?;
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        let lines = std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner));
        self.told.lines = lines;
        Ok(std::mem::take(&mut self.told))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
