//! Apache Curator, in a Java process of its own.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::server::{SESSION, Server};
use dlock_testkit::{Folder, JARS_FOLDER};

const SOURCE: &str = include_str!("Bench.java");

const JARS: [&str; 9] = [
    "curator-recipes",
    "curator-framework",
    "curator-client",
    "zookeeper",
    "zookeeper-jute",
    "netty-codec",
    "netty-resolver",
    "guava",
    "slf4j-nop",
];

/// So long its compiler is let warm up.
const WARM: Duration = Duration::from_secs(4);

/// Curator's `InterProcessMutex`.
#[derive(Debug)]
pub struct Curator {
    folder: Folder,
    address: String,
}

/// One cycle, nobody else there.
#[derive(Clone, Copy, Debug)]
pub struct Pair(pub Duration);

/// Many at one lock.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// How often anybody had it.
    pub grants: u64,
    /// The middle of how long it took from one to another.
    pub gap: Duration,
}

impl Curator {
    /// On that server.
    pub fn new(server: &Server) -> Self {
        let folder = Folder::new("curator").expect("a folder can be made");
        std::fs::write(folder.file("Bench.java"), SOURCE).expect("it can be written");
        Self {
            folder,
            address: server.address(),
        }
    }

    fn run(&self, line: &str, tasks: usize, sessions: usize, length: Duration) -> (u64, Duration) {
        let jars = JARS.map(|jar| PathBuf::from(format!("{JARS_FOLDER}/{jar}.jar")));
        let mut java = Command::new("java");
        java.args(["-XX:+UseSerialGC", "-cp"])
            .arg(std::env::join_paths(jars).expect("good paths"))
            .arg(self.folder.file("Bench.java"))
            .args([&self.address, line])
            .args([
                SESSION.as_millis().to_string(),
                tasks.to_string(),
                sessions.to_string(),
            ])
            .args([WARM.as_millis().to_string(), length.as_millis().to_string()])
            .stdin(Stdio::null());
        let done = java.output().expect("Curator is installed: scripts/services");
        let text = String::from_utf8_lossy(&done.stdout);
        let mut numbers = text.split_whitespace().map(|n| n.parse::<u64>().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(n), Some(nanos)) => (n, Duration::from_nanos(nanos)),
            _ => panic!("Curator: {}", String::from_utf8_lossy(&done.stderr)),
        }
    }

    /// One after the other for that long.
    pub fn pair(&self, line: &str, length: Duration) -> Pair {
        Pair(self.run(line, 1, 1, length).1)
    }

    /// That many threads over that many sessions for that long.
    pub fn crowd(&self, line: &str, tasks: usize, sessions: usize, length: Duration) -> Crowd {
        let (grants, gap) = self.run(line, tasks, sessions, length);
        Crowd { grants, gap }
    }
}
