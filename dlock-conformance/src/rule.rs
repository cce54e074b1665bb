//! A rule, declared once. Its registry entry, test name, documentation, `RULES.json` and matrix row come from
//! it.

use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::claims::Need;
use crate::cx::Cx;
use crate::shown::shown;
use crate::verdict::Verdict;

/// How binding a rule is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    /// A lock of that profile has to keep it.
    Must,
    /// Good, and listed.
    Should,
    /// Optional, and tested where claimed.
    May,
}

/// Which layer keeps the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// The store and its driver.
    Backend,
    /// The code that waits, renews and reports losses: inherited if the subject uses the engine of
    /// `dlock-core`.
    Engine,
    /// Either can break it.
    Both,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Backend => "the store and its driver",
            Self::Engine => {
                "the code that waits, renews and reports losses: the engine of dlock, or your own"
            }
            Self::Both => "the store and its driver, and the code that waits, renews and reports losses",
        })
    }
}

/// What the kit needs besides the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// The API alone.
    A,
    /// A proxy in front of the server.
    P,
    /// A child process that is killed and stopped.
    C,
    /// A hook of the harness.
    H,
    /// The simulator.
    S,
}

impl Access {
    /// What must be claimed for it to make sense.
    fn need(self) -> Option<Need> {
        match self {
            Self::P => Some(Need::Network),
            Self::C => Some(Need::Processes),
            Self::A | Self::H | Self::S => None,
        }
    }

    /// Whether other rules that run at the same time would notice. A proxy belongs to one rule alone.
    pub(crate) fn disturbs(self) -> bool {
        matches!(self, Self::H | Self::S)
    }
}

/// How a rule is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Test {
    /// A deterministic scenario.
    D,
    /// Timing, with a lower and an upper bound. Runs beside others of its kind, with a canary. A stalled
    /// machine makes it inconclusive.
    T,
    /// A seeded history, and checkers.
    X,
    /// A sweep of drops at every poll.
    Z,
    /// At compile time.
    K,
}

/// How reliably a planted bug shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Detection {
    /// In every run: 20 of 20.
    Deterministic,
    /// By chance or timing: 198 of 200.
    Stochastic,
}

/// A counter that a run must reach. A run below it proves nothing and is inconclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// The name given to [`Cx::evidence`].
    pub counter: &'static str,
    /// How often at least.
    pub least: u64,
}

/// A rule.
pub struct Rule {
    /// Its number, for ever: `3.02`.
    pub id: &'static str,
    /// How binding it is.
    pub level: Level,
    /// The phase in which it was added.
    pub phase: u8,
    /// What it needs of the subject.
    pub needs: &'static [Need],
    /// Which layer keeps it.
    pub layer: Layer,
    /// What the kit needs.
    pub access: Access,
    /// How it is tested.
    pub test: Test,
    /// Two to five words with `_` between them. It is the name of its function, and the end of its test's
    /// name.
    pub title: &'static str,
    /// The rule, in one sentence.
    pub statement: &'static str,
    /// Why it matters: what goes wrong in the field without it.
    pub intent: &'static str,
    /// Where to look first when it fails.
    pub check_first: &'static str,
    /// What a run must have seen.
    pub evidence: &'static [Evidence],
    /// How long a run may take before the watchdog ends it.
    pub budget: Duration,
    /// The planted bug that it must catch.
    pub bug: Option<(&'static str, Detection)>,
    /// The body.
    pub run: fn(Cx) -> BoxFuture<'static, Verdict>,
}

/// The rules that run alone. Two block a thread of the runtime for longer than a ttl: if it has only one, all
/// other work stops as well, and the locks of other rules expire. Two count the records of the whole store.
const ALONE: [&str; 5] = ["3.04", "7.04", "7.16", "13.13", "19.10"];

impl Rule {
    /// All that must be claimed for it to run.
    pub fn needed(&self) -> impl Iterator<Item = Need> {
        self.needs.iter().copied().chain(self.access.need())
    }

    /// Whether it and other rules that run at the same time would notice each other.
    pub(crate) fn disturbs(&self) -> bool {
        self.access.disturbs() || ALONE.contains(&self.id)
    }

    /// The section: 3 of `3.02`.
    pub fn section(&self) -> &'static str {
        self.id.split('.').next().unwrap_or(self.id)
    }

    /// The name of the test: `must_3_02_no_early_grant`.
    pub fn test_name(&self) -> String {
        let (level, id) = (format!("{:?}", self.level), self.id.replace('.', "_"));
        format!("{}_{id}_{}", level.to_lowercase(), self.title)
    }
}

/// 3.02 before 10.01.
pub(crate) fn order(id: &str) -> (u32, u32) {
    let (section, rule) = id.split_once('.').unwrap_or((id, "0"));
    (
        section.parse().unwrap_or(u32::MAX),
        rule.parse().unwrap_or(u32::MAX),
    )
}

shown!(Rule, it => "{}", it.test_name());

/// Declares the rule that the function below it tests. This is the only place that describes it. Its title is
/// the function's name. A run may take a minute unless a `budget` allows more, and shows its bug each time
/// unless that is `stochastic`.
///
/// See the module documentation of [`rules`](crate::rules) for how rules are written.
macro_rules! rule {
    (
        $id:literal $level:ident phase $phase:literal [$($need:ident),*]
        $layer:ident $access:ident $test:ident $title:ident
        $(, evidence [$($counter:literal >= $least:literal),*])?
        $(, bug $bug:literal $($detection:ident)?)?
        $(, budget $budget:literal s)?
        $statement:literal
        why $intent:literal
        check $check_first:literal
    ) => {
        pub(in crate::rules) mod $title {
            use $crate::rule::{Access, Detection, Layer, Level, Rule, Test};

            pub(in crate::rules) static RULE: Rule = Rule {
                id: $id,
                level: Level::$level,
                phase: $phase,
                needs: &[$($crate::claims::Need::$need),*],
                layer: Layer::$layer,
                access: Access::$access,
                test: Test::$test,
                title: stringify!($title),
                statement: $statement,
                intent: $intent,
                check_first: $check_first,
                evidence: &[$($($crate::rule::Evidence { counter: $counter, least: $least }),*)?],
                budget: $crate::rule::rule!(@budget $($budget)?),
                bug: $crate::rule::rule!(@bug $($bug $($detection)?)?),
                run: |cx| Box::pin(super::$title(cx)),
            };
        }
    };
    (@budget) => { $crate::rule::rule!(@budget 60) };
    (@budget $seconds:literal) => { std::time::Duration::from_secs($seconds) };
    (@bug) => { None };
    (@bug $bug:literal) => { Some(($bug, Detection::Deterministic)) };
    (@bug $bug:literal stochastic) => { Some(($bug, Detection::Stochastic)) };
}
pub(crate) use rule;

/// The rules of a file.
macro_rules! rules {
    ($($title:ident),* $(,)?) => {
        pub(super) static RULES: &[&$crate::rule::Rule] = &[$(&$title::RULE),*];
    };
}
pub(crate) use rules;
