//! The museum: bugs that lock libraries and their users had in the field, each rebuilt as a planted bug with
//! the rule that catches it.
//!
//! Where a real bug's mechanism is that of a rule's own planted bug, the exhibit points at that one. Where
//! the real story has another mechanism or another trigger, the bug is planted a second time, as it was:
//! [`REBUILT`]. `MUSEUM.md` is written from this table and from what the matrix measured; a change of the kit
//! is done only while the whole museum is still caught.

mod day;
mod holders;
mod loss;
#[cfg(dlock_saboteur)]
mod page;
mod queues;
mod rebuilt;
mod stuck;
mod tokens;
mod waiting;

pub use self::day::Day;
#[cfg(dlock_saboteur)]
pub use self::page::page;
pub use self::rebuilt::{Planted, REBUILT, of as rebuilt};
pub use self::waiting::{Absent, WAITING};
use crate::rule::Rule;
use crate::rules;

/// Bugs of one kind.
#[derive(Debug)]
pub struct Hall {
    /// What they did.
    pub title: &'static str,
    /// What is to be seen in it.
    pub intro: &'static str,
    /// Them.
    pub exhibits: &'static [Exhibit],
}

/// A bug that was in the field.
#[derive(Clone, Copy, Debug)]
pub struct Exhibit {
    /// What went wrong, in a few words.
    pub title: &'static str,
    /// Where.
    pub project: &'static str,
    /// Where it is on record: `owner/repo#N`.
    pub issue: &'static str,
    /// The first day in that record, or in what is known of an earlier one.
    pub since: Day,
    /// What became of it.
    pub end: End,
    /// What went wrong and what its users saw, in our own words.
    pub story: &'static str,
    /// The planted bug that rebuilds it; its rule must catch it.
    pub bug: &'static str,
}

/// What became of a bug, as far as the public record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Mended that day.
    Mended(Day),
    /// The record is closed; when the bug was mended, or whether, is not known.
    Closed,
    /// Not mended that day, the last of which the record tells.
    Open(Day),
    /// It is documented behaviour, and stays.
    ByDesign,
}

impl Exhibit {
    /// The number of the rule that must catch it.
    pub fn rule(&self) -> &'static str {
        let owns = |rule: &&Rule| rule.bug.is_some_and(|(own, _)| own == self.bug);
        let own = rules::all().find(owns).map(|rule| rule.id);
        own.or(rebuilt(self.bug).map(|rebuilt| rebuilt.rule))
            .unwrap_or_default()
    }

    /// Where to read of it.
    pub fn url(&self) -> String {
        url(self.issue)
    }

    /// How long it lived, as far as that is known.
    pub fn lived(&self) -> String {
        match self.end {
            End::Mended(day) => self.since.until(day),
            End::Closed => "not known".to_owned(),
            End::Open(day) if day == self.since => "open".to_owned(),
            End::Open(day) => format!("open after {}", self.since.until(day)),
            End::ByDesign => "by design".to_owned(),
        }
    }
}

/// What went wrong, where it is on record and what became of it, the planted bug that rebuilds it, and its
/// story.
const fn exhibit(
    title: &'static str,
    (project, issue): (&'static str, &'static str),
    (since, end): (Day, End),
    bug: &'static str,
    story: &'static str,
) -> Exhibit {
    Exhibit {
        title,
        project,
        issue,
        since,
        end,
        story,
        bug,
    }
}

fn url(issue: &str) -> String {
    format!("https://github.com/{}", issue.replacen('#', "/issues/", 1))
}

/// All of it, in the order of the page.
pub static HALLS: &[Hall] = &[holders::HALL, stuck::HALL, queues::HALL, loss::HALL, tokens::HALL];

/// Every exhibit.
pub fn exhibits() -> impl Iterator<Item = &'static Exhibit> {
    HALLS.iter().flat_map(|hall| hall.exhibits)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_exhibit_has_a_planted_bug() {
        for exhibit in exhibits() {
            assert!(!exhibit.rule().is_empty(), "{}: {}", exhibit.issue, exhibit.bug);
        }
    }

    #[test]
    fn every_rebuilt_bug_is_on_show_and_is_no_rules_own() {
        for rebuilt in REBUILT {
            assert!(exhibits().any(|e| e.bug == rebuilt.bug), "{}", rebuilt.bug);
            let own = rules::find(rebuilt.rule).map(|rule| rule.bug.map(|(bug, _)| bug));
            assert!(own.is_some_and(|own| own != Some(rebuilt.bug)), "{}", rebuilt.bug);
        }
    }

    /// Bugs of what is around the store and the engine, as wrappers in the kit itself.
    const WRAPPERS: [&str; 15] = [
        "client_walltime_deadline",
        "dead_head_blocks",
        "double_release_frees_next",
        "hair_trigger_loss",
        "kill_leaks",
        "no_reconnect",
        "no_recover_after_heal",
        "no_recovery",
        "owner_from_pid_time",
        "partition_blocks_all",
        "process_local_lock",
        "renew_recreates",
        "resume_thinks_valid",
        "server_walltime",
        "zombie_write_wins",
    ];

    #[test]
    fn every_planted_bug_is_a_diff_or_a_wrapper() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("bugs");
        let own = rules::all().filter_map(|rule| Some((rule.id, rule.bug?.0)));
        let all: HashSet<_> = own.chain(REBUILT.iter().map(|r| (r.rule, r.bug))).collect();
        for (rule, bug) in &all {
            let is_a_diff = folder.join(format!("{rule}-{bug}.diff")).is_file();
            assert!(is_a_diff != WRAPPERS.contains(bug), "{rule} {bug}");
        }
        for file in std::fs::read_dir(folder).expect("the bugs are there") {
            let file = file.expect("an entry").file_name().into_string().expect("a name");
            let name = file.strip_suffix(".diff").unwrap_or_default();
            let known = name == "shared" || name.split_once('-').is_some_and(|of| all.contains(&of));
            assert!(known, "{file} belongs to no rule");
        }
    }

    #[test]
    fn an_issue_is_shown_once_and_can_be_looked_up() {
        let mut seen = HashSet::new();
        let absent = WAITING.iter().map(|a| a.issue);
        for issue in exhibits().map(|e| e.issue).chain(absent) {
            assert!(seen.insert(issue), "{issue} is shown twice");
            let (repository, number) = issue.split_once('#').unwrap_or_default();
            assert_eq!(repository.matches('/').count(), 1, "{issue}");
            assert!(number.parse::<u32>().is_ok(), "{issue}");
        }
    }

    #[test]
    fn nothing_is_mended_before_it_is_known() {
        for exhibit in exhibits() {
            if let End::Mended(day) | End::Open(day) = exhibit.end {
                assert!(exhibit.since <= day, "{}", exhibit.issue);
            }
        }
    }
}
