//! The failure text: part of the kit, like the rules.

use super::RuleReport;
use crate::claims::BASIS;
use crate::outcome::Kind;
use crate::rule::{Layer, Rule};
use crate::rules;

impl RuleReport {
    /// The failure text: what broke, why it matters, what was seen, and how to reproduce it.
    pub fn failure_text(&self) -> String {
        let (id, level, statement, kind) = (&self.id, self.level, self.statement, self.outcome.kind());
        let mut text = format!("rule {id} {level:?}: {statement}\n  {kind}:\n");
        for line in self.outcome.text().lines() {
            text += &format!("    {}\n", with_short_words(line, LONGEST_WORD));
        }
        if !self.intent.is_empty() {
            text += &format!("  why it matters: {}\n", self.intent);
        }
        // An error, for example a panic, is not what the rule is about.
        if !self.check_first.is_empty() && kind != Kind::Error {
            text += &format!("  check this first: {}\n", self.check_first);
        }
        let declared = rules::find(id);
        if let Some(Rule { layer, .. }) = declared.filter(|rule| rule.layer == Layer::Engine) {
            text += &format!("  kept by: {layer}; a store that answers late can break it\n");
        }
        let needs = declared.into_iter().flat_map(Rule::needed);
        // Without these there is nothing to be proven.
        for need in needs.filter(|need| !BASIS.contains(need)) {
            text += &format!("  required by {need:?}, {}\n", need.claimed());
        }
        for (attempt, n) in self.attempts.iter().zip(1..) {
            let (kind, seed, took) = (attempt.outcome.kind(), attempt.seed, attempt.took);
            text += &format!("  attempt {n}: {kind}, seed {seed:#x}, took {took:?}");
            if !attempt.stall.is_zero() {
                text += &format!(", worst stall of the machine {:?}", attempt.stall);
            }
            text += "\n";
            let counts = attempt.evidence.iter();
            text.extend(counts.map(|(counter, count)| format!("    {counter}: {count}\n")));
            text.extend(attempt.notes.iter().map(|note| format!("    {note}\n")));
        }
        if !self.replay.is_empty() {
            text += &format!("  replay: {}\n", self.replay);
        }
        if let Some(path) = self.attempts.iter().rev().find_map(|a| a.stored.as_ref()) {
            text += &format!("  history: {}\n", path.display());
        }
        text
    }
}

/// Of a failure text, which has paths as well as names at their limit.
const LONGEST_WORD: usize = 200;

/// The first line, for tables.
pub(crate) fn first_line(text: &str) -> String {
    with_short_words(text.lines().next().unwrap_or_default(), 60)
}

/// That line, with longer words cut short.
fn with_short_words(line: &str, longest: usize) -> String {
    let words = line.split(' ').map(|word| {
        let length = word.chars().count();
        if length <= longest {
            return word.to_owned();
        }
        let head: String = word.chars().take(longest / 2).collect();
        format!("{head}[... {length} characters]")
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Text for XML 1.0 and HTML. XML 1.0 cannot express most control characters.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
