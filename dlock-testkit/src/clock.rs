//! A wall clock for one server alone, which can be set.
//!
//! A small library (`wall_clock.c`, which the system's C compiler makes) stands before the C library in the
//! server's process, and adds what a file says to what the wall clock shows. What Redis 7.0 does with it:
//! `TIME`, expiry and everything that is a date come from `gettimeofday` and `time`, which it replaces; the
//! event loop and what latency is measured by come from `CLOCK_MONOTONIC`, which is left alone, as a clock
//! that is set by hand leaves it.
//!
//! Not libfaketime, which does the same: that of Debian 12 (0.9.10) never lets Redis come up. It allocates
//! when it is first asked for the time, and jemalloc, which that Redis allocates by, asks for the time when
//! it is first used. Also it reads its file at each look at the clock.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::place::Folder;

const SOURCE: &str = include_str!("wall_clock.c");

/// By how much the wall clock of a server is off.
#[derive(Debug)]
pub struct Clock {
    library: PathBuf,
    path: PathBuf,
    file: File,
    /// In milliseconds.
    off: Mutex<i64>,
}

/// The library, made once for each test program; its folder is the program's.
fn library() -> io::Result<PathBuf> {
    static MADE: Mutex<Option<(Folder, PathBuf)>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, library)) = &*made {
        return Ok(library.clone());
    }
    let folder = Folder::of_programs("wall-clock")?;
    let (source, library) = (folder.file("wall_clock.c"), folder.file("wall_clock.so"));
    std::fs::write(&source, SOURCE)?;
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command
        .args(["-shared", "-fPIC", "-O2", "-o"])
        .args([&library, &source])
        .stdin(Stdio::null());
    let done = command.output().map_err(|e| {
        io::Error::new(
            e.kind(),
            format!("a clock that can be set needs a C compiler, as cc: {e}"),
        )
    })?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(io::Error::other(format!(
            "a clock that can be set could not be compiled: {said}"
        )));
    }
    *made = Some((folder, library.clone()));
    Ok(library)
}

impl Clock {
    /// One that is right yet.
    ///
    /// # Errors If there is no C compiler.
    pub fn new(folder: &Folder) -> io::Result<Self> {
        let path = folder.file("clock");
        let clock = Self {
            library: library()?,
            file: File::create(&path)?,
            path,
            off: Mutex::new(0),
        };
        clock.set(0)?;
        Ok(clock)
    }

    /// The environment that the server's process needs to see it.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        vec![
            ("LD_PRELOAD", self.library.clone().into()),
            ("DLOCK_WALL_CLOCK", self.path.clone().into()),
        ]
    }

    /// Sets it that many milliseconds off the machine's. The server sees that at its next look.
    pub fn set(&self, milliseconds: i64) -> io::Result<()> {
        self.change(|_| milliseconds)
    }

    /// Sets it forward by that many milliseconds, or back.
    pub fn step(&self, milliseconds: i64) -> io::Result<()> {
        self.change(|off| off.saturating_add(milliseconds))
    }

    fn change(&self, to: impl FnOnce(i64) -> i64) -> io::Result<()> {
        let mut off = self.off.lock().unwrap_or_else(PoisonError::into_inner);
        let new = to(*off);
        let nanos = new.saturating_mul(1_000_000).to_ne_bytes();
        // One after the other: see the library.
        self.file.write_all_at(&nanos, 0)?;
        self.file.write_all_at(&nanos, 8)?;
        *off = new;
        Ok(())
    }
}

/// The machine's wall clock, since 1970: what that of a server is compared with.
pub fn wall_clock() -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default()
}
