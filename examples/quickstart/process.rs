//! Processes of this program in other roles: told what to do, heard, stopped and killed.

use std::error::Error;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process of this program in another role.
pub(crate) struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    pub(crate) fn start(role: &str, of: impl AsRef<OsStr>) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("as")
            .arg(role)
            .arg(of)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (stdin, stdout) = (
            child.stdin.take().ok_or("no stdin")?,
            child.stdout.take().ok_or("no stdout")?,
        );
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, stdin, lines })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it says next.
    pub(crate) fn line(&self) -> Result<String, Box<dyn Error>> {
        let line = self.lines.recv_timeout(PATIENCE);
        Ok(line.map_err(|_| format!("process {} has nothing to say", self.pid()))?)
    }

    pub(crate) fn go(&mut self) -> std::io::Result<()> {
        writeln!(self.stdin, "go")
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Box<dyn Error>> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Waits for its end.
    pub(crate) fn finish(&mut self) -> Result<(), Box<dyn Error>> {
        let status = self.child.wait()?;
        expect(
            status.success(),
            &format!("process {} failed: {status}", self.pid()),
        )
    }
}

/// Nothing that was started is left behind, however this ends.
impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn expect(truth: bool, otherwise: &str) -> Result<(), Box<dyn Error>> {
    if truth { Ok(()) } else { Err(otherwise.into()) }
}
