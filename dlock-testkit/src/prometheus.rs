//! A Prometheus server, which scrapes what it is told to and evaluates rules; and its tool.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::http;
use crate::place::Folder;
use crate::ports::Port;
use crate::process::{Process, find, run};
use crate::until::until;

/// How long a start may take, on a machine that has much else to do.
const START: Duration = Duration::from_secs(30);

/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(10);

/// How often another port is tried where somebody who knows nothing of our claims was faster.
const PORTS: u32 = 5;

/// How often it scrapes and evaluates: a test waits for several of each.
const INTERVAL: &str = "200ms";

/// A Prometheus server, killed when it is dropped.
#[derive(Debug)]
pub struct PrometheusServer {
    process: Process,
    port: Port,
}

impl PrometheusServer {
    /// A server that scrapes `/metrics` at each of these, as a job of that name, and evaluates those rules:
    /// the text of a file of rules. It answers, and has read the rules. To scrape it begins five seconds
    /// later, by a timer of its own that nothing sets: so one server is best shared by many tests.
    ///
    /// # Errors
    /// What is not installed, or why it does not start, with its log: rules that are not valid.
    pub fn start(jobs: &[(String, SocketAddr)], rules: &str) -> io::Result<Self> {
        let mut tries = 0;
        loop {
            tries += 1;
            let server = Self::on(Port::free()?, jobs, rules)?;
            match server.run() {
                Err(_) if tries < PORTS && server.process.log().contains("address already in use") => {}
                started => return started.map(|()| server),
            }
        }
    }

    fn on(port: Port, jobs: &[(String, SocketAddr)], rules: &str) -> io::Result<Self> {
        let folder = Folder::new("prometheus")?;
        std::fs::write(folder.file("rules.yml"), rules)?;
        let mut text = format!(
            "global: {{ scrape_interval: {INTERVAL}, scrape_timeout: {INTERVAL}, \
             evaluation_interval: {INTERVAL} }}\nrule_files: [ rules.yml ]\nscrape_configs:\n"
        );
        for (job, target) in jobs {
            text +=
                &format!("- {{ job_name: '{job}', static_configs: [ {{ targets: [ '{target}' ] }} ] }}\n");
        }
        std::fs::write(folder.file("prometheus.yml"), text)?;
        let arguments = [
            "--config.file=prometheus.yml".to_owned(),
            "--storage.tsdb.path=data".to_owned(),
            format!("--web.listen-address={}", port.address()),
        ];
        let process = Process::new(
            "prometheus",
            folder,
            "prometheus",
            &[],
            &arguments.map(OsString::from),
        )?;
        Ok(Self { process, port })
    }

    fn run(&self) -> io::Result<()> {
        self.process.start()?;
        let folder = self.process.folder().path().display().to_string();
        let mut ended = None;
        let ready = until("the server answers", START, || {
            ended = self.process.ended()?;
            // Its own process, and nobody who had the port before it.
            Ok(ended.is_some()
                || self.get("/-/ready").is_ok() && self.get("/api/v1/status/runtimeinfo")?.contains(&folder))
        });
        let ready = match ended {
            Some(status) => Err(io::Error::other(status.to_string())),
            None => ready,
        };
        ready.map_err(|e| {
            let trouble = self.process.trouble(e);
            let _ = self.process.kill();
            trouble
        })
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The id of its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// What it has there, such as `/api/v1/alerts`.
    ///
    /// # Errors
    /// Those of the socket; and with what it says, if it answers anything but that all is well.
    pub fn get(&self, path: &str) -> io::Result<String> {
        http::get(self.address(), path, ANSWER)
    }

    /// What it makes of that expression now: JSON, as `/api/v1/query` answers.
    ///
    /// # Errors
    /// As [`get`](Self::get); if the expression is none.
    pub fn query(&self, expression: &str) -> io::Result<String> {
        let mut path = "/api/v1/query?query=".to_owned();
        for byte in expression.bytes() {
            path += &format!("%{byte:02X}");
        }
        self.get(&path)
    }
}

/// Runs `promtool`, which comes with the server, in that folder, and gives what it has said.
///
/// # Errors If it is not installed, or fails; with its output.
pub fn promtool(folder: &Path, words: &[&str]) -> io::Result<String> {
    run(Command::new(find("promtool")?).current_dir(folder).args(words))
}
