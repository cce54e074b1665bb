//! How an etcd server is started.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::certificates::Certificates;
use crate::redis_options::Tls;

/// The login of the tests themselves at a server with users. The password is no secret.
pub(crate) const ROOT: (&str, &str) = ("root", "of-the-tests");

/// Where `scripts/services` puts a server of etcd 3.5, from the root of the project.
const ETCD_35: &str = "target/etcd-3.5/etcd";

/// A server of etcd 3.5, for [`EtcdOptions::program`]: that which `DLOCK_ETCD_35` names, or which
/// `scripts/services` has brought.
///
/// # Errors
/// If it is not there.
pub fn etcd_35() -> io::Result<PathBuf> {
    let there = std::env::var_os("DLOCK_ETCD_35").map(PathBuf::from);
    let file = there.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(ETCD_35));
    crate::process::find(file)
}

/// How a server is to be, or all those of an ensemble.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    pub(crate) program: PathBuf,
    pub(crate) times: (Duration, Duration),
    pub(crate) tls: Tls,
    pub(crate) users: Vec<[String; 3]>,
    pub(crate) arguments: Vec<String>,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self {
            program: "etcd".into(),
            times: (Duration::from_millis(50), Duration::from_millis(500)),
            tls: Tls::Off,
            users: Vec::new(),
            arguments: Vec::new(),
        }
    }
}

/// Where a server is, and among whom.
pub(crate) struct Place<'a> {
    pub(crate) name: &'a str,
    pub(crate) folder: &'a Path,
    /// Where it listens: for clients, for the other members, and for metrics.
    pub(crate) urls: [String; 3],
    /// By what the others reach it, and all members so.
    pub(crate) advertised: &'a str,
    pub(crate) cluster: &'a str,
}

impl EtcdOptions {
    /// A server of the system's etcd without users. Its times are half of etcd's own, so that it leads half a
    /// second after its start, and grants leases of a second: the minimum is one and a half election
    /// timeouts, in whole seconds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses another program than the `etcd` in the path.
    #[must_use]
    pub fn program(mut self, program: &Path) -> Self {
        program.clone_into(&mut self.program);
        self
    }

    /// Sets the heartbeat interval and the election timeout.
    #[must_use]
    pub fn times(mut self, heartbeat: Duration, election: Duration) -> Self {
        self.times = (heartbeat, election);
        self
    }

    /// Also listens to clients with TLS.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// Adds a user with all rights below a prefix. With a user, every client needs a login; the tests use
    /// that of root.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str, prefix: &str) -> Self {
        self.users.push([name, password, prefix].map(str::to_owned));
        self
    }

    /// Sets how many seconds a user's token lives unused.
    #[must_use]
    pub fn token_ttl(self, seconds: u32) -> Self {
        self.argument(&format!("--auth-token-ttl={seconds}"))
    }

    /// Sets the quota of data in bytes. One write beyond it rejects all writes until the alarm is disarmed.
    #[must_use]
    pub fn quota(self, bytes: u64) -> Self {
        self.argument(&format!("--quota-backend-bytes={bytes}"))
    }

    /// Adds an argument of its program, which overrides the others.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    pub(crate) fn words(&self, place: &Place<'_>, certificates: Option<&Certificates>) -> Vec<OsString> {
        let [clients, peers, metrics] = &place.urls;
        let mut words = place.words();
        words.extend([
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls={peers}"),
            format!("--listen-metrics-urls={metrics}"),
            format!("--heartbeat-interval={}", self.times.0.as_millis()),
            format!("--election-timeout={}", self.times.1.as_millis()),
            // 3.4 has another format.
            "--logger=zap".to_owned(),
            "--log-outputs=stderr".to_owned(),
            // The minimum: checking a password takes a fraction of a millisecond.
            "--bcrypt-cost=4".to_owned(),
            // It would ask the server as a client whose certificate is the server's.
            "--enable-grpc-gateway=false".to_owned(),
        ]);
        if let Some(made) = certificates {
            let (certificate, key) = made.server();
            words.push(format!("--cert-file={}", certificate.display()));
            words.push(format!("--key-file={}", key.display()));
            if self.tls == Tls::Both {
                words.push("--client-cert-auth".to_owned());
                words.push(format!("--trusted-ca-file={}", made.authority().display()));
            }
        }
        words.extend_from_slice(&self.arguments);
        words.into_iter().map(OsString::from).collect()
    }
}

impl Place<'_> {
    /// What both the server is told and who makes its data from a snapshot.
    pub(crate) fn words(&self) -> Vec<String> {
        vec![
            format!("--name={}", self.name),
            format!("--data-dir={}", self.folder.join("data").display()),
            format!("--initial-advertise-peer-urls={}", self.advertised),
            format!("--initial-cluster={}", self.cluster),
        ]
    }
}
