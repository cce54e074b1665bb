//! etcd: what a lock costs, beside the bare driver and etcd's own lock API, on the same server in the same
//! run.
//!
//! `cargo run --release -p dlock-benches --bin etcd [quick] [PART...]`; the parts are those of [`PARTS`]. It
//! starts a server of its own, in `DLOCK_TEST_FOLDER`: on a disk, since every proposal waits for it.
//! Proposals and events are counted by the server.
#![allow(clippy::print_stdout)] // it is a program that prints

mod contended;
mod uncontended;

use dlock_benches::etcd::Server;
use dlock_benches::redis::{Effort, Goals, cores};

const PARTS: [&str; 3] = ["pair", "inflight", "handoff"];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|a| a == "--help" || a == "-h") {
        println!("etcd [quick] [PART...]; parts: {}", PARTS.join(", "));
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
    });
    table.end("etcd", &format!("etcd, {cores}, {effort}"));
}
