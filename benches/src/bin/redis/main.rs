//! Redis: what a lock costs, beside the bare driver doing the same work on the same server in the same run.
//!
//! `cargo run --release -p dlock-benches --bin redis [quick] [PART...]`; the parts are those of [`PARTS`]. It
//! starts a server of its own. Server and program share one core, so that what is measured is work and not
//! which core slept; commands are counted by the server.
#![allow(clippy::print_stdout)] // it is a program that prints

mod contended;
mod keep;
mod uncontended;

use dlock_benches::redis::{Effort, Goals, Server, cores};

const PARTS: [&str; 6] = ["pair", "inflight", "handoff", "busy", "renewal", "memory"];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|a| a == "--help" || a == "-h") {
        println!("redis [quick] [PART...]; parts: {}", PARTS.join(", "));
        println!("redis count raw|backend|api|raw-many|api-many PAIRS: for a profiler");
        return;
    }
    // For a profiler: that many pairs of one kind, and nothing else.
    if let [count, kind, pairs] = &words[..]
        && count == "count"
    {
        let pairs = pairs.parse().expect("a number of pairs");
        let server = Server::start();
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build();
        return tokio
            .expect("a runtime")
            .block_on(uncontended::count(&server, kind, pairs));
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
        if wanted("busy") {
            contended::busy(&server, effort, &mut table).await;
        }
        if wanted("renewal") {
            keep::renewal(&server, &mut table).await;
        }
        if wanted("memory") {
            keep::memory(&server, &mut table).await;
        }
    });
    let version = server.info("redis_version");
    table.end("redis", &format!("Redis {version}, {cores}, {effort}"));
}
