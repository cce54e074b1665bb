//! Peers in other languages: a program that works at our word, on our core, and says what it saw.
//!
//! It reads a line, `pair MILLIS`, `inflight TASKS MILLIS` or `crowd CLIENTS TASKS HOLD_US THINK_US MILLIS`,
//! and answers by lines that begin with a word, numbers after it, the last of them `done`. Times are
//! nanoseconds. In a crowd it says `begin` and `end` when what counts begins and ends, and we ask the server
//! for its counts: a moment later, as the core is shared, which is what a few tries of the crowd are worth.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_benches::redis::{Counted, Seen, Server, Spell};

use crate::peer::Peer;

/// Where `setup` puts what it installs.
const INSTALLED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/others");
/// Where the programs are.
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/others");

/// How to run one.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    what: &'static str,
    /// What runs it, in the folder of what is installed where it is a path.
    runs: &'static str,
    file: &'static str,
    /// What has to be there.
    needs: &'static str,
}

pub(crate) const REDIS_PY: Program = Program {
    name: "redis-py",
    what: "its `Lock` as it comes, for Python: tries again every 100 ms. The pair by the `Lock` that \
        blocks, the tasks by that of \
         `redis.asyncio`. No fencing token, no renewal",
    runs: "python/bin/python",
    file: "redis_py.py",
    needs: "python/bin/python",
};

pub(crate) const NODE_REDLOCK: Program = Program {
    name: "node-redlock",
    what: "Redlock with one server, for Node: tries again after 100 to 300 ms, as it comes, but without \
        end. No fencing token, and renewal \
         only in its `using`",
    runs: "node",
    file: "node_redlock.js",
    needs: "node/node_modules/redlock",
};

/// One that runs.
pub(crate) struct Worker {
    program: &'static Program,
    version: String,
    server: Rc<Server>,
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Worker {
    /// # Errors
    /// What is not installed, or why it does not start.
    pub(crate) fn start(program: &'static Program, server: &Rc<Server>) -> io::Result<Self> {
        let installed = PathBuf::from(INSTALLED);
        if !installed.join(program.needs).exists() {
            return Err(io::Error::other(
                "it is not installed; benches/peers/setup does that",
            ));
        }
        let runs = match program.runs.contains('/') {
            true => installed.join(program.runs),
            false => program.runs.into(),
        };
        let mut child = Command::new(runs)
            .arg(PathBuf::from(PROGRAMS).join(program.file))
            .arg(server.port().to_string())
            .env("NODE_PATH", installed.join("node/node_modules"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (to, from) = to.zip(from).ok_or_else(|| io::Error::other("it has no pipes"))?;
        let mut worker = Self {
            program,
            version: String::new(),
            server: Rc::clone(server),
            child,
            to,
            from: BufReader::new(from),
        };
        let (word, version) = worker.line()?;
        if word != "ready" {
            return Err(io::Error::other(format!("it says {word} {version}")));
        }
        worker.version = version;
        Ok(worker)
    }

    /// A word, and the rest of the line.
    fn line(&mut self) -> io::Result<(String, String)> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            return Err(io::Error::other("it has ended: what it wrote above tells why"));
        }
        let (word, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
        Ok((word.to_owned(), rest.to_owned()))
    }

    /// Gives it a task, and hands on what it says until it is done.
    fn task(&mut self, task: &str, mut told: impl FnMut(&str, Vec<f64>)) {
        writeln!(self.to, "{task}").expect("it listens");
        loop {
            let (word, rest) = self.line().expect(self.program.name);
            if word == "done" {
                return;
            }
            let numbers = rest.split_whitespace().map(|n| n.parse().expect("a number"));
            told(&word, numbers.collect());
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn times(nanos: Vec<f64>) -> Vec<Duration> {
    nanos
        .into_iter()
        .map(|n| Duration::from_nanos(n as u64))
        .collect()
}

#[async_trait(?Send)]
impl Peer for Worker {
    fn name(&self) -> &'static str {
        self.program.name
    }

    fn what(&self) -> String {
        format!("{}; {}", self.version, self.program.what)
    }

    fn waits(&self) -> bool {
        true
    }

    async fn pair(&mut self, length: Duration) -> Vec<Duration> {
        let mut took = Vec::new();
        self.task(&format!("pair {}", length.as_millis()), |_, nanos| {
            took = times(nanos)
        });
        took
    }

    async fn inflight(&mut self, tasks: usize, length: Duration) -> f64 {
        let mut rate = 0.0;
        self.task(
            &format!("inflight {tasks} {}", length.as_millis()),
            |_, numbers| {
                rate = numbers[0];
            },
        );
        rate
    }

    async fn crowd(&mut self, clients: usize, tasks: usize, spell: Spell) -> Seen {
        let server = Rc::clone(&self.server);
        let mut seen = Seen {
            took: spell.length,
            ..Seen::default()
        };
        let mut before = Counted::default();
        let task = format!(
            "crowd {clients} {tasks} {} {} {}",
            spell.hold.as_micros(),
            spell.think.as_micros(),
            spell.length.as_millis()
        );
        self.task(&task, |word, numbers| match word {
            "begin" => before = Counted::now(&server),
            "end" => seen.counted = Counted::now(&server).since(&before),
            "each" => seen.each = numbers.into_iter().map(|n| n as u64).collect(),
            "gaps" => seen.gaps = times(numbers),
            "held" => seen.held = times(numbers).into_iter().sum(),
            other => panic!("nobody asked for {other}"),
        });
        seen.handoffs = seen.gaps.len() as u64;
        seen
    }
}
