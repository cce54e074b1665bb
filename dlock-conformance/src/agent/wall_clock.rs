//! A settable wall clock for one child: libfaketime where it is installed, otherwise a library built by the
//! system's compiler from thirty lines of C. Both read the shift from a file.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Where distributions put it. `DLOCK_LIBFAKETIME` names another place.
const PLACES: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
    "/opt/homebrew/lib/faketime/libfaketime.1.dylib",
    "/usr/local/lib/faketime/libfaketime.1.dylib",
];

const SOURCE: &str = include_str!("wall_clock.c");

/// The wall clock of a child: a directory with the file that holds the shift.
#[derive(Debug)]
pub(super) struct WallClock {
    directory: PathBuf,
    library: PathBuf,
}

/// libfaketime, if it is there.
fn installed() -> Option<PathBuf> {
    let named = std::env::var_os("DLOCK_LIBFAKETIME").map(PathBuf::from);
    let usual = PLACES.iter().map(PathBuf::from);
    named.into_iter().chain(usual).find(|path| path.is_file())
}

/// Makes the library in that directory; `None` where there is no compiler for it.
fn compiled(directory: &Path) -> Option<PathBuf> {
    if !cfg!(target_os = "linux") {
        // On other systems a preloaded library does not replace functions this simply.
        return None;
    }
    let (source, library) = (directory.join("wall_clock.c"), directory.join("wall_clock.so"));
    std::fs::write(&source, SOURCE).ok()?;
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let made = Command::new(compiler)
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    made.is_ok_and(|status| status.success()).then_some(library)
}

impl WallClock {
    /// A wall clock that is right at first; `None` if none can be made.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn new() -> io::Result<Option<Self>> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("dlock-wall-clock-{}-{number}", std::process::id());
        let mut clock = Self {
            directory: std::env::temp_dir().join(name),
            library: PathBuf::new(),
        };
        std::fs::create_dir_all(&clock.directory)?;
        let Some(library) = installed().or_else(|| compiled(&clock.directory)) else {
            return Ok(None);
        };
        clock.library = library;
        clock.set(0)?;
        Ok(Some(clock))
    }

    fn file(&self) -> PathBuf {
        self.directory.join("offset")
    }

    /// Lets the process of that command see it.
    pub(super) fn show(&self, command: &mut Command) {
        let preload = if cfg!(target_vendor = "apple") {
            "DYLD_INSERT_LIBRARIES"
        } else {
            "LD_PRELOAD"
        };
        command
            .env(preload, &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", self.file())
            .env("FAKETIME_NO_CACHE", "1")
            // Only the wall clock. The rule is about the other clocks running on.
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1");
    }

    /// Shifts it by that many seconds.
    pub(super) fn set(&self, seconds: i64) -> io::Result<()> {
        // Renamed into place: the child must never read half of it.
        let new = self.directory.join("new");
        std::fs::write(&new, format!("{seconds:+}\n"))?;
        std::fs::rename(new, self.file())
    }
}

impl Drop for WallClock {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
