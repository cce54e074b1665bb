//! How a Redis server is configured.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use crate::certificates::Certificates;

/// What of its data it has when it is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing.
    #[default]
    None,
    /// What it had when it was stopped in order; after a crash what was there at the last stop, if there was
    /// one. (`save`: an RDB file.)
    OnStop,
    /// Everything that it has answered, after a crash of it too (`appendonly yes`). It is written before it
    /// answers, and the disk has it some time later (`appendfsync no`): what a machine forgets that loses its
    /// power no test sees, and a disk that others write to would make it answer late.
    Always,
}

/// Whether it listens with TLS too, on a port of its own beside the plain one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    #[default]
    Off,
    /// Clients check the server.
    Server,
    /// Both check each other.
    Both,
}

/// How a server is to be.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    pub(crate) persistence: Persistence,
    pub(crate) password: Option<String>,
    pub(crate) users: Vec<String>,
    pub(crate) tls: Tls,
    pub(crate) memory: Option<(u64, &'static str)>,
    pub(crate) replica_of: Option<SocketAddr>,
    pub(crate) own_clock: bool,
    pub(crate) cluster: Option<Cluster>,
    pub(crate) lines: Vec<String>,
    pub(crate) sentinel_lines: Vec<String>,
}

/// What makes it a node of a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster {
    /// After how many milliseconds of silence a node is suspected.
    pub(crate) timeout: u32,
}

/// The user as which the tests themselves speak to a server that has users. The password is no secret.
pub(crate) const KEEPER: (&str, &str) = ("keeper", "of-the-tests");

impl RedisOptions {
    /// A server that keeps nothing, lets everybody in, and has the machine's clock.
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn persistence(mut self, persistence: Persistence) -> Self {
        self.persistence = persistence;
        self
    }

    /// The password of the default user.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// A user as a line of an ACL file has it, without the word `user`: `app on >secret ~dlock* &* +@all`.
    /// `default off` refuses clients without a name.
    #[must_use]
    pub fn user(mut self, line: &str) -> Self {
        self.users.push(line.to_owned());
        self
    }

    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// The maximum number of bytes (0: set later, by `CONFIG SET`), and the policy when they are full:
    /// `noeviction`, `allkeys-lru` and so on.
    #[must_use]
    pub fn memory(mut self, bytes: u64, policy: &'static str) -> Self {
        self.memory = Some((bytes, policy));
        self
    }

    /// A replica of the server there, which has the same password.
    #[must_use]
    pub fn replica_of(mut self, master: SocketAddr) -> Self {
        self.replica_of = Some(master);
        self
    }

    /// With a wall clock of its own, which can be set (libfaketime). It costs each command some microseconds.
    #[must_use]
    pub fn own_clock(mut self) -> Self {
        self.own_clock = true;
        self
    }

    /// Another line of its configuration.
    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Another line of the configuration of each sentinel that watches over it, if any do.
    #[must_use]
    pub fn sentinel_line(mut self, line: &str) -> Self {
        self.sentinel_lines.push(line.to_owned());
        self
    }

    /// As which user the tests speak to it.
    pub(crate) fn login(&self) -> Option<(&str, &str)> {
        match &self.password {
            _ if !self.users.is_empty() => Some(KEEPER),
            Some(password) => Some(("default", password)),
            None => None,
        }
    }

    /// The file of its users.
    pub(crate) fn users(&self) -> String {
        let (name, password) = KEEPER;
        let keeper = format!("{name} on >{password} ~* &* +@all");
        let all = self.users.iter().chain([&keeper]);
        all.map(|line| format!("user {line}\n")).collect()
    }

    /// Its configuration, in that folder.
    pub(crate) fn configuration(
        &self,
        folder: &Path,
        ports: (u16, Option<u16>, Option<u16>),
        certificates: Option<&Arc<Certificates>>,
    ) -> io::Result<String> {
        let (port, tls_port, bus_port) = ports;
        let mut text = format!(
            "bind 127.0.0.1\nport {port}\ndir {}\ndaemonize no\nloglevel verbose\n\
             repl-diskless-sync-delay 0\nrepl-ping-replica-period 1\nrepl-timeout 10\nshutdown-timeout \
             2\nenable-debug-command local\n",
            folder.display()
        );
        let mut add = |line: std::fmt::Arguments<'_>| {
            let _ = writeln!(text, "{line}");
        };
        match self.persistence {
            Persistence::None => add(format_args!("save \"\"\nappendonly no")),
            // So seldom that no save comes in between.
            Persistence::OnStop => add(format_args!("save 86400 1\nappendonly no")),
            Persistence::Always => add(format_args!("save \"\"\nappendonly yes\nappendfsync no")),
        }
        if let Some(password) = &self.password {
            add(format_args!("masterauth {password}"));
            if self.users.is_empty() {
                add(format_args!("requirepass {password}"));
            }
        }
        if !self.users.is_empty() {
            std::fs::write(folder.join("users.acl"), self.users())?;
            add(format_args!("aclfile {}", folder.join("users.acl").display()));
        }
        if let (Some(port), Some(made)) = (tls_port, certificates) {
            let (certificate, key) = made.server();
            let clients = if self.tls == Tls::Both { "yes" } else { "no" };
            add(format_args!(
                "tls-port {port}\ntls-cert-file {}",
                certificate.display()
            ));
            add(format_args!(
                "tls-key-file {}\ntls-auth-clients {clients}",
                key.display()
            ));
            add(format_args!("tls-ca-cert-file {}", made.authority().display()));
        }
        if let Some((bytes, policy)) = self.memory {
            add(format_args!("maxmemory {bytes}\nmaxmemory-policy {policy}"));
        }
        if let Some(master) = self.replica_of {
            add(format_args!("replicaof {} {}", master.ip(), master.port()));
        }
        if let (Some(Cluster { timeout }), Some(bus)) = (self.cluster, bus_port) {
            add(format_args!(
                "cluster-enabled yes\ncluster-config-file nodes.conf\ncluster-port {bus}"
            ));
            // However long the link to its master was cut, a replica may take over: it is what some tests
            // want to see.
            add(format_args!(
                "cluster-node-timeout {timeout}\ncluster-replica-validity-factor 0"
            ));
        }
        for line in &self.lines {
            add(format_args!("{line}"));
        }
        Ok(text)
    }
}
