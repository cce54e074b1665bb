//! How often a process waits for the disk.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

use rustix::process::{Pid, Signal, kill_process};

/// How often that process, and whatever it starts meanwhile, calls `fsync` or `fdatasync` during some work;
/// `None` where `strace` cannot be had.
///
/// # Panics
/// If strace ends before it is told to.
pub async fn syncs(pid: u32, work: impl AsyncFnOnce()) -> Option<u64> {
    let mut strace = Command::new("strace")
        .args(["-f", "-e", "trace=fsync,fdatasync", "-e", "signal=none"])
        .args(["-p", &pid.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let said = BufReader::new(strace.stderr.take()?);
    let (looks, begun) = channel();
    // Read all the time: what is traced stands still while nobody takes what strace says.
    let counting = std::thread::spawn(move || {
        let mut calls = 0;
        for line in said.lines().map_while(Result::ok) {
            if line.contains(" attached") {
                let _ = looks.send(());
            }
            // A call that another thread interrupts is told in two lines, of which the first has the bracket.
            calls += u64::from(line.contains("fdatasync(") || line.contains("fsync("));
        }
        calls
    });
    if begun.recv().is_ok() {
        work().await;
        let _ = kill_process(Pid::from_child(&strace), Signal::INT);
    }
    let calls = counting.join().expect("it reads to the end");
    let status = strace.wait().expect("it has ended");
    // If refused, it says why and ends.
    (status.code().is_none_or(|code| code >= 128)).then_some(calls)
}
