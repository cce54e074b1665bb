//! Redis servers of this program's own, in a temporary directory. They are reached by sockets in there, so no
//! port is taken.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Running servers, ended when this is dropped.
pub(crate) struct Servers {
    running: Vec<Child>,
    directory: TempDir,
}

impl Servers {
    pub(crate) fn start(n: usize) -> Result<Self, Box<dyn Error>> {
        let directory = tempfile::tempdir()?;
        let mut servers = Self {
            running: Vec::new(),
            directory,
        };
        for n in 0..n {
            let server = Command::new("redis-server")
                .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
                .arg(servers.socket(n))
                .current_dir(servers.directory.path())
                .stdout(Stdio::null())
                .spawn();
            servers.running.push(server.map_err(explained)?);
        }
        let began = Instant::now();
        while (0..n).any(|n| !servers.socket(n).exists()) {
            if began.elapsed() > Duration::from_secs(20) {
                return Err("the Redis servers do not start; `redis-server --port 7000` tells why".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(servers)
    }

    fn socket(&self, n: usize) -> PathBuf {
        self.directory.path().join(format!("{n}.sock"))
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        let url = |n| format!("redis+unix://{}", self.socket(n).display());
        (0..self.running.len()).map(url).collect()
    }

    /// As by a crash.
    pub(crate) fn kill(&mut self, n: usize) -> io::Result<()> {
        self.running[n].kill()?;
        self.running[n].wait().map(drop)
    }
}

fn explained(e: io::Error) -> Box<dyn Error> {
    match e.kind() {
        io::ErrorKind::NotFound => "there is no `redis-server` in PATH. Install it: `apt-get install \
            redis-server`, `brew install redis`. \
             Or give the URLs of three or more servers: `cargo run --features redis --example redlock -- \
             redis://a redis://b redis://c`"
            .into(),
        _ => format!("`redis-server` cannot be started: {e}").into(),
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for server in &mut self.running {
            // One that has ended already is no matter.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
