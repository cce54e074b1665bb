//! Stopping and continuing a process.

use std::io;
use std::process::Child;

/// Whether this system can.
pub(super) const CAN_STOP: bool = cfg!(unix);

/// Stops the process, and waits until it has stopped: the signal alone is only a request.
#[cfg(unix)]
pub(super) fn stop(child: &Child) -> io::Result<()> {
    use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

    let pid = Pid::from_child(child);
    kill_process(pid, Signal::STOP)?;
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

/// Lets a stopped process go on.
#[cfg(unix)]
pub(super) fn resume(child: &Child) -> io::Result<()> {
    use rustix::process::{Pid, Signal, kill_process};

    Ok(kill_process(Pid::from_child(child), Signal::CONT)?)
}

#[cfg(not(unix))]
pub(super) fn stop(_: &Child) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(unix))]
pub(super) fn resume(_: &Child) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
