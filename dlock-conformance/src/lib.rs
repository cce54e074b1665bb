//! Conformance rules for distributed locks: numbered, typed, run against any backend or lock library.
//!
//! Implement [`Harness`] (three methods), write `dlock_conformance::main!(MyHarness);` into a test with
//! `harness = false`, and run `cargo test`. The rules are in [`rules`], with a description of how they are
//! written. `MUSEUM.md` shows the real bugs that they catch.

pub mod agent;
mod arguments;
mod attempt;
mod book;
mod canary;
mod catalogue;
mod certificate;
pub mod checker;
pub mod claims;
mod cli;
mod cx;
mod ear;
mod engine_subject;
mod executor;
mod folding;
mod foreign;
mod forward;
mod harness;
pub mod history;
pub mod hooks;
mod lent;
mod lock;
mod mode;
#[doc(hidden)]
#[path = "../saboteur/museum/mod.rs"]
pub mod museum;
mod nanos;
pub mod network;
mod one_server;
mod options;
mod outcome;
mod panics;
mod policy;
pub mod proxy;
pub mod report;
mod rng;
mod rule;
pub mod rules;
mod run_state;
mod runner;
#[cfg(dlock_saboteur)]
#[path = "../saboteur/mod.rs"]
pub mod saboteur;
mod setters;
mod shown;
mod side_by_side;
pub mod simulated;
mod simulated_full;
mod simulated_machine;
mod simulated_network;
mod simulated_process;
pub mod subject;
mod sweep;
mod switch;
mod table;
mod task;
mod verdict;
mod verify;

pub use arguments::{Arguments, Value};
pub use attempt::{Attempt, run_once};
pub use book::rules_page;
pub use catalogue::rules_json;
pub use certificate::{Certificate, Certified, Kept};
pub use claims::{Claims, Engine, Need, Skew, Waiver};
#[doc(hidden)]
pub use cli::main_with;
pub use cx::{Conditions, Cx, Effort};
pub use ear::{Ear, Told};
pub use engine_subject::EngineSubject;
pub use executor::Executor;
pub use folding::folded;
pub use foreign::{Foreign, Library};
pub use harness::{Clockwork, Connecting, Driven, Harness, RealTime};
pub use history::{History, Lane, Recorded, Watching};
pub use hooks::{Hooks, Restart, Step, Vitals};
pub use lent::{Lent, Loan};
pub use one_server::OneServer;
pub use options::{Histories, Options};
pub use outcome::{Kind, Outcome};
pub use policy::{Merging, RwPolicy};
pub use report::{Report, RuleReport};
pub use rng::Rng;
pub use rule::{Access, Detection, Evidence, Layer, Level, Rule, Test};
pub use runner::run;
pub use subject::{Ask, AutoRenewal, Convert, Granted, Held, Observe, Reply, Subject, Upgraded};
pub use sweep::{Cut, Sweep, Waking};
pub use table::certificates_table;
pub use task::Task;
pub use verdict::{Failure, Seen, Verdict};
pub use verify::verify;
