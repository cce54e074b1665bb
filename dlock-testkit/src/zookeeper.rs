//! One ZooKeeper server: alone, or a member of an ensemble.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use crate::certificates::Certificates;
use crate::clock::Clock;
use crate::place::Folder;
use crate::ports::Port;
use crate::process::Process;
use crate::redis_options::Tls;
use crate::until::until;
use crate::zookeeper_options::{Peer, ZkOptions};
use crate::zookeeper_wire::{ZkSession, four_letters};

/// How long a start may take, on a machine that has much else to do.
const START: Duration = Duration::from_secs(60);

/// How long an answer may take from one that serves, and from one that is about to: that may forget the
/// question.
const PATIENCE: Duration = Duration::from_secs(10);
const EARLY: Duration = Duration::from_millis(300);

const STOP: Duration = Duration::from_secs(20);

/// How often another port is tried where somebody who knows nothing of our claims was faster.
const PORTS: u32 = 5;

/// A ZooKeeper server, killed when it is dropped.
#[derive(Debug)]
pub struct ZkServer {
    process: Process,
    port: Port,
    tls_port: Option<Port>,
    /// What the others of its ensemble reach it by.
    _peer_ports: Option<[Port; 2]>,
    certificates: Option<Arc<Certificates>>,
    clock: Option<Clock>,
}

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Standalone,
    Leader,
    Follower,
}

/// A connection to a server, as the server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZkClient {
    /// Of which session.
    pub session: i64,
    /// How many packets have come from there, pings among them.
    pub received: u64,
    /// How many have gone there, events among them.
    pub sent: u64,
    /// How long the session lives unheard of.
    pub timeout: Duration,
}

impl ZkServer {
    /// A server that stands alone, as [`ZkOptions::new`] has it, which answers.
    ///
    /// # Errors If a program is not installed, or the server does not start; with its log.
    pub fn start() -> io::Result<Self> {
        Self::with(ZkOptions::new())
    }

    /// A server that stands alone, with those options, which answers.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn with(options: ZkOptions) -> io::Result<Self> {
        for n in 1.. {
            let server = Self::new(&options, (0, &[]), None)?;
            match server.start_again() {
                Err(_) if n < PORTS && server.port_is_taken() => {}
                started => return started.map(|()| server),
            }
        }
        unreachable!("the last try returns")
    }

    /// One that does not run yet.
    pub(crate) fn new(
        options: &ZkOptions,
        place: (usize, &[Peer]),
        peer_ports: Option<[Port; 2]>,
    ) -> io::Result<Self> {
        let folder = Folder::new("zookeeper")?;
        let clock = options.own_clock.then(|| Clock::new(&folder)).transpose()?;
        let certificates = match options.tls {
            Tls::Off => None,
            _ => Some(Certificates::of_this_program()?),
        };
        let port = Port::free()?;
        let tls_port = certificates.as_ref().map(|_| Port::free()).transpose()?;
        let ports = (port.number(), tls_port.as_ref().map(Port::number));
        options.write(folder.path(), ports, place, certificates.as_ref())?;
        let arguments = options.arguments(folder.path())?;
        let environment = clock.as_ref().map(Clock::environment).unwrap_or_default();
        Ok(Self {
            process: Process::new("zookeeper", folder, "java", &environment, &arguments)?,
            port,
            tls_port,
            _peer_ports: peer_ports,
            certificates,
            clock,
        })
    }

    /// Whether it did not start because somebody else had its port.
    pub(crate) fn port_is_taken(&self) -> bool {
        self.process.log().contains("Address already in use")
    }

    // --- where it is ---

    /// Where it listens, without TLS.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Its address with TLS, if it has one.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.tls_port.as_ref().map(Port::address)
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

    // --- what is asked of it ---

    /// The answer to one of the four letter words.
    ///
    /// # Errors
    /// Those of the socket; a server that is down refuses.
    pub fn four_letters(&self, word: &str) -> io::Result<String> {
        four_letters(self.address(), word, PATIENCE)
    }

    /// A session of a user that no ACL restricts.
    ///
    /// # Errors
    /// As [`ZkSession::open`].
    pub fn session(&self) -> io::Result<ZkSession> {
        ZkSession::open(self.address())
    }

    /// Does something in a session of its own, which is closed after it.
    pub fn with_session<T>(&self, work: impl FnOnce(&mut ZkSession) -> io::Result<T>) -> io::Result<T> {
        let mut session = self.session()?;
        let done = work(&mut session)?;
        session.close()?;
        Ok(done)
    }

    /// What it does in its ensemble at the moment.
    ///
    /// # Errors
    /// If it does nothing: it is not up yet, or there is no majority.
    pub fn mode(&self) -> io::Result<Mode> {
        self.mode_within(PATIENCE)
    }

    fn mode_within(&self, patience: Duration) -> io::Result<Mode> {
        let text = four_letters(self.address(), "srvr", patience)?;
        match line(&text, "Mode") {
            Some("standalone") => Ok(Mode::Standalone),
            Some("leader") => Ok(Mode::Leader),
            Some("follower") => Ok(Mode::Follower),
            _ => Err(io::Error::other(format!(
                "it does not serve: {}",
                text.trim_end()
            ))),
        }
    }

    /// A value of `mntr`, without the `zk_` before its name.
    ///
    /// # Errors
    /// Those of the socket; and if there is no such value.
    pub fn monitor(&self, name: &str) -> io::Result<u64> {
        let text = self.four_letters("mntr")?;
        let mut values = text.lines().filter_map(|l| l.split_once('\t'));
        let value = values.find(|(n, _)| n.strip_prefix("zk_") == Some(name));
        let (_, value) = value.ok_or_else(|| io::Error::other(format!("mntr has no {name}")))?;
        let whole = value.trim().split('.').next().unwrap_or_default();
        whole.parse().map_err(io::Error::other)
    }

    /// All connections that have a session, but not those of other servers. Requests of a connection between
    /// two looks are the difference of what was received, less the pings: none come where a connection is
    /// busier than a third of its timeout.
    pub fn clients(&self) -> io::Result<Vec<ZkClient>> {
        let text = self.four_letters("cons")?;
        Ok(text.lines().filter_map(client).collect())
    }

    /// How many packets have come to it in sessions, over the connections that are open now.
    pub fn received(&self) -> io::Result<u64> {
        Ok(self.clients()?.iter().map(|c| c.received).sum())
    }

    // --- what is done to it ---

    /// Starts it on the same port, with what its folder has; returns when it serves.
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
        // Its own process, and nobody who had the port before it.
        let folder = self.process.folder().path().display().to_string();
        let mut ended = None;
        let ready = until("the server serves", START, || {
            ended = self.process.ended()?;
            if ended.is_some() {
                return Ok(true);
            }
            let environment = four_letters(self.address(), "envi", EARLY)?;
            self.mode_within(EARLY)?;
            if let Some(address) = self.tls_address() {
                // It listens there a moment later.
                TcpStream::connect(address)?;
            }
            Ok(environment
                .lines()
                .any(|l| l.strip_prefix("user.dir=") == Some(&folder)))
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

    /// Ends it as an operator does (SIGTERM).
    ///
    /// # Errors If it does not run, or does not end in time; then it was killed.
    pub fn stop_in_order(&self) -> io::Result<()> {
        self.process.end(Signal::TERM, STOP)
    }

    /// Pauses the process (SIGSTOP): connections stay open, and nothing is answered. Returns when it has
    /// stopped.
    ///
    /// The time that it stands still is none to sessions: those that ran out meanwhile it finds out when it
    /// goes on, after it has read what lies in its sockets.
    pub fn pause(&self) -> io::Result<()> {
        self.process.pause()
    }

    /// Resumes it.
    pub fn go_on(&self) -> io::Result<()> {
        self.process.go_on()
    }

    /// Its own wall clock.
    ///
    /// # Errors
    /// If it was not started with one.
    pub fn clock(&self) -> io::Result<&Clock> {
        let clock = self.clock.as_ref();
        clock
            .ok_or_else(|| io::Error::other("this server has the clock of the machine: ZkOptions::own_clock"))
    }

    /// Stops it, and starts it again with a number for the next child of that node, which is there and has
    /// none.
    pub fn number_next(&self, parent: &str, number: i32) -> io::Result<()> {
        let status = self.four_letters("srvr")?;
        let last = line(&status, "Zxid").and_then(|z| i64::from_str_radix(z.strip_prefix("0x")?, 16).ok());
        let last = last.ok_or_else(|| {
            self.process
                .trouble("it does not say which transaction is its last")
        })?;
        self.stop_in_order()?;
        let logs = self.process.folder().file("data").join("version-2");
        super::zookeeper_numbers::write(&logs, last, parent, number)?;
        self.start_again()
    }

    /// Ends somebody's session, as if it had run out: its nodes are gone when this returns, and its
    /// connection is closed.
    ///
    /// # Errors
    /// If there is no such session.
    pub fn expire(&self, session: i64) -> io::Result<()> {
        ZkSession::end(self.address(), session)
    }
}

/// The value of a `name: value` line.
fn line<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut values = text.lines().filter_map(|l| l.split_once(':'));
    values.find(|(n, _)| *n == name).map(|(_, value)| value.trim())
}

/// A line of `cons`, if it has a session.
fn client(line: &str) -> Option<ZkClient> {
    let (_, values) = line.split_once('(')?;
    let value = |name: &str| {
        let mut all = values
            .trim_end_matches(')')
            .split(',')
            .filter_map(|v| v.split_once('='));
        all.find(|(n, _)| *n == name).map(|(_, value)| value)
    };
    let session = u64::from_str_radix(value("sid")?.strip_prefix("0x")?, 16).ok()?;
    Some(ZkClient {
        session: session.cast_signed(),
        received: value("recved")?.parse().ok()?,
        sent: value("sent")?.parse().ok()?,
        timeout: Duration::from_millis(value("to")?.parse().ok()?),
    })
}
