//! The failure stories of Redlock, each told once against real servers: what happens, and who is told.
//!
//! `cargo test --all-features --test redlock`
//!
//! Redlock is a lock over N independent Redis servers whose holder is the client that a majority names. It
//! was published by S. Sanfilippo ("Distributed locks with Redis"); M. Kleppmann ("How to do distributed
//! locking", 2016) told where it ends: at clocks, pauses and forgetful servers, with two holders. The answer
//! ("Is Redlock safe?", S. Sanfilippo, 2016) holds against some of that, and not against all. Here each story
//! ends in one of two ways: **no lock is granted that another still holds**, or **the loss is reported in
//! time, and the gate refuses a write with the old token**. The gate is the resource's own, and no member of
//! the quorum.
//!
//! | file | the story | it ends |
//! |---|---|---|
//! | `restart.rs` | a member that two majorities share is started again, and has forgotten its locks | at the gate; with a delayed restart, or where it keeps its locks, there is no second grant |
//! | `clock_jump.rs` | the clock of that member is set forward; those of a majority are | at the gate, and told with the next renewal; with the clock of one and all members in reach: no second grant |
//! | `pause.rs` | a client is stopped past its lease, goes on, and writes | at the gate; it knows before it asks anybody |
//! | `partition.rs` | a client sees a minority; a holder is cut off from a majority | refused in bounded time, with nothing left behind; told by its deadline, before another is granted |
//! | `rollback.rs` | a client gets a minority and no more | what it got is given back at once, and not at the end of the ttl |
//! | `slow.rs` | a member is slow, or stopped | it slows nobody down |
//! | `refused.rs` | what no majority can decide: permits, queues, priorities | `Unsupported`, before anything is sent |
//! | `one_server.rs` | two of the members' URLs lead to one server | it has one vote, also where it comes later |
//! | `mixed.rs` | members of two kinds, Redis and SQLite, that fail in turns | tokens grow over whichever majority |
//!
//! Kept out elsewhere: a delayed answer (rules 16.10 and 1.05 of the conformance kit, which runs on a quorum
//! of five as well: `--only redlock-tokio-multi-thread`), and every order of delayed requests and lost
//! answers (`dlock-core/src/combinators/quorum/tests.rs`).
#![allow(clippy::unwrap_used)] // in a test, a panic is the report

mod clock_jump;
mod mixed;
mod one_server;
mod partition;
mod pause;
mod refused;
mod restart;
mod rollback;
mod site;
mod slow;
