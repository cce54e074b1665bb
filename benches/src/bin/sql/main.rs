//! SQL databases: what a lock costs, beside the bare driver doing the same work on the same server in the
//! same run.
//!
//! `cargo run --release -p dlock-benches --bin sql [quick] [PART...]`; the parts are those of [`PARTS`]. It
//! starts servers of its own. Server and program share one core, so that what is measured is work and not
//! which core slept; statements are counted by the server.
#![allow(clippy::print_stdout)] // it is a program that prints

mod file;
mod handoff;
mod keep;
mod pair;

use dlock_benches::redis::{Effort, Goals, cores};
use dlock_benches::sql::{Disk, Server};

const PARTS: [&str; 9] = [
    "postgres-pair",
    "postgres-handoff",
    "postgres-renewal",
    "mariadb-pair",
    "mariadb-handoff",
    "mariadb-renewal",
    "durable",
    "sqlite-pair",
    "sqlite-handoff",
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|a| a == "--help" || a == "-h") {
        println!("sql [quick] [PART...]; parts: {}", PARTS.join(", "));
        return;
    }
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    if words.first().is_some_and(|word| word == file::PEER) {
        return tokio.block_on(file::peer(&words[1..]));
    }
    let (effort, chosen) = Effort::of(words, &PARTS).unwrap_or_else(|unknown| {
        println!("{unknown}");
        std::process::exit(2)
    });
    let cores = cores();
    let wanted = |part: &str| chosen.iter().any(|c| c == part);
    let of = |database: &str| chosen.iter().any(|c| c.starts_with(database));
    let mut table = Goals::default();
    let mut versions = Vec::new();
    tokio.block_on(async {
        for (name, start) in [
            ("postgres", Server::postgres as fn(Disk) -> Server),
            ("mariadb", Server::maria),
        ] {
            if of(name) {
                let server = start(Disk::Not);
                versions.push(server.version());
                if wanted(&format!("{name}-pair")) {
                    pair::rows(&server, effort, &mut table).await;
                    pair::sessions(&server, effort, &mut table).await;
                }
                if wanted(&format!("{name}-handoff")) {
                    handoff::rows(&server, effort, &mut table).await;
                    handoff::sessions(&server, effort, &mut table).await;
                }
                if wanted(&format!("{name}-renewal")) {
                    keep::renewal(&server, &mut table).await;
                }
            }
            if wanted("durable") {
                let server = start(Disk::Waited);
                pair::durable(&server, &mut table).await;
                if name == "postgres" {
                    pair::many(&server, effort, &mut table).await;
                }
            }
        }
        if wanted("sqlite-pair") {
            file::pair(effort, &mut table).await;
        }
        if wanted("sqlite-handoff") {
            file::handoff(effort, &mut table).await;
        }
    });
    table.end("sql", &format!("{}, {cores}, {effort}", versions.join(", ")));
}
