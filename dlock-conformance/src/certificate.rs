//! A certificate: what a whole run proved, in a file that anyone can check without the store.
//!
//! Beside it are the histories that were judged. [`verify`](crate::verify) judges them again, and derives the
//! profiles again from the outcomes of the rules. Hashes show that nothing was changed since. Only a
//! signature shows who made it, for example one from `ssh-keygen -Y sign -n dlock-certificate -f KEY
//! certificate.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::path::Path;

use flate2::Compression;
use flate2::read::GzEncoder;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::catalogue::rules_json;
use crate::claims::{BASIS, Engine, Need, Waiver};
use crate::cx::Effort;
use crate::history::{Head, store};
use crate::outcome::{Kind, Outcome};
use crate::report::{Counted, Profile, Report, State, name_of_file, profile_of, profiles, verdict};
use crate::rule::{Access, Level, Rule};
use crate::rules;

/// The format version of certificates.
pub(crate) const SCHEMA: u32 = 1;

/// The file of a certificate, in its directory.
pub(crate) const FILE: &str = "certificate.json";

/// What a whole run proved.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Certificate {
    /// The format version.
    pub schema: u32,
    /// The version of the kit.
    pub kit: String,
    /// The hash of its rules, as `RULES.json` has them.
    pub rules: String,
    /// The product under test.
    pub product: String,
    /// Its version.
    pub version: String,
    /// The backend's short name.
    pub backend: String,
    /// The runtime that it ran on.
    pub runtime: String,
    /// The name of the run, as in its directory.
    pub label: String,
    /// Whose engine waits, renews and reports losses.
    pub engine: Engine,
    /// The claimed needs.
    pub claims: BTreeSet<Need>,
    /// Bounds that were claimed.
    pub bounds: BTreeMap<String, String>,
    /// Rules that are known not to hold.
    pub waivers: Vec<Waiver>,
    /// How much work was done.
    pub effort: Effort,
    /// The seed.
    pub seed: u64,
    /// On which machine: system, architecture, cores, and how late it was, 999 of 1000 times.
    pub machine: String,
    /// When it ended, in seconds since 1970.
    pub ended_unix_s: u64,
    /// The state of each profile.
    pub profiles: BTreeMap<String, State>,
    /// The kinds of access with which rules of a profile passed.
    pub access: Vec<Access>,
    /// The outcome of each rule.
    pub results: Vec<Certified>,
    /// Problems outside the rules.
    pub problems: Vec<String>,
    /// The hash of all this.
    pub digest: String,
}

/// The outcome of a rule.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Certified {
    /// Its number.
    pub rule: String,
    /// The profile that it counts to; `None` if it is not a MUST rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// What the kit needs for it.
    pub access: Access,
    /// Its outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The seeds of its attempts. The last attempt decides the outcome.
    pub seeds: Vec<u64>,
    /// What it measured.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
    /// The history of its last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<Kept>,
}

/// A history in a file beside the certificate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kept {
    /// Its name.
    pub file: String,
    /// The hash of the compressed file.
    pub sha256: String,
}

fn packed(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut packed = Vec::new();
    GzEncoder::new(text, Compression::best()).read_to_end(&mut packed)?;
    Ok(packed)
}

/// The hash of the rules of this kit.
pub(crate) fn rules_hash() -> String {
    sha256(rules_json())
}

/// The rules of this kit in order, with the part of each entry that does not depend on the outcome.
pub(crate) fn certified() -> impl Iterator<Item = (String, Option<String>, Access)> {
    rules::all().map(|rule| (rule.id.to_owned(), counts_to(rule), rule.access))
}

/// The profile that a rule counts to: of each that is a MUST.
fn counts_to(rule: &Rule) -> Option<String> {
    (rule.level == Level::Must).then(|| profile_of(rule.needs).to_owned())
}

pub(crate) fn sha256(bytes: impl AsRef<[u8]>) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

impl Certificate {
    /// The certificate of a run of all rules, and its histories by the names of their files.
    ///
    /// # Errors
    /// Those of the compression.
    fn of(report: &Report) -> io::Result<(Self, BTreeMap<String, Vec<u8>>)> {
        // Products of one backend have directories of their own.
        let label = name_of_file(&format!("{}-{}", report.product, report.runtime)).to_lowercase();
        let mut histories = BTreeMap::new();
        let mut results = Vec::new();
        for rule in &report.rules {
            let declared = rules::find(&rule.id);
            let last = rule.attempts.last();
            let mut history = None;
            if let Some(last) = last.filter(|last| !last.history.is_empty() && !last.asked.is_empty()) {
                let outcome = last.outcome.kind().to_string();
                let mut head = Head::new(&rule.id, &report.product, &label, last.seed, outcome);
                head.asked.clone_from(&last.asked);
                let mut text = Vec::new();
                store(&head, &last.history, &mut text)?;
                let packed = packed(&text)?;
                let file = format!("{}.jsonl.gz", rule.id);
                let sha256 = sha256(&packed);
                histories.insert(file.clone(), packed);
                history = Some(Kept { file, sha256 });
            }
            results.push(Certified {
                rule: rule.id.clone(),
                profile: declared.and_then(counts_to),
                access: declared.map_or(Access::A, |declared| declared.access),
                outcome: rule.outcome.clone(),
                seeds: rule.attempts.iter().map(|attempt| attempt.seed).collect(),
                notes: last.map_or_else(Vec::new, |last| last.notes.clone()),
                history,
            });
        }
        use std::env::consts::{ARCH, OS};
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let machine = format!(
            "{OS} {ARCH}, {cores} cores, canary p99.9 {:?}",
            report.canary_p999
        );
        let bounds = report
            .bounds
            .iter()
            .map(|(name, bound)| ((*name).to_owned(), bound.clone()));
        let mut certificate = Self {
            schema: SCHEMA,
            kit: report.kit.to_owned(),
            rules: rules_hash(),
            product: report.product.clone(),
            version: report.version.clone(),
            backend: report.backend.to_owned(),
            runtime: report.runtime.to_owned(),
            label,
            engine: report.engine,
            claims: report.claims.clone(),
            bounds: bounds.collect(),
            waivers: report.waivers.clone(),
            effort: report.effort,
            seed: report.seed,
            machine,
            ended_unix_s: report.ended_unix_s,
            profiles: BTreeMap::new(),
            access: report.reached(),
            results,
            problems: report.problems.clone(),
            digest: String::new(),
        };
        certificate.profiles = certificate.states();
        certificate.digest = certificate.hash();
        Ok((certificate, histories))
    }

    /// Its file.
    pub(crate) fn text(&self) -> String {
        // Maps have text as keys, and nothing else could fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// The hash of its text without one.
    pub(crate) fn hash(&self) -> String {
        let mut bare = self.clone();
        bare.digest.clear();
        sha256(bare.text())
    }

    /// The profiles, derived from the outcomes of the rules.
    pub fn profiles(&self) -> Vec<Profile> {
        fn counted(result: &Certified) -> Option<Counted<'_>> {
            Some(Counted {
                rule: &result.rule,
                profile: result.profile.as_deref()?,
                access: result.access,
                kind: result.outcome.kind(),
            })
        }
        let counted: Vec<_> = self.results.iter().filter_map(counted).collect();
        let but = match () {
            () if !BASIS.iter().all(|need| self.claims.contains(need)) => {
                Some("a lock, a try or a wait is not claimed")
            }
            () if !self.problems.is_empty() => Some("the run had problems outside the rules"),
            () => None,
        };
        profiles(&counted, but)
    }

    pub(crate) fn states(&self) -> BTreeMap<String, State> {
        let states = self.profiles().into_iter().map(|p| (p.name.to_owned(), p.state));
        states.collect()
    }

    /// The names of the profiles that are in that state.
    pub(crate) fn profiles_in(&self, state: State) -> Vec<&str> {
        let profiles = self.profiles.iter().filter(|(_, is)| **is == state);
        profiles.map(|(name, _)| name.as_str()).collect()
    }

    /// The verdict in one line.
    pub fn verdict(&self) -> String {
        let mut counts: BTreeMap<Kind, usize> = BTreeMap::new();
        for result in &self.results {
            *counts.entry(result.outcome.kind()).or_default() += 1;
        }
        verdict(Some(self.profiles()), &counts)
    }

    /// Writes it with its histories and a badge into `<directory>/<product>-<runtime>/`, in place of the one
    /// before.
    pub(crate) fn write(report: &Report, directory: &Path) -> io::Result<()> {
        if !report.complete {
            return Err(io::Error::other("only a run of all rules gives one"));
        }
        let (certificate, histories) = Self::of(report)?;
        certificate.put(&histories, &directory.join(&certificate.label))
    }

    /// The same, into that directory.
    fn put(&self, histories: &BTreeMap<String, Vec<u8>>, own: &Path) -> io::Result<()> {
        match std::fs::remove_dir_all(own) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::create_dir_all(own)?;
        for (file, packed) in histories {
            std::fs::write(own.join(file), packed)?;
        }
        std::fs::write(own.join("badge.svg"), self.badge())?;
        std::fs::write(own.join(FILE), self.text())
    }

    /// A badge that shows what is proven, or that something failed.
    pub fn badge(&self) -> String {
        let of = |state| self.profiles_in(state).join(" ").to_lowercase();
        let (says, colour) = match (of(State::Failed), of(State::Proven)) {
            (failed, _) if !failed.is_empty() => (format!("failed: {failed}"), "#b3261e"),
            (_, proven) if !proven.is_empty() => (proven, "#1a7f37"),
            _ => ("nothing proven".to_owned(), "#6e7781"),
        };
        let title = format!("dlock-conformance {}", self.kit);
        // Letters of 11 pixels are some 6.2 wide.
        let width = |text: &str| text.chars().count() * 31 / 5 + 12;
        let (left, right) = (width(&title), width(&says));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{all}\" height=\"20\" role=\"img\">\
             <title>{title}: {says}</title><rect width=\"{left}\" height=\"20\" fill=\"#444\"/>\
             <rect x=\"{left}\" width=\"{right}\" height=\"20\" fill=\"{colour}\"/>\
             <g fill=\"#fff\" font-family=\"Verdana,DejaVu Sans,sans-serif\" font-size=\"11\">\
             <text x=\"6\" y=\"14\">{title}</text><text x=\"{at}\" y=\"14\">{says}</text></g></svg>\n",
            all = left + right,
            at = left + 6,
        )
    }
}
