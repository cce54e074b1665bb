//! One etcd server: alone, or a member of an ensemble.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use crate::certificates::Certificates;
use crate::etcd_options::{EtcdOptions, Place, ROOT};
use crate::place::Folder;
use crate::ports::Port;
use crate::process::{Process, find, run};
use crate::redis_options::Tls;
use crate::until::until;
use crate::{http, sockets};

/// How long a start may take, on a machine that has much else to do.
const START: Duration = Duration::from_secs(60);

/// How long a page may take from one that serves. Where there is no leader it takes some seconds to say so.
const PATIENCE: Duration = Duration::from_secs(10);

/// The same where another is asked if this one does not answer: it may be paused.
const SHORT: Duration = Duration::from_secs(1);

const STOP: Duration = Duration::from_secs(20);

/// How often another port is tried where somebody who knows nothing of our claims was faster.
const PORTS: u32 = 5;

/// An etcd server, killed when it is dropped.
#[derive(Debug)]
pub struct EtcdServer {
    process: Process,
    ports: Ports,
    /// What its data is made with from a snapshot.
    identity: Vec<String>,
    has_users: bool,
    certificates: Option<Arc<Certificates>>,
}

/// Where one listens.
#[derive(Debug)]
pub(crate) struct Ports {
    clients: Port,
    tls: Option<Port>,
    pub(crate) peers: Port,
    metrics: Port,
}

impl Ports {
    pub(crate) fn new(options: &EtcdOptions) -> io::Result<Self> {
        Ok(Self {
            clients: Port::free()?,
            tls: (options.tls != Tls::Off).then(Port::free).transpose()?,
            peers: Port::free()?,
            metrics: Port::free()?,
        })
    }

    fn urls(&self) -> [String; 3] {
        let http = |port: &Port| format!("http://{}", port.address());
        let tls = self
            .tls
            .as_ref()
            .map(|port| format!(",https://{}", port.address()));
        let clients = http(&self.clients) + &tls.unwrap_or_default();
        [clients, http(&self.peers), http(&self.metrics)]
    }
}

impl EtcdServer {
    /// A server that stands alone, as [`EtcdOptions::new`] has it, which answers.
    ///
    /// # Errors If a program is not installed, or the server does not start; with its log.
    pub fn start() -> io::Result<Self> {
        Self::with(EtcdOptions::new())
    }

    /// A server that stands alone, with those options, which answers.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn with(options: EtcdOptions) -> io::Result<Self> {
        for n in 1.. {
            let ports = Ports::new(&options)?;
            let url = format!("http://{}", ports.peers.address());
            let server = Self::new(&options, ports, "alone", &url, &format!("alone={url}"))?;
            match server.start_again() {
                Err(_) if n < PORTS && server.port_is_taken() => continue,
                started => started?,
            }
            server.let_users_in(&options)?;
            return Ok(server);
        }
        unreachable!("the last try returns")
    }

    /// One that does not run yet.
    pub(crate) fn new(
        options: &EtcdOptions,
        ports: Ports,
        name: &str,
        advertised: &str,
        cluster: &str,
    ) -> io::Result<Self> {
        let folder = Folder::new("etcd")?;
        let certificates = match options.tls {
            Tls::Off => None,
            _ => Some(Certificates::of_this_program()?),
        };
        let urls = ports.urls();
        let path = folder.path().to_owned();
        let place = Place {
            name,
            folder: &path,
            urls,
            advertised,
            cluster,
        };
        let words = options.words(&place, certificates.as_deref());
        Ok(Self {
            process: Process::new("etcd", folder, &options.program, &[], &words)?,
            ports,
            identity: place.words(),
            has_users: !options.users.is_empty(),
            certificates,
        })
    }

    /// Makes the users, if there are to be any, and lets in nobody else from then on.
    pub(crate) fn let_users_in(&self, options: &EtcdOptions) -> io::Result<()> {
        if options.users.is_empty() {
            return Ok(());
        }
        let (root, password) = ROOT;
        self.etcdctl(&["user", "add", &format!("{root}:{password}")])?;
        self.etcdctl(&["role", "add", root])?;
        self.etcdctl(&["user", "grant-role", root, root])?;
        for [name, password, prefix] in &options.users {
            self.etcdctl(&["user", "add", &format!("{name}:{password}")])?;
            self.etcdctl(&["role", "add", name])?;
            let all = "--prefix=true";
            self.etcdctl(&["role", "grant-permission", all, name, "readwrite", prefix])?;
            self.etcdctl(&["user", "grant-role", name, name])?;
        }
        self.etcdctl(&["auth", "enable"])?;
        Ok(())
    }

    /// Whether it did not start because somebody else had one of its ports.
    pub(crate) fn port_is_taken(&self) -> bool {
        self.process.log().contains("address already in use")
    }

    // --- where it is ---

    /// Its address for clients, without TLS.
    pub fn address(&self) -> SocketAddr {
        self.ports.clients.address()
    }

    /// Its address with TLS, if it has one.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.ports.tls.as_ref().map(Port::address)
    }

    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_deref()
    }

    /// The id of its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Its log, over all its starts.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Whether a TCP socket with that address is its own.
    pub(crate) fn has_socket(&self, address: SocketAddr) -> bool {
        let SocketAddr::V4(address) = address else {
            return false;
        };
        // One that is gone meanwhile has none.
        self.pid()
            .is_some_and(|pid| sockets::has(pid, address).unwrap_or(false))
    }

    // --- what is asked of it ---

    /// What `etcdctl` says, as a user with all rights; without the last newline.
    ///
    /// # Errors If it is not installed, or fails; with its output.
    pub fn etcdctl(&self, words: &[&str]) -> io::Result<String> {
        let (root, password) = ROOT;
        let mut command = Command::new(find("etcdctl")?);
        command.env("ETCDCTL_API", "3");
        if self.has_users {
            // Before users exist, any login is accepted.
            command.arg(format!("--user={root}:{password}"));
        }
        command.arg(format!("--endpoints={}", self.address()));
        run(command.args(words))
    }

    /// A value of its page for Prometheus: the sum over its labels.
    ///
    /// # Errors
    /// Those of the socket; and if there is no such value.
    pub fn metric(&self, name: &str) -> io::Result<f64> {
        self.metric_within(PATIENCE, name)
    }

    fn metric_within(&self, patience: Duration, name: &str) -> io::Result<f64> {
        let page = http::get(self.ports.metrics.address(), "/metrics", patience)?;
        let mut found = page.lines().filter_map(|line| value(line, name)).peekable();
        if found.peek().is_none() {
            return Err(io::Error::other(format!("/metrics has no {name}")));
        }
        Ok(found.sum())
    }

    /// Whether it leads, as itself and a majority see it.
    pub(crate) fn leads(&self) -> bool {
        let thinks_so = self.metric_within(SHORT, "etcd_server_is_leader");
        thinks_so.is_ok_and(|is| is > 0.0) && self.serves().is_ok()
    }

    /// Whether a read by it is answered by a majority. Space, which it may be out of, is none of that.
    pub(crate) fn serves(&self) -> io::Result<()> {
        http::get(self.ports.metrics.address(), "/health?exclude=NOSPACE", PATIENCE)?;
        Ok(())
    }

    /// Writes all that it has into a file of its folder: which one.
    ///
    /// # Errors
    /// Those of [`etcdctl`](Self::etcdctl).
    pub fn snapshot(&self) -> io::Result<PathBuf> {
        let folder = self.process.folder();
        let mut files = (0..).map(|n| folder.file(&format!("snapshot-{n}")));
        let file = files.find(|f| !f.exists());
        let file = file.ok_or_else(|| io::Error::other("too many snapshots"))?;
        self.etcdctl(&["snapshot", "save", &file.to_string_lossy()])?;
        Ok(file)
    }

    // --- what is done to it ---

    /// Starts it on the same ports, with what its folder has; returns when it serves.
    ///
    /// # Errors If it runs already, or does not start; with its log.
    pub fn start_again(&self) -> io::Result<()> {
        self.begin()?;
        self.wait_until_it_serves()
    }

    /// Starts it; whether it comes to serve may depend on others.
    pub(crate) fn begin(&self) -> io::Result<()> {
        self.process.start()
    }

    pub(crate) fn wait_until_it_serves(&self) -> io::Result<()> {
        let mut ended = None;
        let ready = until("the server serves", START, || {
            ended = self.process.ended()?;
            if ended.is_some() {
                return Ok(true);
            }
            self.serves()?;
            // Its own process, and nobody who had the port before it.
            Ok(self.has_socket(self.address()))
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

    /// Kills it (SIGKILL). It keeps what it has answered.
    pub fn crash(&self) -> io::Result<()> {
        self.process.kill()
    }

    /// Ends it as an operator does (SIGTERM): one that leads gives that to another first.
    ///
    /// # Errors If it does not run, or does not end in time; then it was killed.
    pub fn stop_in_order(&self) -> io::Result<()> {
        self.process.end(Signal::TERM, STOP)
    }

    /// Pauses the process (SIGSTOP): connections stay open, and nothing is answered. Returns when it has
    /// stopped.
    pub fn pause(&self) -> io::Result<()> {
        self.process.pause()
    }

    /// Resumes it.
    pub fn go_on(&self) -> io::Result<()> {
        self.process.go_on()
    }

    /// As an operator puts a backup back: it ends, has what the snapshot has and nothing else, and starts
    /// again. Its revision is that of then. For one that stands alone.
    ///
    /// # Errors
    /// Those of `etcdctl`, and of [`start_again`](Self::start_again).
    pub fn restore(&self, snapshot: &Path) -> io::Result<()> {
        self.put_back(snapshot)?;
        self.start_again()
    }

    /// The same without the start.
    pub(crate) fn put_back(&self, snapshot: &Path) -> io::Result<()> {
        self.crash()?;
        std::fs::remove_dir_all(self.process.folder().file("data"))?;
        let mut words = vec!["snapshot", "restore"];
        let file = snapshot.to_string_lossy();
        words.push(&file);
        words.extend(self.identity.iter().map(String::as_str));
        self.etcdctl(&words)?;
        Ok(())
    }
}

/// The value of a line of Prometheus' format, if it is of that name.
fn value(line: &str, name: &str) -> Option<f64> {
    let rest = line.strip_prefix(name)?;
    let value = match rest.strip_prefix('{') {
        Some(labels) => labels.rsplit_once("} ")?.1,
        None => rest.strip_prefix(' ')?,
    };
    value.parse().ok()
}
