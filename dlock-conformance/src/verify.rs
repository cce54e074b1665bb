//! Judges stored histories and certificates again, with the checkers of this kit, and without the store.

use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use crate::certificate::{Certificate, Certified, FILE, SCHEMA, certified, rules_hash, sha256};
use crate::checker::{Judgement, wgl};
use crate::history::{Event, Head, load};
use crate::outcome::Kind;
use crate::report::timeline;

/// Judges each history by the checks in its head, and each certificate by its histories, and prints the
/// results. A directory stands for the certificate in it, or for the certificates in its subdirectories.
///
/// The exit code is the worst of these: 0 if all are legal, 1 if one is illegal or a certificate is refused,
/// 2 if one could not be decided within the budget, 3 if one could not be read, is malformed, or makes the
/// checkers contradict each other.
///
/// # Errors
/// Those of `out`.
pub fn verify<P: AsRef<Path>>(files: impl IntoIterator<Item = P>, mut out: impl Write) -> io::Result<u8> {
    let mut worst = 0;
    for file in files {
        let file = file.as_ref();
        let found = certificates(file);
        for path in &found {
            write!(out, "{}: ", path.display())?;
            worst = worst.max(judge_certificate(path, &mut out)?);
        }
        if found.is_empty() {
            write!(out, "{}: ", file.display())?;
            let problem = match std::fs::read(file).and_then(|bytes| history(&bytes)) {
                Ok((head, events)) => {
                    worst = worst.max(judged(&head, &events, &mut out)?);
                    continue;
                }
                Err(_) if file.is_dir() => "there is no certificate in it".to_owned(),
                Err(why) => format!("cannot be read: {why}"),
            };
            writeln!(out, "{problem}")?;
            worst = worst.max(3);
        }
    }
    Ok(worst)
}

/// Those that a path stands for, in order; none where it is something else.
pub(crate) fn certificates(path: &Path) -> Vec<PathBuf> {
    if path.file_name().is_some_and(|name| name == FILE) {
        return vec![path.to_owned()];
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let inside = entries.map(|entry| entry.path().join(FILE));
    let mut all: Vec<PathBuf> = std::iter::once(path.join(FILE)).chain(inside).collect();
    all.retain(|path| path.is_file());
    all.sort();
    all
}

fn judge_certificate(path: &Path, out: &mut impl Write) -> io::Result<u8> {
    let (certificate, judged, undecided) = match checked(path) {
        Ok(checked) => checked,
        Err(why) => {
            writeln!(out, "refused: {why}")?;
            return Ok(1);
        }
    };
    let (product, version, runtime) = (&certificate.product, &certificate.version, &certificate.runtime);
    let (kit, verdict) = (&certificate.kit, certificate.verdict());
    let rest = certificate.results.len() - judged;
    writeln!(out, "{product} {version} on {runtime}, kit {kit}\n  {verdict}")?;
    writeln!(
        out,
        "  {judged} histories were judged again; {rest} rules record none, and keep the outcome of the run"
    )?;
    if certificate.rules != rules_hash() {
        writeln!(out, "  this kit has other rules than the one that made it")?;
    }
    if undecided > 0 {
        writeln!(
            out,
            "  {undecided} histories could not be decided within the budget"
        )?;
        return Ok(2);
    }
    Ok(0)
}

/// The certificate in that file, how many of its histories were judged, and how many could not be.
fn checked(path: &Path) -> Result<(Certificate, usize, usize), String> {
    let certificate = read(path)?;
    let (mut judged, mut undecided) = (0, 0);
    for result in &certificate.results {
        let Some(legal) = judge_result(&certificate, result, path)? else {
            continue;
        };
        judged += 1;
        match legal {
            Judgement::Illegal(violation) if result.outcome.kind() == Kind::Pass => {
                let rule = &result.rule;
                return Err(format!(
                    "rule {rule} is recorded as passed, but its history is illegal: {violation}"
                ));
            }
            Judgement::Unknown(_) => undecided += 1,
            _ => {}
        }
    }
    Ok((certificate, judged, undecided))
}

/// Reads a certificate and checks that it is consistent.
pub(crate) fn read(path: &Path) -> Result<Certificate, String> {
    let text = std::fs::read_to_string(path).map_err(|why| format!("it cannot be read: {why}"))?;
    let certificate: Certificate = serde_json::from_str(&text)
        .map_err(|why| format!("it is no certificate that this kit reads: {why}"))?;
    let schema = certificate.schema;
    if schema != SCHEMA {
        return Err(format!("its format is {schema}, and this kit reads {SCHEMA}"));
    }
    // Text that is not read, for example blanks, would not be hashed.
    if text != certificate.text() || certificate.digest != certificate.hash() {
        return Err("it was changed after it was made: its digest differs".to_owned());
    }
    if certificate.profiles != certificate.states() {
        return Err("its profiles do not follow from its rules".to_owned());
    }
    let columns = |result: &Certified| (result.rule.clone(), result.profile.clone(), result.access);
    if certificate.rules == rules_hash() && !certificate.results.iter().map(columns).eq(certified()) {
        return Err("its rules are not those of the kit that it names".to_owned());
    }
    Ok(certificate)
}

/// Reads a stored history, compressed or not.
fn history(bytes: &[u8]) -> io::Result<(Head, Vec<Event>)> {
    match bytes.starts_with(&[0x1f, 0x8b]) {
        true => load(BufReader::new(MultiGzDecoder::new(bytes))),
        false => load(bytes),
    }
}

/// Judges the history of a rule again, if it has one.
fn judge_result(
    certificate: &Certificate,
    result: &Certified,
    path: &Path,
) -> Result<Option<Judgement>, String> {
    let Some(kept) = &result.history else {
        return Ok(None);
    };
    let (rule, file) = (&result.rule, &kept.file);
    if *file != format!("{rule}.jsonl.gz") {
        return Err(format!(
            "the history of rule {rule} is in a file with another name: {file}"
        ));
    }
    let unread = |why: io::Error| format!("the history {file} cannot be read: {why}");
    let bytes = std::fs::read(path.with_file_name(file)).map_err(unread)?;
    if sha256(&bytes) != kept.sha256 {
        return Err(format!(
            "the history {file} is not the one that the certificate names"
        ));
    }
    let (head, events) = history(&bytes).map_err(unread)?;
    let is_its_own = head.rule == *rule
        && head.product == certificate.product
        && head.target == certificate.label
        && result.seeds.last() == Some(&head.seed)
        && !head.asked.is_empty();
    if !is_its_own {
        return Err(format!("the history {file} is of another run"));
    }
    let mut worst = Judgement::Legal;
    for asked in &head.asked {
        match asked.check.judge(&events, &asked.model, wgl::BUDGET) {
            Ok(Judgement::Legal) => {}
            Ok(illegal @ Judgement::Illegal(_)) => return Ok(Some(illegal)),
            Ok(unknown) => worst = unknown,
            Err(why) => return Err(format!("the history {file} was not judged: {why}")),
        }
    }
    Ok(Some(worst))
}

fn judged(head: &Head, events: &[Event], out: &mut impl Write) -> io::Result<u8> {
    let (rule, product, target, seed) = (&head.rule, &head.product, &head.target, head.seed);
    let (kit, count, outcome) = (&head.kit, events.len(), &head.outcome);
    writeln!(
        out,
        "rule {rule}, {product} on {target}, seed {seed:#x}, kit {kit}, {count} events; the outcome was \
            {outcome}"
    )?;
    let mut worst = 0;
    for asked in &head.asked {
        let (code, said) = match asked.check.judge(events, &asked.model, wgl::BUDGET) {
            Ok(Judgement::Legal) => (0, "legal".to_owned()),
            Ok(Judgement::Unknown(why)) => (2, format!("not decided: {why}")),
            Ok(Judgement::Illegal(violation)) => {
                let drawing = timeline::of(&violation, events, &asked.model);
                (1, format!("illegal: {violation}\n{drawing}"))
            }
            Err(why) => (3, format!("not judged: {why}")),
        };
        writeln!(out, "  {}: {}", asked.check, said.trim_end())?;
        worst = worst.max(code);
    }
    Ok(worst)
}
