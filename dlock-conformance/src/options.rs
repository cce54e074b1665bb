//! The options of a run: the rules, the amount of work, and the output.

use std::path::PathBuf;

use crate::attempt::Attempt;
use crate::cx::Effort;
use crate::rule::Rule;

/// Which histories are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Histories {
    /// Those of rules that did not pass.
    #[default]
    NotPassed,
    /// All of them.
    All,
}

/// How to run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How much work rules with rounds do.
    pub effort: Effort,
    /// The seed. Each rule's own seed is derived from it and the rule's number.
    pub seed: u64,
    /// The seed of each attempt, instead of a derived one: repeats a rule exactly.
    pub attempt_seed: Option<u64>,
    /// Selects rules by number or by a part of a test's name. All rules, if empty.
    pub filters: Vec<String>,
    /// Filters must match whole names.
    pub exact: bool,
    /// Rules to skip, in the same way.
    pub skip: Vec<String>,
    /// How many rules run at once, of those that do not disturb others.
    pub parallel: usize,
    /// The directory for reports; `None` for no reports.
    pub report_to: Option<PathBuf>,
    /// The directory for histories, with one directory per backend and runtime. `None`: in `history` beside
    /// the reports, if there are any.
    pub histories_to: Option<PathBuf>,
    /// Which histories are kept.
    pub histories: Histories,
    /// The directory for the certificate of a run of all rules, with its own directory in it; `None` for no
    /// certificate.
    pub certificate_to: Option<PathBuf>,
    /// The command that runs one rule again, up to its number: `cargo test --test conformance --`.
    pub replay: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            effort: Effort::Quick,
            seed: 0x5eed,
            attempt_seed: None,
            filters: Vec::new(),
            exact: false,
            skip: Vec::new(),
            parallel: 4,
            report_to: None,
            histories_to: None,
            histories: Histories::NotPassed,
            certificate_to: None,
            replay: "cargo test --test conformance --".to_owned(),
        }
    }
}

/// The rules of the smoke set: at least one of each section, for the runtimes beside the one on which all
/// rules run.
const SMOKE: [&str; 18] = [
    "1.03", "2.03", "2.05", "3.01", "4.01", "4.08", "5.09", "6.03", "7.02", "8.01", "8.12", "9.01", "9.10",
    "9.11", "11.02", "13.06", "14.03", "17.09",
];

impl Options {
    /// Only the smoke set, which shows whether a claimed runtime works at all.
    #[must_use]
    pub fn smoke(mut self) -> Self {
        self.filters = SMOKE.map(str::to_owned).to_vec();
        self.exact = true;
        // It takes all rules.
        self.certificate_to = None;
        self
    }

    /// Whether that rule is selected.
    pub fn selects(&self, rule: &Rule) -> bool {
        let name = rule.test_name();
        let matches = |filter: &String| {
            filter == rule.id
                || *filter == name
                || (!self.exact && name.contains(filter.as_str()))
                || filter.trim_end_matches('.') == rule.section()
        };
        (self.filters.is_empty() || self.filters.iter().any(matches)) && !self.skip.iter().any(matches)
    }

    /// The command that runs that rule again as its last attempt was.
    pub(crate) fn replay_of(&self, rule: &Rule, attempts: &[Attempt]) -> String {
        let seed = match attempts.last() {
            Some(last) => format!("--attempt-seed {:#x}", last.seed),
            None => format!("--seed {:#x}", self.seed),
        };
        let full = match self.effort {
            Effort::Quick => "",
            Effort::Full => " --full",
        };
        format!("{} {} {seed}{full}", self.replay, rule.id)
    }

    /// Whether all rules are selected.
    pub fn is_complete(&self) -> bool {
        self.filters.is_empty() && self.skip.is_empty()
    }
}
