//! A page about many certificates, made from them.

use std::fmt::Write as _;
use std::path::Path;

use crate::certificate::Certificate;
use crate::folding::folded;
use crate::outcome::Kind;
use crate::report::State;
use crate::report::text::first_line;
use crate::verify::{certificates, read};

/// A table of the certificates in the subdirectories of that directory, followed by what each does not prove.
///
/// # Errors
/// The first certificate that contradicts itself, and why. Their histories are not judged:
/// [`verify`](crate::verify) does that.
pub fn certificates_table(directory: &Path) -> Result<String, String> {
    let mut all = Vec::new();
    for path in certificates(directory) {
        let certificate = read(&path).map_err(|why| format!("{}: {why}", path.display()))?;
        all.push(certificate);
    }
    let mut text = "| certificate | proven | partly | failed | waived |\n|---|---|---|---|---|\n".to_owned();
    // Writing to a string cannot fail.
    for certificate in &all {
        let Certificate {
            label,
            product,
            version,
            kit,
            ..
        } = certificate;
        let profiles = |state| {
            let profiles = certificate.profiles.iter().filter(move |(_, is)| **is == state);
            profiles
                .map(|(name, _)| name.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        };
        let _ = writeln!(
            text,
            "| [{label}]({label}/certificate.json): {product} {version}, kit {kit} | {} | {} | {} | {} |",
            profiles(State::Proven),
            profiles(State::Partly),
            profiles(State::Failed),
            of(certificate, Kind::Waived).join(", "),
        );
    }
    for certificate in &all {
        let _ = writeln!(text, "\n## {}\n\n{}.\n", certificate.label, certificate.verdict());
        let open = certificate.results.iter().filter(|result| {
            let kind = result.outcome.kind();
            !matches!(kind, Kind::Pass | Kind::Unsupported)
        });
        for result in open {
            let (kind, why) = (result.outcome.kind(), first_line(result.outcome.text()));
            let _ = writeln!(text, "* {} {kind}: {}", result.rule, why.replace('|', "\\|"));
        }
        for problem in &certificate.problems {
            let _ = writeln!(text, "* {}", first_line(problem));
        }
    }
    Ok(folded(&text))
}

fn of(certificate: &Certificate, kind: Kind) -> Vec<&str> {
    let results = certificate.results.iter();
    let of_kind = results.filter(|result| result.outcome.kind() == kind);
    of_kind.map(|result| result.rule.as_str()).collect()
}
