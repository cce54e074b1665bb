//! A master, its replica, and three sentinels that watch over them.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::place::Folder;
use crate::ports::Port;
use crate::process::Process;
use crate::redis::RedisServer;
use crate::redis_options::RedisOptions;
use crate::resp::{Connection, Value};
use crate::until::until;

/// What the sentinels call the master.
const NAME: &str = "mymaster";

const SENTINELS: usize = 3;

/// A sentinel takes a server for dead after this many milliseconds of silence.
const DOWN_AFTER: u32 = 1000;

/// How long the sentinels may take to agree on something.
const AGREE: Duration = Duration::from_secs(30);

/// One sentinel.
#[derive(Debug)]
struct Sentinel {
    process: Process,
    port: Port,
}

/// Two servers under three sentinels.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: [RedisServer; 2],
    sentinels: Vec<Sentinel>,
}

/// The id of the n-th sentinel; 40 hexadecimal digits as Redis makes them.
fn id(n: usize) -> String {
    format!("{:040x}", 0xd10c_0000 + n)
}

impl Sentinel {
    fn ask(&self, words: &[&str]) -> io::Result<Value> {
        Connection::open(self.port.address())?.ask(words)
    }

    /// Where it says that the master is.
    fn master(&self) -> io::Result<SocketAddr> {
        let told = self.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME])?.list()?;
        let told: Vec<String> = told.iter().map(Value::text).collect();
        told.join(":").parse().map_err(io::Error::other)
    }

    /// What it knows of the master and its replica: name and value alternate in each.
    fn knows(&self, what: &str) -> io::Result<Vec<Vec<(String, String)>>> {
        let all = self.ask(&["SENTINEL", what, NAME])?.list()?;
        let one = |entry: Value| {
            let words: Vec<String> = entry.list()?.iter().map(Value::text).collect();
            Ok(words
                .chunks_exact(2)
                .map(|p| (p[0].clone(), p[1].clone()))
                .collect())
        };
        all.into_iter().map(one).collect()
    }
}

fn value<'a>(of: &'a [(String, String)], name: &str) -> &'a str {
    of.iter().find(|(n, _)| n == name).map_or("", |(_, v)| v)
}

impl RedisSentinel {
    /// Both servers as [`RedisOptions::new`] has them.
    pub fn start() -> io::Result<Self> {
        Self::with(RedisOptions::new())
    }

    /// Both servers with those options.
    pub fn with(options: RedisOptions) -> io::Result<Self> {
        let master = RedisServer::with(options.clone())?;
        let replica = RedisServer::with(options.clone().replica_of(master.address()))?;
        let ports = (0..SENTINELS)
            .map(|_| Port::free())
            .collect::<io::Result<Vec<_>>>()?;
        let numbers: Vec<u16> = ports.iter().map(Port::number).collect();
        let mut sentinels = Vec::new();
        for (n, port) in ports.into_iter().enumerate() {
            // A file of its own, which it writes what it learns into.
            let folder = Folder::new("sentinel")?;
            let file = folder.file("sentinel.conf");
            let text = configuration(n, &numbers, &folder, (&master, &replica), &options);
            std::fs::write(&file, text)?;
            let words: [OsString; 2] = [file.into(), "--sentinel".into()];
            let process = Process::new("sentinel", folder, "redis-server", &[], &words)?;
            process.start()?;
            sentinels.push(Sentinel { process, port });
        }
        let all = Self {
            servers: [master, replica],
            sentinels,
        };
        all.servers[1].wait_until_in_sync(AGREE)?;
        all.hasten()?;
        all.wait_until_ready()?;
        Ok(all)
    }

    /// The sentinels ask more often than every ten seconds, and a pause of a busy machine does not make them
    /// hold still for half a minute: settings that Redis 7.0 has for its own tests. An older one is slower
    /// and no less right.
    fn hasten(&self) -> io::Result<()> {
        for sentinel in &self.sentinels {
            until("the sentinel answers", AGREE, || {
                if sentinel.process.ended()?.is_some() {
                    return Ok(true);
                }
                sentinel.ask(&["PING"]).map(|_| true)
            })
            .map_err(|e| sentinel.process.trouble(e))?;
            if let Some(status) = sentinel.process.ended()? {
                return Err(sentinel.process.trouble(status));
            }
            // Refused where it is not known. Two settings are no smaller for a reason. What is known of a
            // replica is believed for five ping periods, and it is asked once a second while its master is
            // gone: with shorter ones no replica would be good enough. And a sentinel that has not heard of a
            // promotion for four publish periods takes it back, which the one that promoted sees a second
            // late.
            let _ = sentinel.ask(&[
                "SENTINEL",
                "DEBUG",
                "INFO-PERIOD",
                "200",
                "PING-PERIOD",
                "500",
                "ASK-PERIOD",
                "100",
                "TILT-TRIGGER",
                "20000",
                "TILT-PERIOD",
                "1000",
            ]);
        }
        Ok(())
    }

    /// Waits until each sentinel sees the others, the master, and a replica that could take over.
    pub fn wait_until_ready(&self) -> io::Result<()> {
        let ready = until("the sentinels see everybody", AGREE, || {
            for sentinel in &self.sentinels {
                // Says how many can be used, or why they are too few.
                let quorum = sentinel.ask(&["SENTINEL", "CKQUORUM", NAME])?.text();
                let replicas = sentinel.knows("REPLICAS")?;
                let well = |r: &Vec<(String, String)>| {
                    value(r, "flags") == "slave" && value(r, "master-link-status") == "ok"
                };
                if !quorum.starts_with("OK 3") || !matches!(replicas.as_slice(), [one] if well(one)) {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        ready.map_err(|e| self.sentinels[0].process.trouble(e))
    }

    // --- who is who ---

    /// What the sentinels call the master.
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// Where the sentinels are.
    pub fn sentinels(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(|s| s.port.address()).collect()
    }

    /// Both servers.
    pub fn servers(&self) -> &[RedisServer; 2] {
        &self.servers
    }

    /// Which of the servers all sentinels call the master: 0 or 1.
    ///
    /// # Errors
    /// While they do not agree.
    pub fn leader(&self) -> io::Result<usize> {
        let first = self.sentinels[0].master()?;
        for sentinel in &self.sentinels[1..] {
            let told = sentinel.master()?;
            if told != first {
                return Err(io::Error::other(format!(
                    "one sentinel says {first}, another {told}"
                )));
            }
        }
        let which = self.servers.iter().position(|s| s.address() == first);
        which.ok_or_else(|| io::Error::other(format!("the sentinels say {first}, which is nobody")))
    }

    /// The server that all sentinels call the master.
    pub fn serving(&self) -> io::Result<&RedisServer> {
        Ok(&self.servers[self.leader()?])
    }

    /// The other one.
    pub fn standing_by(&self) -> io::Result<&RedisServer> {
        Ok(&self.servers[1 - self.leader()?])
    }

    // --- what is done to it ---

    /// The sentinels are told to make the replica the master (`SENTINEL FAILOVER`). The old master lives, and
    /// takes writes until it is turned into a replica, which forgets what the new one has not heard: by this,
    /// as soon as all agree on the new one, since the sentinels take eight seconds for it. Returns when all
    /// is ready for the next one.
    pub fn fail_over(&self) -> io::Result<()> {
        let old = self.leader()?;
        // A sentinel that has not heard from the replica for a moment refuses, so all are asked until one
        // accepts.
        until("a sentinel begins to fail over", AGREE, || {
            self.sentinels[0].ask(&["SENTINEL", "FAILOVER", NAME])?;
            Ok(true)
        })
        .map_err(|e| self.sentinels[0].process.trouble(e))?;
        self.wait_for_master(1 - old)?;
        self.mend()
    }

    /// The master is killed, and the sentinels find that out. Returns when all agree on the new one; the dead
    /// one stays dead, until [`mend`](Self::mend).
    pub fn crash_over(&self) -> io::Result<()> {
        let old = self.leader()?;
        self.servers[old].crash()?;
        self.wait_for_master(1 - old)
    }

    /// The same to a replica that lacks what `writes` did, and whatever else was written meanwhile. That may
    /// take some seconds and not more: the sentinels do not take a replica that has been alone for ten times
    /// their patience.
    pub fn crash_over_to_stale<T>(&self, writes: impl FnOnce() -> T) -> io::Result<T> {
        self.serving()?.cut_replicas()?;
        let written = writes();
        self.crash_over()?;
        Ok(written)
    }

    /// Starts a dead server again, as a replica of the master. Returns when it is in sync, and the sentinels
    /// know.
    pub fn mend(&self) -> io::Result<()> {
        let (master, other) = (self.serving()?.address(), self.standing_by()?);
        if other.pid().is_none() {
            other.start_again()?;
        }
        // The sentinels would do that too, some ten seconds later.
        other.follow(Some(master))?;
        other.wait_until_in_sync(AGREE)?;
        self.wait_until_ready()
    }

    fn wait_for_master(&self, which: usize) -> io::Result<()> {
        let new = &self.servers[which];
        let agreed = until("the sentinels agree on the new master", AGREE, || {
            Ok(self.leader()? == which && new.info("role")? == "master")
        });
        agreed.map_err(|e| self.sentinels[0].process.trouble(e))
    }
}

fn configuration(
    n: usize,
    ports: &[u16],
    folder: &Folder,
    (master, replica): (&RedisServer, &RedisServer),
    options: &RedisOptions,
) -> String {
    let address = |of: &RedisServer| format!("{} {}", of.address().ip(), of.address().port());
    let mut lines = vec![
        format!("port {}", ports[n]),
        "bind 127.0.0.1".to_owned(),
        format!("dir {}", folder.path().display()),
        format!("sentinel myid {}", id(n)),
        format!("sentinel monitor {NAME} {} 2", address(master)),
        format!("sentinel down-after-milliseconds {NAME} {DOWN_AFTER}"),
        format!("sentinel failover-timeout {NAME} 10000"),
        format!("sentinel parallel-syncs {NAME} 1"),
        // They would find each other and the replica by themselves, some seconds later.
        format!("sentinel known-replica {NAME} {}", address(replica)),
    ];
    for (other, port) in ports.iter().enumerate().filter(|(other, _)| *other != n) {
        lines.push(format!(
            "sentinel known-sentinel {NAME} 127.0.0.1 {port} {}",
            id(other)
        ));
    }
    if let Some((user, password)) = options.login() {
        lines.push(format!("sentinel auth-user {NAME} {user}"));
        lines.push(format!("sentinel auth-pass {NAME} {password}"));
    }
    lines.extend(options.sentinel_lines.iter().cloned());
    lines.join("\n") + "\n"
}
