//! How to run: which rules, how much of each, and what is kept of it.

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
    /// The seed; each rule's own seed comes from it and the rule's number.
    pub seed: u64,
    /// The seed of each attempt, instead of one made from the run's: to run a rule again just as it was.
    pub attempt_seed: Option<u64>,
    /// Which rules: a number, or a part of a test's name. All, if there is none.
    pub filters: Vec<String>,
    /// Filters are whole names.
    pub exact: bool,
    /// Which rules not, in the same way.
    pub skip: Vec<String>,
    /// How many rules that disturb no others run at once.
    pub parallel: usize,
    /// Where reports go; `None`: nowhere.
    pub report_to: Option<PathBuf>,
    /// Where histories go, in a directory per backend and runtime; `None`: to `history` beside the reports,
    /// if these go anywhere.
    pub histories_to: Option<PathBuf>,
    /// Which histories are kept.
    pub histories: Histories,
    /// Where the certificate of a run of all rules goes, in a directory of its own; `None`: nowhere.
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
    /// Only the smoke set: whether a runtime that is claimed works at all.
    #[must_use]
    pub fn smoke(mut self) -> Self {
        self.filters = SMOKE.map(str::to_owned).to_vec();
        self.exact = true;
        // It takes all rules.
        self.certificate_to = None;
        self
    }

    /// Whether that rule is asked for.
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

    /// Whether all rules are asked for.
    pub fn is_complete(&self) -> bool {
        self.filters.is_empty() && self.skip.is_empty()
    }
}
