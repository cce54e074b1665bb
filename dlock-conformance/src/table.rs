//! A page about many certificates, made from them.

use std::path::Path;

use crate::certificate::{Certificate, Certified};
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
    for certificate in &all {
        let Certificate { label, product, .. } = certificate;
        let (version, kit) = (&certificate.version, &certificate.kit);
        let profiles = |state| certificate.profiles_in(state).join(", ");
        let (proven, partly) = (profiles(State::Proven), profiles(State::Partly));
        let failed = profiles(State::Failed);
        let waived = certificate
            .results
            .iter()
            .filter(|result| result.outcome.kind() == Kind::Waived);
        let waived = waived
            .map(|result| result.rule.as_str())
            .collect::<Vec<_>>()
            .join(", ");
        text += &format!(
            "| [{label}]({label}/certificate.json): {product} {version}, kit {kit} | {proven} | {partly} | \
                {failed} | {waived} |\n"
        );
    }
    for certificate in &all {
        text += &format!("\n## {}\n\n{}.\n\n", certificate.label, certificate.verdict());
        for Certified { rule, outcome, .. } in &certificate.results {
            let (kind, why) = (outcome.kind(), first_line(outcome.text()).replace('|', "\\|"));
            if !matches!(kind, Kind::Pass | Kind::Unsupported) {
                text += &format!("* {rule} {kind}: {why}\n");
            }
        }
        let problems = certificate.problems.iter();
        text.extend(problems.map(|problem| format!("* {}\n", first_line(problem))));
    }
    Ok(folded(&text))
}
