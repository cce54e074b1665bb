//! Killing, stopping and continuing a process.

use std::io;
use std::process::Child;

/// Whether this system can stop a process.
pub(super) const CAN_STOP: bool = cfg!(unix);

#[derive(Clone, Copy, Debug)]
pub(super) enum Signal {
    /// And waits until it is gone.
    Kill,
    /// And waits until it has stopped: the signal alone is only a request.
    Stop,
    Continue,
}

pub(super) fn send(child: &mut Child, signal: Signal) -> io::Result<()> {
    match signal {
        Signal::Kill => {
            child.kill()?;
            child.wait().map(drop)
        }
        Signal::Stop | Signal::Continue => stop_or_continue(child, signal),
    }
}

#[cfg(unix)]
fn stop_or_continue(child: &Child, signal: Signal) -> io::Result<()> {
    use rustix::process::{Pid, Signal as Unix, WaitId, WaitIdOptions, kill_process, waitid};

    let pid = Pid::from_child(child);
    if let Signal::Continue = signal {
        return Ok(kill_process(pid, Unix::CONT)?);
    }
    kill_process(pid, Unix::STOP)?;
    // Only waits for stops: `Child::wait` reaps the process.
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(5);
    loop {
        if waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG)?.is_some() {
            return Ok(());
        }
        if std::time::Instant::now() > limit {
            return Err(io::Error::other("it has not stopped after 5 s"));
        }
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
}

#[cfg(not(unix))]
fn stop_or_continue(_: &Child, _: Signal) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
