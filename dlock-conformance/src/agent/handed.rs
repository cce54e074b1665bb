//! What a child gets at its start, through its environment.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

use crate::cx::Effort;

/// In the environment of a child: a [`Handed`] in JSON.
pub(super) const VARIABLE: &str = "DLOCK_AGENT";

/// Arguments for the child. With them, a libtest binary that does not serve as a child runs no test instead
/// of all.
pub(super) const ARGUMENTS: [&str; 2] = ["--exact", "dlock-agent"];

/// What a child gets at its start.
#[derive(Serialize, Deserialize)]
pub(super) struct Handed {
    pub(super) store: String,
    pub(super) rule: String,
    pub(super) namespace: String,
    pub(super) seed: u64,
    pub(super) effort: Effort,
}

pub(super) fn handed() -> Option<Result<Handed, serde_json::Error>> {
    let text: OsString = std::env::var_os(VARIABLE)?;
    Some(serde_json::from_str(&text.to_string_lossy()))
}

/// Whether this process is a child.
pub(crate) fn is_child() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// In a child: what the parent's [`hand_over`](crate::Harness::hand_over) returned. `None` in any other
/// process.
pub fn handed_over() -> Option<String> {
    handed()?.ok().map(|handed| handed.store)
}
