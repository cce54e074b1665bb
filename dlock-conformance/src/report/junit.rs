//! The JUnit format for CI servers. A rule that did not pass is a failure, an error, or skipped with its
//! reason.

use std::fmt::Write as _;
use std::time::Duration;

use super::text::{escape, first_line};
use super::{Report, RuleReport};
use crate::outcome::Kind;

pub(super) fn xml(report: &Report) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let errors = report.count(Kind::Error);
    let failures = report.count(Kind::Fail) + report.count(Kind::Inconclusive);
    let skipped = report.rules.len() - errors - failures - report.count(Kind::Pass);
    // Writing to a string cannot fail.
    let _ = writeln!(
        xml,
        "<testsuites>\n<testsuite name=\"dlock-conformance {}-{}\" tests=\"{}\" failures=\"{failures}\" \
            errors=\"{errors}\" skipped=\"{skipped}\" time=\"{:.3}\">",
        escape(report.backend),
        escape(report.runtime),
        report.rules.len(),
        report.took.as_secs_f64()
    );
    for rule in &report.rules {
        case(&mut xml, rule);
    }
    xml.push_str("</testsuite>\n</testsuites>\n");
    xml
}

fn case(xml: &mut String, rule: &RuleReport) {
    let took: Duration = rule.attempts.iter().map(|a| a.took).sum();
    let _ = write!(
        xml,
        "<testcase classname=\"section {}\" name=\"{}\" time=\"{:.3}\">",
        escape(rule.id.split('.').next().unwrap_or_default()),
        escape(&rule.name),
        took.as_secs_f64()
    );
    let message = escape(&format!(
        "{}: {}",
        rule.outcome.kind(),
        first_line(rule.outcome.text())
    ));
    let _ = match rule.outcome.kind() {
        Kind::Pass => Ok(()),
        Kind::Error => write!(
            xml,
            "<error message=\"{message}\">{}</error>",
            escape(&rule.failure_text())
        ),
        Kind::Fail | Kind::Inconclusive => {
            write!(
                xml,
                "<failure message=\"{message}\">{}</failure>",
                escape(&rule.failure_text())
            )
        }
        _ => write!(xml, "<skipped message=\"{message}\"/>"),
    };
    xml.push_str("</testcase>\n");
}
