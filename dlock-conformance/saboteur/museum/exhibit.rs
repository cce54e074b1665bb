//! What is shown of a bug.

use super::day::Day;
use super::rebuilt::of as rebuilt;
use crate::Rule;
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
pub(super) const fn exhibit(
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

pub(super) fn url(issue: &str) -> String {
    format!("https://github.com/{}", issue.replacen('#', "/issues/", 1))
}
