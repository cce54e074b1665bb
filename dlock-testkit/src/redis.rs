//! One Redis server.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;

use crate::certificates::Certificates;
use crate::clock::Clock;
use crate::place::Folder;
use crate::ports::Port;
use crate::process::Process;
use crate::redis_options::{RedisOptions, Tls};
use crate::resp::{Connection, Value, field};
use crate::until::until;

/// How long a start may take, on a machine that has much else to do.
const START: Duration = Duration::from_secs(30);

/// How long it may take to end in order: it may have to write its data.
const STOP: Duration = Duration::from_secs(20);

/// How often another port is tried where somebody who knows nothing of our claims was faster.
const PORTS: u32 = 5;

/// A Redis server, killed when it is dropped.
#[derive(Debug)]
pub struct RedisServer {
    process: Process,
    options: Mutex<RedisOptions>,
    ports: Mutex<Ports>,
    certificates: Option<Arc<Certificates>>,
    clock: Option<Clock>,
}

#[derive(Debug)]
struct Ports {
    plain: Port,
    tls: Option<Port>,
    bus: Option<Port>,
}

impl Ports {
    fn new(options: &RedisOptions) -> io::Result<Self> {
        let more = |wanted: bool| wanted.then(Port::free).transpose();
        Ok(Self {
            plain: Port::free()?,
            tls: more(options.tls != Tls::Off)?,
            bus: more(options.cluster.is_some())?,
        })
    }

    fn numbers(&self) -> (u16, Option<u16>, Option<u16>) {
        let number = |p: &Option<Port>| p.as_ref().map(Port::number);
        (self.plain.number(), number(&self.tls), number(&self.bus))
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RedisServer {
    /// A server as [`RedisOptions::new`] has it, which answers.
    ///
    /// # Errors If a program is not installed, or the server does not start; with its log.
    pub fn start() -> io::Result<Self> {
        Self::with(RedisOptions::new())
    }

    /// A server with those options, which answers.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn with(options: RedisOptions) -> io::Result<Self> {
        let folder = Folder::new("redis")?;
        let clock = options.own_clock.then(|| Clock::new(&folder)).transpose()?;
        let certificates = match options.tls {
            Tls::Off => None,
            _ => Some(Certificates::of_this_program()?),
        };
        let environment = clock.as_ref().map(Clock::environment).unwrap_or_default();
        let file = folder.file("redis.conf").into();
        let server = Self {
            ports: Mutex::new(Ports::new(&options)?),
            process: Process::new("redis-server", folder, "redis-server", &environment, &[file])?,
            options: Mutex::new(options),
            certificates,
            clock,
        };
        for n in 1.. {
            server.configure()?;
            match server.start_again() {
                Err(_) if n < PORTS && server.process.log().contains("Address already in use") => {
                    let ports = Ports::new(&lock(&server.options))?;
                    *lock(&server.ports) = ports;
                }
                started => {
                    started?;
                    break;
                }
            }
        }
        Ok(server)
    }

    /// Writes its configuration, over what the server itself may have written there since.
    fn configure(&self) -> io::Result<()> {
        let folder = self.process.folder();
        let ports = lock(&self.ports).numbers();
        let text = lock(&self.options).configuration(folder.path(), ports, self.certificates.as_ref())?;
        std::fs::write(folder.file("redis.conf"), text)
    }

    // --- where it is ---

    /// Where it listens, without TLS.
    pub fn address(&self) -> SocketAddr {
        lock(&self.ports).plain.address()
    }

    /// Its address with TLS, if it has one.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        lock(&self.ports).tls.as_ref().map(Port::address)
    }

    /// Where it listens for the other nodes of its cluster.
    pub(crate) fn bus_port(&self) -> Option<u16> {
        lock(&self.ports).bus.as_ref().map(Port::number)
    }

    /// The address as a URL, with the password of the default user if there is one.
    pub fn url(&self) -> String {
        match &lock(&self.options).password {
            Some(password) => format!("redis://:{password}@{}", self.address()),
            None => format!("redis://{}", self.address()),
        }
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

    /// A connection as a user with all rights.
    ///
    /// # Errors
    /// Those of the socket; a server that is down refuses.
    pub fn connection(&self) -> io::Result<Connection> {
        self.connection_to(self.address())
    }

    /// To another server whose users are the same.
    fn connection_to(&self, address: SocketAddr) -> io::Result<Connection> {
        let mut connection = Connection::open(address)?;
        if let Some((user, password)) = lock(&self.options).login() {
            connection.ask(&["AUTH", user, password])?;
        }
        Ok(connection)
    }

    /// One command on a connection of its own.
    ///
    /// # Errors
    /// Those of the connection, and the server's.
    pub fn ask<W: AsRef<[u8]>>(&self, words: &[W]) -> io::Result<Value> {
        self.connection()?.ask(words)
    }

    /// A value of its INFO.
    ///
    /// # Errors
    /// As [`ask`](Self::ask); and if there is no such line.
    pub fn info(&self, name: &str) -> io::Result<String> {
        let text = self.ask(&["INFO"])?.text();
        let value = field(&text, name).map(str::to_owned);
        value.ok_or_else(|| io::Error::other(format!("INFO has no {name}")))
    }

    /// What changes with each start.
    pub fn run_id(&self) -> io::Result<String> {
        self.info("run_id")
    }

    /// What `TIME` shows, since 1970.
    pub fn time(&self) -> io::Result<Duration> {
        let values = self.ask(&["TIME"])?.list()?;
        let part = |n: usize| {
            let n = values.get(n).map_or(Ok(0), Value::number);
            n.map(|n| u64::try_from(n).unwrap_or(0))
        };
        Ok(Duration::from_secs(part(0)?) + Duration::from_micros(part(1)?))
    }

    // --- what is done to it ---

    /// Starts it on the same port, with what its folder has; answers when it does.
    ///
    /// # Errors If it runs already, or does not start; with its log.
    pub fn start_again(&self) -> io::Result<()> {
        self.process.start()?;
        let pid = self.process.pid().map(|n| n.to_string());
        let mut ended = None;
        let ready = until("the server answers", START, || {
            ended = self.process.ended()?;
            if ended.is_some() {
                return Ok(true);
            }
            let text = self.ask(&["INFO"])?.text();
            // Its own process, and nobody who had the port before it.
            Ok(field(&text, "process_id") == pid.as_deref() && field(&text, "loading") == Some("0"))
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

    /// Kills it (SIGKILL).
    pub fn crash(&self) -> io::Result<()> {
        self.process.kill()
    }

    /// Ends it as an operator does (SIGTERM): it writes what it is configured to.
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

    /// Its own wall clock.
    ///
    /// # Errors
    /// If it was not started with one.
    pub fn clock(&self) -> io::Result<&Clock> {
        let clock = self.clock.as_ref();
        clock.ok_or_else(|| {
            io::Error::other("this server has the clock of the machine: RedisOptions::own_clock")
        })
    }

    // --- replication ---

    /// Makes it a replica of the server there, or its own master.
    pub fn follow(&self, master: Option<SocketAddr>) -> io::Result<()> {
        let (host, port) = match master {
            Some(master) => (master.ip().to_string(), master.port().to_string()),
            None => ("NO".into(), "ONE".into()),
        };
        self.ask(&["REPLICAOF", &host, &port])?;
        self.will_follow(master);
        Ok(())
    }

    /// The same for its next start, of a server that is down.
    pub(crate) fn will_follow(&self, master: Option<SocketAddr>) {
        lock(&self.options).replica_of = master;
    }

    /// As it will be configured when it is started again; for one whose options were changed.
    pub(crate) fn reconfigure(&self) -> io::Result<()> {
        self.configure()
    }

    /// Waits until it is a replica that has what its master has, and the master knows that: which it does
    /// when it has heard so, up to a second later.
    pub fn wait_until_in_sync(&self, limit: Duration) -> io::Result<()> {
        let synced = until("the replica is in sync", limit, || {
            let text = self.ask(&["INFO", "replication"])?.text();
            let is_up =
                field(&text, "role") == Some("slave") && field(&text, "master_link_status") == Some("up");
            let at = field(&text, "master_host").zip(field(&text, "master_port"));
            let master = at.and_then(|(host, port)| format!("{host}:{port}").parse().ok());
            // Where the master does not let it ask, that it is linked has to do.
            Ok(is_up && master.is_some_and(|master| self.is_known_to(master).unwrap_or(true)))
        });
        synced.map_err(|e| self.process.trouble(e))
    }

    fn is_known_to(&self, master: SocketAddr) -> io::Result<bool> {
        let text = self.connection_to(master)?.ask(&["INFO", "replication"])?.text();
        let here = format!("port={},state=online", self.address().port());
        Ok(text
            .lines()
            .any(|line| line.starts_with("slave") && line.contains(&here)))
    }

    /// Cuts its replicas off, now and until [`let_replicas_in`](Self::let_replicas_in): what it writes from
    /// here on they do not have. All else goes on, the replicas too.
    ///
    /// Stopping a replica (SIGSTOP) does not do that: what was sent to it lies in its socket, and it reads
    /// that when it goes on, after the master's death too.
    pub fn cut_replicas(&self) -> io::Result<()> {
        let mut connection = self.connection()?;
        // First nobody may come back, then those who are there go.
        connection.ask(&["ACL", "SETUSER", "default", "-psync", "-sync"])?;
        connection.ask(&["CLIENT", "KILL", "TYPE", "replica"])?;
        until("no replica is connected", Duration::from_secs(5), || {
            let text = connection.ask(&["INFO", "replication"])?.text();
            Ok(field(&text, "connected_slaves") == Some("0"))
        })
    }

    /// Lets replicas in again, by `PSYNC` only: one whose `PSYNC` was refused a moment before goes on with
    /// the old `SYNC`, and a replica that came in by that never acknowledges anything.
    pub fn let_replicas_in(&self) -> io::Result<()> {
        self.ask(&["ACL", "SETUSER", "default", "+psync"])?;
        Ok(())
    }

    /// Gives it another port, at once if it runs and in any case from its next start on. The one that it had
    /// comes back.
    ///
    /// Connections to the old port stay, as far as the server is concerned.
    pub(crate) fn move_to(&self, port: Port) -> io::Result<Port> {
        if self.process.pid().is_some() {
            let number = port.number().to_string();
            self.ask(&["CONFIG", "SET", "port", &number])?;
        }
        Ok(std::mem::replace(&mut lock(&self.ports).plain, port))
    }
}
