//! An exhibit: what the museum shows of a bug.

use super::day::Day;
use super::rebuilt::of as rebuilt;
use crate::Rule;
use crate::rules;

/// Bugs of one kind.
#[derive(Debug)]
pub struct Hall {
    /// What they have in common.
    pub title: &'static str,
    /// The introduction to them.
    pub intro: &'static str,
    /// The exhibits.
    pub exhibits: &'static [Exhibit],
}

/// A bug that a library had in the field.
#[derive(Clone, Copy, Debug)]
pub struct Exhibit {
    /// What went wrong, in a few words.
    pub title: &'static str,
    /// Where.
    pub project: &'static str,
    /// The public record: `owner/repo#N`.
    pub issue: &'static str,
    /// The first day in that record, or in an earlier one.
    pub since: Day,
    /// How it ended.
    pub end: End,
    /// What went wrong and what users saw, in our own words.
    pub story: &'static str,
    /// The planted bug that rebuilds it; its rule must catch it.
    pub bug: &'static str,
}

/// How a bug ended, according to the public record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Fixed that day.
    Mended(Day),
    /// The record is closed and does not say when, or whether, the bug was fixed.
    Closed,
    /// Not fixed on that day, the last one in the record.
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

    /// The address of the record.
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

/// Makes an exhibit from the title, the project and its record, the days, the planted bug that rebuilds it,
/// and the story.
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
