//! Profiles: which rules belong together, and what a run proves of each.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Report, RuleReport};
use crate::claims::Need;
use crate::outcome::Kind;
use crate::rule::{Access, Level};
use crate::rules;

/// What a run says of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Each of its rules passed.
    Proven,
    /// None failed, and some were not decided, not run, or are waived.
    Partly,
    /// One failed or ended in an error.
    Failed,
    /// The claims require none of its rules.
    NotClaimed,
}

/// What a run says of the MUST rules that belong together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Profile {
    /// What it is called.
    pub name: &'static str,
    /// What it proves, in one line.
    pub proves: &'static str,
    /// Its state.
    pub state: State,
    /// How many of its rules passed.
    pub passed: usize,
    /// Those that failed or ended in an error.
    pub failed: Vec<String>,
    /// Those that were not decided, not run, or are waived.
    pub open: Vec<String>,
    /// Those that the claims do not require.
    pub unclaimed: Vec<String>,
    /// Why it is not proven although each rule passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub but: Option<String>,
}

/// All profiles, in reading order, with what each proves.
const PROFILES: [(&str, &str); 9] = [
    (
        "Core",
        "one holder at a time; no client ends another's hold; dropped or failed calls leave nothing behind",
    ),
    (
        "Lease",
        "a hold ends with its ttl and not before; renewals and loss signals, if claimed, are in time",
    ),
    (
        "Fencing",
        "tokens grow with each grant; a gate, if claimed, refuses the writes of a stale holder",
    ),
    (
        "Shared",
        "readers share and writers do not; no more permits are held than exist",
    ),
    ("Fair", "waiters are granted in the order of their arrival"),
    (
        "Priority",
        "waiters with a higher priority go first, and the others are granted as promised",
    ),
    (
        "Reentrant",
        "an owner can acquire again what it holds, and no other owner can",
    ),
    (
        "Watch",
        "as claimed: changes are reported, holders and waiters are shown, an operator can end holds",
    ),
    ("Quorum", "a majority of the servers decides, and one may be lost"),
];

/// The profile that a rule counts to, by its first need beyond a plain lock.
pub(crate) fn profile_of(needs: &[Need]) -> &'static str {
    use Need::{
        AutoRenew, Downgrade, Fair, Fence, FenceDurable, ForceRelease, Inspect, Lease, LossSignal,
        MaximumHold, PerGrantTtl, Permits, Priority, Quorum, Reentrant, Renew, Resource, Shared, Upgrade,
        Watch,
    };
    let lists: [(&[Need], &str); 8] = [
        (&[Quorum], "Quorum"),
        (&[Fence, FenceDurable, Resource], "Fencing"),
        (&[Shared, Permits, Downgrade, Upgrade], "Shared"),
        (&[Priority], "Priority"),
        (&[Fair], "Fair"),
        (&[Reentrant], "Reentrant"),
        (&[Watch, Inspect, ForceRelease], "Watch"),
        (
            &[Lease, PerGrantTtl, Renew, AutoRenew, LossSignal, MaximumHold],
            "Lease",
        ),
    ];
    let counts_to = |(list, _): &&(&[Need], _)| needs.iter().any(|need| list.contains(need));
    lists.iter().find(counts_to).map_or("Core", |(_, name)| name)
}

/// The outcome of a MUST rule, and the profile that it counts to.
pub(crate) struct Counted<'a> {
    pub(crate) rule: &'a str,
    pub(crate) profile: &'a str,
    pub(crate) access: Access,
    pub(crate) kind: Kind,
}

/// The profiles from the outcomes of rules. `but`: why none of them is complete.
pub(crate) fn profiles(rules: &[Counted<'_>], but: Option<&str>) -> Vec<Profile> {
    let mut profiles = Vec::new();
    for (name, proves) in PROFILES {
        // Hooks and the simulator are optional. The access letters show whether they were used.
        let is_left_out =
            |c: &Counted<'_>| c.kind == Kind::NotRun && matches!(c.access, Access::H | Access::S);
        let counted = rules.iter().filter(|c| c.profile == name && !is_left_out(c));
        let of = |kinds: &[Kind]| -> Vec<String> {
            let some = counted.clone().filter(|c| kinds.contains(&c.kind));
            some.map(|c| c.rule.to_owned()).collect()
        };
        let (passed, failed) = (of(&[Kind::Pass]).len(), of(&[Kind::Fail, Kind::Error]));
        let open = of(&[Kind::Inconclusive, Kind::NotRun, Kind::Waived]);
        let unclaimed = of(&[Kind::Unsupported]);
        let state = match (passed, failed.len(), open.len()) {
            (_, 1.., _) => State::Failed,
            (0, _, 0) => State::NotClaimed,
            (_, _, 0) if but.is_none() => State::Proven,
            _ => State::Partly,
        };
        if counted.clone().next().is_some() {
            profiles.push(Profile {
                name,
                proves,
                state,
                passed,
                failed,
                open,
                unclaimed,
                but: but.filter(|_| state == State::Partly).map(str::to_owned),
            });
        }
    }
    profiles
}

/// A verdict in one line: what is broken, what is proven, and how many rules came out in each way.
pub(crate) fn verdict(profiles: Option<Vec<Profile>>, counts: &BTreeMap<Kind, usize>) -> String {
    let mut parts = Vec::new();
    for state in [State::Failed, State::Proven, State::Partly] {
        let told = |p: &Profile| match (p.state, &p.but) {
            (State::Failed, _) => format!("{} ({})", p.name, p.failed.join(", ")),
            (State::Partly, Some(but)) => format!("{} ({but})", p.name),
            (State::Partly, None) => format!("{} ({} open)", p.name, p.open.len()),
            _ => p.name.to_owned(),
        };
        let some = profiles.iter().flatten().filter(|p| p.state == state);
        let some: Vec<String> = some.map(told).collect();
        if !some.is_empty() {
            parts.push(format!("{state}: {}", some.join(", ")));
        }
    }
    let counts = counts.iter().map(|(kind, count)| format!("{count} {kind}"));
    let counts: Vec<String> = counts.collect();
    parts.push(match counts.is_empty() {
        true => "no rule was run".to_owned(),
        false => counts.join(", "),
    });
    parts.join("; ")
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Proven => "proven",
            Self::Partly => "partly",
            Self::Failed => "failed",
            Self::NotClaimed => "not claimed",
        })
    }
}

impl fmt::Display for Profile {
    /// Its state, with the numbers of rules behind it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            State::NotClaimed => return write!(f, "{}", self.state),
            State::Failed => {
                let all = self.passed + self.failed.len() + self.open.len();
                return write!(f, "failed ({} of {all})", self.failed.len());
            }
            _ => write!(f, "{} ({} passed", self.state, self.passed)?,
        }
        if !self.open.is_empty() {
            write!(f, ", {} open", self.open.len())?;
        }
        if !self.unclaimed.is_empty() {
            write!(f, ", {} not claimed", self.unclaimed.len())?;
        }
        match &self.but {
            Some(but) => write!(f, ", {but})"),
            None => f.write_str(")"),
        }
    }
}

impl Report {
    /// What the run says of each profile that has a rule in it.
    pub fn profiles(&self) -> Vec<Profile> {
        profiles(&self.counted(), self.but().as_deref())
    }

    /// The verdict in one line: what is broken, what is proven, and how many rules came out in each way.
    pub fn verdict(&self) -> String {
        let mut told = verdict(self.complete.then(|| self.profiles()), &self.counts);
        if !self.problems.is_empty() {
            told.push_str("; with problems outside the rules");
        }
        told
    }

    /// Why no profile is complete, whatever passed.
    fn but(&self) -> Option<String> {
        match () {
            () if !self.missing_basis.is_empty() => Some(format!(
                "{:?} is not claimed, which all profiles need",
                self.missing_basis
            )),
            () if !self.complete => Some("the run was filtered".to_owned()),
            () if !self.problems.is_empty() => Some("the run had problems outside the rules".to_owned()),
            () => None,
        }
    }

    /// The kinds of access with which rules of a profile passed.
    pub(crate) fn reached(&self) -> Vec<Access> {
        let counted = self.counted();
        let passed = |access| counted.iter().any(|c| c.access == access && c.kind == Kind::Pass);
        let all = [Access::A, Access::P, Access::C, Access::H, Access::S];
        all.into_iter().filter(|access| passed(*access)).collect()
    }

    fn counted(&self) -> Vec<Counted<'_>> {
        let counted = |r: &'_ RuleReport| {
            let rule = rules::find(&r.id).filter(|rule| rule.level == Level::Must)?;
            Some(Counted {
                rule: rule.id,
                profile: profile_of(rule.needs),
                access: rule.access,
                kind: r.outcome.kind(),
            })
        };
        self.rules.iter().filter_map(counted).collect()
    }
}
