//! The JUnit format for CI servers. A rule that did not pass is a failure, an error, or skipped with its
//! reason.

use std::time::Duration;

use super::text::{escape, first_line};
use super::{Report, RuleReport};
use crate::outcome::Kind;

pub(super) fn xml(report: &Report) -> String {
    let (backend, runtime) = (escape(report.backend), escape(report.runtime));
    let (tests, took) = (report.rules.len(), report.took.as_secs_f64());
    let errors = report.count(Kind::Error);
    let failures = report.count(Kind::Fail) + report.count(Kind::Inconclusive);
    let skipped = tests - errors - failures - report.count(Kind::Pass);
    let cases: String = report.rules.iter().map(case).collect();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"dlock-conformance \
            {backend}-{runtime}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" \
            skipped=\"{skipped}\" time=\"{took:.3}\">\n{cases}</testsuite>\n</testsuites>\n"
    )
}

fn case(rule: &RuleReport) -> String {
    let took: Duration = rule.attempts.iter().map(|a| a.took).sum();
    let took = took.as_secs_f64();
    let (section, name) = (rule.id.split('.').next().unwrap_or_default(), escape(&rule.name));
    let section = escape(section);
    let (kind, why) = (rule.outcome.kind(), first_line(rule.outcome.text()));
    let message = escape(&format!("{kind}: {why}"));
    let said = |tag: &str| {
        let text = escape(&rule.failure_text());
        format!("<{tag} message=\"{message}\">{text}</{tag}>")
    };
    let said = match kind {
        Kind::Pass => String::new(),
        Kind::Error => said("error"),
        Kind::Fail | Kind::Inconclusive => said("failure"),
        _ => format!("<skipped message=\"{message}\"/>"),
    };
    format!(
        "<testcase classname=\"section {section}\" name=\"{name}\" time=\"{took:.3}\">{said}</testcase>\n"
    )
}
