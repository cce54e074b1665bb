//! The alarms and the dashboard of `docs/prometheus`, on a real Prometheus server that scrapes programs which
//! use locks.
//!
//! `cargo test --all-features --test prometheus`
//!
//! | file | what it shows |
//! |---|---|
//! | `alarms.rs` | each alarm is silent, is provoked once by what it is for, and is raised, it and no other |
//! | `ordinary.rs` | what is ordinary raises none; every panel of the dashboard shows something; help and units arrive |
//! | `files.rs` | both files name what there is; `promtool` finds nothing to say; how long things last before an alarm |
//! | `site.rs` | the server, and the programs that it scrapes |
#![allow(clippy::unwrap_used)] // in a test, a panic is the report

mod alarms;
mod files;
mod ordinary;
mod site;
