//! Redis locks of others beside ours, in one run: `--help` says what, and `benches/README.md` what each
//! column means.
#![allow(clippy::print_stdout)] // it is a program that prints

mod kinds;
mod listen;
mod peer;
mod report;
mod rounds;
mod worker;

use std::rc::Rc;

use dlock_benches::redis::{Effort, Server, cores};
use kinds::{distributed_lock, ours, raw, redisson, rslock};
use peer::{InProcess, Peer};
use worker::Worker;

const PARTS: [&str; 4] = ["pair", "inflight", "busy", "handoff"];

const HELP: &str = "\
peers [quick] [PART...]: locks on Redis of other libraries beside dlock's, in one run, as a table in Markdown.

  pair        one task at a lock that nobody else wants: latency, and commands
  inflight    64 tasks, each at a lock of its own: throughput
  busy        64 tasks at one lock, each holds it for 2 ms and thinks for 20 ms: is it held all the time?
  handoff     64 tasks at one lock, nobody holds it for longer than it takes: from task to task
  quick       a few seconds instead of minutes: to see that it works, not for figures

Without a PART all are measured. Each is measured in rounds, in which all peers take their turn; the first
round warms up and does not count. The last two are measured with one client for all 64 tasks, and with a
client for each.

It starts a redis-server of its own, which ends with it, and puts that and itself on one core: what is
measured is work. Read ratios and counts, not microseconds, and stop other work meanwhile.

redis-py and node-redlock take part where benches/peers/setup has installed them, and are left out where it \
has not.";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("{HELP}");
        return;
    }
    let (effort, parts) = Effort::of(words, &PARTS).unwrap_or_else(|unknown| {
        println!("{unknown}; --help tells more");
        std::process::exit(2)
    });
    let cores = cores();
    let server = Rc::new(Server::start());
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    tokio.block_on(async {
        let mut peers: Vec<Box<dyn Peer>> = vec![
            Box::new(InProcess::<raw::Raw>::new(&server)),
            Box::new(InProcess::<ours::Dlock>::new(&server)),
            Box::new(InProcess::<rslock::Rslock>::new(&server)),
            Box::new(InProcess::<distributed_lock::DistributedLock>::new(&server)),
            Box::new(InProcess::<redisson::Redisson>::new(&server)),
        ];
        let mut missing = Vec::new();
        for program in [&worker::REDIS_PY, &worker::NODE_REDLOCK] {
            match Worker::start(program, &server) {
                Ok(worker) => peers.push(Box::new(worker)),
                Err(why) => missing.push(format!("{} is left out: {why}", program.name)),
            }
        }
        for line in &missing {
            println!("{line}");
        }
        let measured = rounds::all(&server, &mut peers, &parts, effort).await;
        let mut text = format!(
            "Redis {}, {cores}, {effort}\n\n{}",
            server.info("redis_version"),
            report::table(&measured)
        );
        for (peer, figures) in peers.iter().zip(&measured) {
            text.push_str(&format!("- {}: {}\n", figures.name, peer.what()));
        }
        for line in &missing {
            text.push_str(&format!("- {line}\n"));
        }
        println!("\n{text}");
        report::points(&measured).keep("peers", &text);
    });
}
