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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::OnceLock;

    use super::*;
    use crate::certificate::packed;
    use crate::history::store;
    use crate::options::Options;
    use crate::outcome::Outcome;
    use crate::runner::run;
    use crate::simulated::Simulated;

    /// A certificate in a directory of its own, which is removed again.
    struct Own(PathBuf);

    impl Own {
        fn new(test: &str) -> Self {
            static MADE: OnceLock<(Certificate, BTreeMap<String, Vec<u8>>)> = OnceLock::new();
            let (certificate, histories) = MADE.get_or_init(|| {
                let report = run(Simulated::new(1), &Options::default());
                Certificate::of(&report).unwrap()
            });
            let name = format!("dlock-certificate-{test}-{}", std::process::id());
            let own = Self(std::env::temp_dir().join(name));
            certificate.put(histories, &own.0.join("one")).unwrap();
            own
        }

        fn file(&self, name: &str) -> PathBuf {
            self.0.join("one").join(name)
        }
    }

    impl Drop for Own {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn said(path: &Path) -> (u8, String) {
        let mut out = Vec::new();
        let code = verify([path], &mut out).unwrap();
        (code, String::from_utf8(out).unwrap())
    }

    #[track_caller]
    fn refused(own: &Own, why: &str) {
        let (code, text) = said(&own.0);
        assert!(code == 1 && text.contains(why), "{text}");
    }

    /// Makes the hashes agree again, as a forger of a certificate would.
    fn forge(own: &Own, change: impl FnOnce(&mut Certificate)) {
        let mut certificate = read(&own.file(FILE)).unwrap();
        change(&mut certificate);
        for kept in certificate.results.iter_mut().filter_map(|r| r.history.as_mut()) {
            kept.sha256 = sha256(std::fs::read(own.file(&kept.file)).unwrap());
        }
        certificate.digest = certificate.hash();
        std::fs::write(own.file(FILE), certificate.text()).unwrap();
    }

    #[test]
    fn an_unchanged_certificate_is_accepted() {
        let own = Own::new("accepted");
        for path in [own.file(FILE), own.0.join("one"), own.0.clone()] {
            let (code, text) = said(&path);
            assert!(
                code == 0 && text.contains("histories were judged again"),
                "{text}"
            );
            assert!(text.contains("proven: Core"), "{text}");
        }
        let (code, text) = said(&own.file("1.01.jsonl.gz"));
        assert!(code == 0 && text.contains(": legal"), "{text}");
        let none = own.0.join("none");
        std::fs::create_dir(&none).unwrap();
        let (code, text) = said(&none);
        assert!(code == 3 && text.contains("no certificate in it"), "{text}");
    }

    #[test]
    fn a_certificate_that_was_changed_is_refused() {
        let own = Own::new("changed");
        let all = std::fs::read_dir(own.0.join("one")).unwrap();
        let all = all.map(|entry| entry.unwrap().path());
        for path in all.filter(|path| path.extension().is_some_and(|end| end != "svg")) {
            let bytes = std::fs::read(&path).unwrap();
            for at in (0..bytes.len()).step_by(1 + bytes.len() / 12) {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                std::fs::write(&path, changed).unwrap();
                refused(&own, "refused: ");
            }
            std::fs::write(&path, &bytes).unwrap();
        }
        std::fs::copy(own.file("1.01.jsonl.gz"), own.file("7.02.jsonl.gz")).unwrap();
        refused(&own, "7.02.jsonl.gz is not the one");
        std::fs::remove_file(own.file("7.02.jsonl.gz")).unwrap();
        refused(&own, "7.02.jsonl.gz cannot be read");
    }

    #[test]
    fn a_forged_certificate_is_refused() {
        let forged = |change: fn(&mut Certificate), why: &str| {
            let own = Own::new("forged");
            forge(&own, change);
            refused(&own, why);
        };
        forged(|c| c.results.retain(|r| r.rule != "3.01"), "not those of the kit");
        let not_run = |c: &mut Certificate| {
            let reason = String::new();
            c.results[2].outcome = Outcome::NotRun { reason };
        };
        forged(not_run, "profiles do not follow from");
        forged(|c| c.product.push('!'), "is of another run");
        forged(|c| c.schema += 1, "its format is 2");
        let own = Own::new("illegal");
        let path = own.file("1.01.jsonl.gz");
        let bytes = std::fs::read(&path).unwrap();
        let (head, mut events) = history(&bytes).unwrap();
        for event in &mut events {
            event.token = event.token.map(|_| 7);
        }
        let mut text = Vec::new();
        store(&head, &events, &mut text).unwrap();
        std::fs::write(&path, packed(&text).unwrap()).unwrap();
        forge(&own, |_| {});
        refused(&own, "its history is illegal");
    }
}
