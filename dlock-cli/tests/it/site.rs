//! A folder with a store in it, and the program.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub(crate) struct Site {
    folder: TempDir,
    url: Option<String>,
}

impl Site {
    /// Where nothing is configured: the store is the file of the user.
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            url: None,
        }
    }

    pub(crate) fn with(url: String) -> Self {
        Self {
            url: Some(url),
            ..Self::new()
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn dlock<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlock"));
        command
            .args(args)
            .env("HOME", self.folder.path())
            .stdin(Stdio::null());
        for name in [
            "XDG_CONFIG_HOME",
            "XDG_STATE_HOME",
            "DLOCK_URL",
            "DLOCK_PASSWORD_FILE",
        ] {
            command.env_remove(name);
        }
        command.envs(self.url.as_ref().map(|url| ("DLOCK_URL", url)));
        command
    }

    /// Its exit code, and what it has printed in all.
    pub(crate) fn run(&self, args: &[&str]) -> (i32, String) {
        said(&self.dlock(args).output().unwrap())
    }

    /// In the background, with a shell as its command.
    pub(crate) fn start(&self, args: &[&str], script: &str) -> Running {
        let mut command = self.dlock(args);
        command.args(["--", "sh", "-c", script]).stdout(Stdio::piped());
        Running::of(command.spawn().unwrap())
    }
}

pub(crate) fn said(output: &Output) -> (i32, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (code(output.status), String::from_utf8_lossy(&text).into_owned())
}

/// As a shell has it.
pub(crate) fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// One that runs, which is killed when this is dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Running {
    pub(crate) fn of(mut child: Child) -> Self {
        let (send, lines) = std::sync::mpsc::channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            out.lines()
                .map_while(Result::ok)
                .try_for_each(|line| send.send(line))
        });
        Self { child, lines }
    }

    /// The next line of its output.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(30)).expect("a line")
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(name, self.pid());
    }

    pub(crate) fn code(&mut self) -> i32 {
        let until = Instant::now() + Duration::from_secs(30);
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().unwrap() {
                return code(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it has not ended");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn signal(name: &str, pid: i32) {
    Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .stderr(Stdio::null())
        .status()
        .unwrap();
}

/// Whether that process is there, and no zombie.
pub(crate) fn lives(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = status
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().next());
    state.is_some_and(|state| state != "Z" && state != "X")
}

pub(crate) fn soon(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The children of a process.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let listed = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    listed
        .flat_map(|all| {
            all.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}
