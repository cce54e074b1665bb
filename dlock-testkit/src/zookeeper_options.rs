//! How a ZooKeeper server is configured.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::certificates::Certificates;
use crate::redis_options::Tls;

/// The library, and what Debian's forgets to name that it needs: netty's part for TLS, and somebody to write
/// the log.
const JARS: &str = include_str!("zookeeper.jars");

/// Where Debian puts them.
pub const JARS_FOLDER: &str = "/usr/share/java";

/// A user that no ACL restricts, with which the tests read protected nodes; and the digest of both for the
/// server. The password is no secret.
pub(crate) const SUPER: &str = "super:of-the-tests";
const SUPER_DIGEST: &str = "super:0BhCXnbzCQnH9Z1c+4TX5z/tdak=";

const LOGGING: &str = "log4j.rootLogger=INFO,C
log4j.appender.C=org.apache.log4j.ConsoleAppender
log4j.appender.C.layout=org.apache.log4j.PatternLayout
log4j.appender.C.layout.ConversionPattern=%d %p %c{1} %m%n
";

/// How a server is to be, or all those of an ensemble.
#[derive(Clone, Debug)]
pub struct ZkOptions {
    pub(crate) tick: Duration,
    pub(crate) sessions: (Duration, Duration),
    pub(crate) containers: Duration,
    pub(crate) compiled: bool,
    pub(crate) tls: Tls,
    pub(crate) users: Vec<(String, String)>,
    pub(crate) own_clock: bool,
    pub(crate) lines: Vec<String>,
    pub(crate) properties: Vec<(String, String)>,
}

impl Default for ZkOptions {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(100),
            sessions: (Duration::from_millis(400), Duration::from_secs(60)),
            containers: Duration::from_secs(1),
            compiled: false,
            tls: Tls::Off,
            users: Vec::new(),
            own_clock: false,
            lines: Vec::new(),
            properties: Vec::new(),
        }
    }
}

/// The ports of a server of an ensemble: for the others, and for elections.
pub(crate) type Peer = (u16, u16);

impl ZkOptions {
    /// A server that lets everybody in, agrees to sessions of 0.4 s to 60 s, finds one out within a tenth of
    /// a second after it ran out, and removes empty containers every second.
    pub fn new() -> Self {
        Self::default()
    }

    /// Its unit of time: a session that ran out is found out at the next whole one.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// The shortest and the longest session that it agrees to.
    #[must_use]
    pub fn sessions(mut self, least: Duration, most: Duration) -> Self {
        self.sessions = (least, most);
        self
    }

    /// How often empty containers are looked for.
    #[must_use]
    pub fn containers(mut self, interval: Duration) -> Self {
        self.containers = interval;
        self
    }

    /// Compiled as far as Java can, as a server is that has run for a while, and not only as far as it takes
    /// to begin soon: to be measured.
    #[must_use]
    pub fn compiled(mut self) -> Self {
        self.compiled = true;
        self
    }

    /// Listens with TLS too.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// A user who may come by SASL (DIGEST-MD5). Without one the server knows nothing of SASL.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned()));
        self
    }

    /// With a wall clock of its own, which can be set.
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

    /// Another property of its Java machine.
    #[must_use]
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }

    /// What Java is told: little memory, no second compiler, the first one late, and no threads to collect
    /// garbage, since there are many servers and few cores.
    pub(crate) fn arguments(&self, folder: &Path) -> io::Result<Vec<OsString>> {
        let files = JARS
            .lines()
            .map(|jar| Path::new(JARS_FOLDER).join(format!("{jar}.jar")));
        let files: Vec<_> = files.collect();
        if let Some(file) = files.iter().find(|file| !file.is_file()) {
            return Err(missing(file));
        }
        let path = std::env::join_paths(files).map_err(io::Error::other)?;
        let file = |name: &str| folder.join(name).display().to_string();
        let mut properties: Vec<(&str, String)> = vec![
            (
                "log4j.configuration",
                format!("file:{}", file("log4j.properties")),
            ),
            (
                "znode.container.checkIntervalMs",
                self.containers.as_millis().to_string(),
            ),
            // Enough that one sweep takes all.
            ("znode.container.maxPerMinute", "600000".to_owned()),
            (
                "zookeeper.DigestAuthenticationProvider.superDigest",
                SUPER_DIGEST.to_owned(),
            ),
            // A process that is killed has written what it has; only a machine that loses power has not, and
            // none does here.
            ("zookeeper.forceSync", "no".to_owned()),
            ("zookeeper.preAllocSize", "1024".to_owned()),
        ];
        if !self.users.is_empty() {
            properties.push(("java.security.auth.login.config", file("jaas.conf")));
        }
        let more = self.properties.iter().map(|(n, v)| (n.as_str(), v.clone()));
        let mut words: Vec<OsString> = ["-Xmx256m", "-XX:+UseSerialGC"].map(OsString::from).into();
        if !self.compiled {
            words.extend(["-XX:TieredStopAtLevel=1", "-XX:CompileThresholdScaling=5"].map(OsString::from));
        }
        let classes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/zookeeper.jsa");
        if classes.is_file() {
            words.push(format!("-XX:SharedArchiveFile={}", classes.display()).into());
        }
        words.extend(
            properties
                .into_iter()
                .chain(more)
                .map(|(n, v)| format!("-D{n}={v}").into()),
        );
        words.extend(["-cp".into(), path]);
        words.push("org.apache.zookeeper.server.quorum.QuorumPeerMain".into());
        words.push(file("zoo.cfg").into());
        Ok(words)
    }

    /// Writes what it reads when it starts. `me` is its number, from 1, among `peers`; 0 stands alone.
    pub(crate) fn write(
        &self,
        folder: &Path,
        (port, tls_port): (u16, Option<u16>),
        (me, peers): (usize, &[Peer]),
        certificates: Option<&Arc<Certificates>>,
    ) -> io::Result<()> {
        let data = folder.join("data");
        std::fs::create_dir_all(&data)?;
        let mut text = format!(
            "tickTime={}\ninitLimit=100\nsyncLimit=30\ndataDir={}\nclientPort={port}\n\
             clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n\
             4lw.commands.whitelist=*\nextendedTypesEnabled=true\n\
             minSessionTimeout={}\nmaxSessionTimeout={}\n",
            self.tick.as_millis(),
            data.display(),
            self.sessions.0.as_millis(),
            self.sessions.1.as_millis(),
        );
        let mut add = |line: std::fmt::Arguments<'_>| {
            let _ = writeln!(text, "{line}");
        };
        if me > 0 {
            std::fs::write(data.join("myid"), me.to_string())?;
            for (n, (peer, election)) in peers.iter().enumerate() {
                add(format_args!("server.{}=127.0.0.1:{peer}:{election}", n + 1));
            }
        }
        if let (Some(port), Some(made)) = (tls_port, certificates) {
            // One file for both: that is how it knows PEM.
            let (certificate, key) = made.server();
            let both = [std::fs::read(certificate)?, std::fs::read(key)?].concat();
            std::fs::write(folder.join("server.pem"), both)?;
            std::fs::copy(made.authority(), folder.join("authority.pem"))?;
            let clients = if self.tls == Tls::Both { "need" } else { "none" };
            add(format_args!(
                "secureClientPort={port}\nsecureClientPortAddress=127.0.0.1"
            ));
            add(format_args!(
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
                 ssl.clientAuth={clients}"
            ));
            add(format_args!(
                "ssl.keyStore.location={0}/server.pem\nssl.trustStore.location={0}/authority.pem",
                folder.display()
            ));
        }
        if !self.users.is_empty() {
            add(format_args!(
                "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
            ));
            std::fs::write(folder.join("jaas.conf"), self.jaas())?;
        }
        for line in &self.lines {
            add(format_args!("{line}"));
        }
        std::fs::write(folder.join("log4j.properties"), LOGGING)?;
        std::fs::write(folder.join("zoo.cfg"), text)
    }

    fn jaas(&self) -> String {
        let users = self.users.iter().map(|(n, p)| format!("  user_{n}=\"{p}\"\n"));
        let users: String = users.collect();
        format!("Server {{\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n{users}  ;\n}};\n")
    }
}

/// What to do where a library is not there.
pub fn missing(file: &Path) -> io::Error {
    let text = format!(
        "{} is not there: run scripts/services, which installs what the tests need",
        file.display()
    );
    io::Error::new(io::ErrorKind::NotFound, text)
}
