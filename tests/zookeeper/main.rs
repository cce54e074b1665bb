//! What becomes of locks in ZooKeeper when something fails, each story told once against real servers.
//!
//! `cargo test --all-features --test zookeeper`
//!
//! In all of them: **no two guards are valid at a time**, a holder is told of a lost lock by its deadline,
//! tokens grow, and waiters go on within a session's time and some slack.
//!
//! | file | the story |
//! |---|---|
//! | `leader.rs` | the leader of the ensemble is killed while one holds and ten wait |
//! | `lagging.rs` | a follower stands still again and again, while clients of all members take turns |
//! | `expired.rs` | a session is ended at the server |
//! | `stopped.rs` | a client is stopped past its session, goes on, and writes |
//! | `black_hole.rs` | nothing comes through any more, and no connection breaks |
//! | `secured.rs` | everything by TLS and SASL, as a URL says it |
//! | `dropped.rs` | a thousand waits are given up at any point, and nothing is left in the store |
#![allow(clippy::unwrap_used)] // in a test, a panic is the report

mod black_hole;
mod dropped;
mod expired;
mod lagging;
mod leader;
#[cfg(all(feature = "zookeeper-tls", feature = "zookeeper-sasl"))]
mod secured;
mod site;
mod stopped;
