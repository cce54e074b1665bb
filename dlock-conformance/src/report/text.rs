//! The failure text: part of the kit, like the rules.

use std::fmt::Write as _;

use super::RuleReport;
use crate::claims::BASIS;
use crate::outcome::Kind;
use crate::rule::{Layer, Rule};
use crate::rules;

impl RuleReport {
    /// The failure text: what broke, why it matters, what was seen, and how to reproduce it.
    pub fn failure_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "rule {} {:?}: {}", self.id, self.level, self.statement);
        let _ = writeln!(text, "  {}:", self.outcome.kind());
        for line in self.outcome.text().lines() {
            let _ = writeln!(text, "    {}", with_short_words(line, LONGEST_WORD));
        }
        if !self.intent.is_empty() {
            let _ = writeln!(text, "  why it matters: {}", self.intent);
        }
        // An error, for example a panic, is not what the rule is about.
        if !self.check_first.is_empty() && self.outcome.kind() != Kind::Error {
            let _ = writeln!(text, "  check this first: {}", self.check_first);
        }
        if let Some(rule) = rules::find(&self.id).filter(|rule| rule.layer == Layer::Engine) {
            let _ = writeln!(
                text,
                "  kept by: {}; a store that answers late can break it",
                rule.layer
            );
        }
        let needs = rules::find(&self.id).into_iter().flat_map(Rule::needed);
        // Without these there is nothing to be proven.
        for need in needs.filter(|need| !BASIS.contains(need)) {
            let _ = writeln!(text, "  required by {need:?}, {}", need.claimed());
        }
        for (n, attempt) in self.attempts.iter().enumerate() {
            let _ = write!(
                text,
                "  attempt {}: {}, seed {:#x}, took {:?}",
                n + 1,
                attempt.outcome.kind(),
                attempt.seed,
                attempt.took
            );
            if !attempt.stall.is_zero() {
                let _ = write!(text, ", worst stall of the machine {:?}", attempt.stall);
            }
            let _ = writeln!(text);
            for (counter, count) in &attempt.evidence {
                let _ = writeln!(text, "    {counter}: {count}");
            }
            for note in &attempt.notes {
                let _ = writeln!(text, "    {note}");
            }
        }
        if !self.replay.is_empty() {
            let _ = writeln!(text, "  replay: {}", self.replay);
        }
        if let Some(path) = self.attempts.iter().rev().find_map(|a| a.stored.as_ref()) {
            let _ = writeln!(text, "  history: {}", path.display());
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

#[cfg(test)]
mod tests {
    use super::{escape, first_line};

    #[test]
    fn long_words_are_cut_short_and_short_ones_are_not() {
        let name = "n".repeat(1000);
        assert_eq!(
            first_line(&format!("the name {name} was refused\nand more")),
            format!("the name {}[... 1000 characters] was refused", "n".repeat(30))
        );
        let longest = "n".repeat(60);
        assert_eq!(first_line(&longest), longest);
        let longer = "n".repeat(61);
        assert_eq!(
            first_line(&longer),
            format!("{}[... 61 characters]", "n".repeat(30))
        );
    }

    #[test]
    fn characters_that_xml_lacks_are_replaced() {
        assert_eq!(
            escape("a<b>\"&\u{1}\u{1b}\n"),
            "a&lt;b&gt;&quot;&amp;\u{fffd}\u{fffd}\n"
        );
    }
}
