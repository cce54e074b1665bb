//! ZooKeeper: what a lock costs, beside the bare driver, the driver's own recipe and Apache Curator, on the
//! same server in the same run.
//!
//! `cargo run --release -p dlock-benches --bin zookeeper [quick] [PART...]`; the parts are those of
//! [`PARTS`]. It starts a server of its own. All of them share one core, so that what is measured is work and
//! not which core slept; requests are counted by the server.
#![allow(clippy::print_stdout)] // it is a program that prints

mod contended;
mod keep;
mod uncontended;

use dlock_benches::redis::{Effort, Goals, cores};
use dlock_benches::zookeeper::Server;

const PARTS: [&str; 5] = ["pair", "inflight", "handoff", "upkeep", "memory"];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|a| a == "--help" || a == "-h") {
        println!("zookeeper [quick] [PART...]; parts: {}", PARTS.join(", "));
        return;
    }
    let (effort, chosen) = Effort::of(words, &PARTS).unwrap_or_else(|unknown| {
        println!("{unknown}");
        std::process::exit(2)
    });
    let cores = cores();
    let server = Server::start();
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let wanted = |part: &str| chosen.iter().any(|c| c == part);
    let mut table = Goals::default();
    tokio.block_on(async {
        if wanted("pair") {
            uncontended::pair(&server, effort, &mut table).await;
        }
        if wanted("inflight") {
            uncontended::inflight(&server, effort, &mut table).await;
        }
        if wanted("handoff") {
            contended::handoff(&server, effort, &mut table).await;
        }
        if wanted("upkeep") {
            keep::upkeep(&server, &mut table).await;
        }
        if wanted("memory") {
            keep::memory(&Server::that_sweeps(), &mut table).await;
        }
    });
    table.end("zookeeper", &format!("ZooKeeper, {cores}, {effort}"));
}
