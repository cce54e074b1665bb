//! The contents of a report.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::attempt::Attempt;
use crate::claims::{Claims, Engine, Need, Waiver};
use crate::cx::Effort;
use crate::options::Options;
use crate::outcome::{Kind, Outcome};
use crate::rule::{Access, Layer, Level, Rule, Test};
use crate::rules;

/// The format version of `report.json`.
pub const SCHEMA: u32 = 1;

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The version of the kit.
    pub kit: &'static str,
    /// The product under test.
    pub product: String,
    /// Its version.
    pub version: String,
    /// The backend's short name.
    pub backend: &'static str,
    /// The runtime that it ran on.
    pub runtime: &'static str,
    /// Whose engine waits, renews and reports losses.
    pub engine: Engine,
    /// The claims as text: capabilities, and the claims of the kit.
    pub capabilities: String,
    /// The claimed needs.
    pub claims: BTreeSet<Need>,
    /// Bounds that were claimed.
    pub bounds: BTreeMap<&'static str, String>,
    /// Of these, the ones that are much wider than usual.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wide_bounds: Vec<String>,
    /// The needs of every profile that are not claimed: an exclusive lock, a try, a wait.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_basis: Vec<Need>,
    /// Waivers, used or not.
    pub waivers: Vec<Waiver>,
    /// How much work was done.
    pub effort: Effort,
    /// The seed.
    pub seed: u64,
    /// Whether all rules were selected.
    pub complete: bool,
    /// When it ended, in seconds since 1970.
    pub ended_unix_s: u64,
    /// How long it took.
    pub took: Duration,
    /// How late this machine was at most, 999 of 1000 times.
    pub canary_p999: Duration,
    /// The number of rules per outcome.
    pub counts: BTreeMap<Kind, usize>,
    /// The rules, in the order of their numbers.
    pub rules: Vec<RuleReport>,
    /// Problems outside the rules: claims that cannot be judged, panics in the background, reports that were
    /// not written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// The result of one rule.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RuleReport {
    /// Its number.
    pub id: String,
    /// The name of its test.
    pub name: String,
    /// How binding it is.
    pub level: Level,
    /// The rule.
    pub statement: &'static str,
    /// Why it matters.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub intent: &'static str,
    /// Where to look first.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub check_first: &'static str,
    /// Which layer keeps it.
    pub layer: Layer,
    /// What the kit needs for it.
    pub access: Vec<Access>,
    /// How it is tested.
    pub test: Test,
    /// It is kept by the engine of `dlock-core`, not by the backend.
    pub inherited: bool,
    /// Its outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Every run of it.
    pub attempts: Vec<Attempt>,
    /// How to run it again.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub replay: String,
}

impl RuleReport {
    /// The report of a rule with that outcome, after those attempts.
    pub fn tested(
        rule: &Rule,
        outcome: Outcome,
        attempts: Vec<Attempt>,
        inherited: bool,
        replay: String,
    ) -> Self {
        Self {
            id: rule.id.to_owned(),
            name: rule.test_name(),
            level: rule.level,
            statement: rule.statement,
            intent: rule.intent,
            check_first: rule.check_first,
            layer: rule.layer,
            access: vec![rule.access],
            test: rule.test,
            inherited,
            outcome,
            attempts,
            replay,
        }
    }

    /// A rule that was not run because it could not connect is an error if other rules could. Returns whether
    /// it was.
    pub(crate) fn blame_connecting(&mut self) -> bool {
        let unconnected = self.attempts.last().is_some_and(|last| last.unconnected);
        match &self.outcome {
            Outcome::NotRun { reason } if unconnected => {
                let what = format!("{reason}; other rules of this run could");
                self.outcome = Outcome::Error { what };
                true
            }
            _ => false,
        }
    }
}
impl Report {
    /// The report of those rules. [`run`](crate::run) makes one; a program that runs rules [one by
    /// one](crate::run_once) can make its own.
    pub fn new(
        claims: &Claims,
        runtime: &'static str,
        options: &Options,
        canary_p999: Duration,
        took: Duration,
        reports: Vec<RuleReport>,
    ) -> Self {
        macro_rules! shown {
            ($($bound:ident)+) => { [$((stringify!($bound), format!("{:?}", claims.$bound))),+] };
        }
        let mut bounds = BTreeMap::from(shown! {
            slack op_bound give_up wake_p99 cancel_prompt drop_prompt largest_default round_trips
            reentry_depth rw merging watch_backlog
        });
        let (starvation, skew) = (claims.starvation_factor, claims.skew);
        bounds.insert("starvation_factor", format!("{starvation} times the mean wait"));
        bounds.insert("skew", format!("{} ppm + {:?}", skew.ppm, skew.fixed));
        let strict = || "strict priorities".to_owned();
        let ageing = claims.ageing.map_or_else(strict, |d| format!("{d:?}"));
        bounds.insert("ageing", ageing);
        let needs = rules::all().flat_map(Rule::needed);
        let mut counts = BTreeMap::new();
        for rule in &reports {
            *counts.entry(rule.outcome.kind()).or_default() += 1;
        }
        let ended = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            schema: SCHEMA,
            kit: env!("CARGO_PKG_VERSION"),
            product: claims.product.clone(),
            version: claims.version.clone(),
            backend: claims.capabilities.backend,
            runtime,
            engine: claims.engine,
            capabilities: format!("{:?}", claims.capabilities),
            claims: needs.filter(|need| claims.has(*need)).collect(),
            bounds,
            wide_bounds: claims.wide(),
            missing_basis: claims.missing_basis(),
            waivers: claims.waivers.clone(),
            effort: options.effort,
            seed: options.seed,
            complete: options.is_complete(),
            ended_unix_s: ended.as_secs(),
            took,
            canary_p999,
            counts,
            rules: reports,
            problems: Vec::new(),
        }
    }

    /// How many rules have that outcome.
    pub fn count(&self, kind: Kind) -> usize {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// The total outcome: the first in order of dominance that occurs. `None` if no rule was run.
    pub fn total(&self) -> Option<Kind> {
        let mut kinds = self.counts.keys().copied();
        kinds.find(|kind| *kind != Kind::Unsupported)
    }

    /// How many rules have a verdict. One that could not connect has none, nor one that is waived.
    pub fn run_count(&self) -> usize {
        let not_run = [Kind::NotRun, Kind::Unsupported, Kind::Waived];
        self.rules.len() - not_run.map(|kind| self.count(kind)).iter().sum::<usize>()
    }

    /// 0 only if a rule passed, and none failed, ended in an error or was inconclusive: 1 for a fail, 2 for
    /// an inconclusive, 3 for an error of the kit, of the harness or of the report, or a panic in the
    /// background; 4 if nothing passed, or an exclusive lock, a try or a wait is not claimed, so that there
    /// is no profile.
    pub fn exit_code(&self) -> u8 {
        match self.total() {
            _ if !self.problems.is_empty() => 3,
            Some(Kind::Error) => 3,
            Some(Kind::Fail) => 1,
            Some(Kind::Inconclusive) => 2,
            _ if self.count(Kind::Pass) == 0 || !self.missing_basis.is_empty() => 4,
            _ => 0,
        }
    }

    /// `<backend>-<runtime>`, for files and commands. Characters other than letters, digits and `_` become
    /// one `-`.
    pub fn label(&self) -> String {
        name_of_file(&format!("{}-{}", self.backend, self.runtime))
    }
}

/// That text as the name of a file or directory.
pub(crate) fn name_of_file(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join("-")
}
