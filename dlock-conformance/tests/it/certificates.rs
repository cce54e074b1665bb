//! The certificates of this repository, and that one which was changed is refused.

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use dlock_conformance::history::{load, store};
use dlock_conformance::simulated::Simulated;
use dlock_conformance::{Certificate, Options, Outcome, run, verify};
use flate2::Compression;
use flate2::read::{GzDecoder, GzEncoder};
use sha2::{Digest as _, Sha256};

use crate::fixture::Scratch;

fn said(path: &Path) -> (u8, String) {
    let mut out = Vec::new();
    let code = verify([path], &mut out).unwrap();
    (code, String::from_utf8(out).unwrap())
}

#[test]
fn certificates_are_accepted_and_their_page_is_fresh() {
    let directory = Path::new("../certificates");
    let (code, text) = said(directory);
    assert_eq!(code, 0, "{text}");
    let page = fs::read_to_string(directory.join("README.md")).unwrap();
    let table = dlock_conformance::certificates_table(directory).unwrap();
    assert!(
        page.ends_with(&table),
        "make it anew: cargo run -p dlock-conformance --example certificates"
    );
}

/// A certificate of the reference backend, in a directory of its own.
struct Own(Scratch);

impl Own {
    fn new(test: &str) -> Self {
        static MADE: OnceLock<Vec<(OsString, Vec<u8>)>> = OnceLock::new();
        let own = Self(Scratch::new(test));
        let one = own.file("");
        fs::create_dir(&one).unwrap();
        for (name, bytes) in MADE.get_or_init(made) {
            fs::write(one.join(name), bytes).unwrap();
        }
        own
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join("one").join(name)
    }

    #[track_caller]
    fn is_refused(&self, why: &str) {
        let (code, text) = said(self.0.path());
        assert!(code == 1 && text.contains(why), "{text}");
    }

    /// Makes the hashes agree again, as a forger of a certificate would.
    fn forge(&self, change: impl FnOnce(&mut Certificate)) {
        let path = self.file("certificate.json");
        let mut certificate: Certificate = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut certificate);
        for kept in certificate.results.iter_mut().filter_map(|r| r.history.as_mut()) {
            kept.sha256 = hash(&fs::read(self.file(&kept.file)).unwrap());
        }
        let text = |certificate: &Certificate| serde_json::to_string_pretty(certificate).unwrap() + "\n";
        certificate.digest.clear();
        certificate.digest = hash(text(&certificate).as_bytes());
        fs::write(path, text(&certificate)).unwrap();
    }
}

/// The files of the certificate.
fn made() -> Vec<(OsString, Vec<u8>)> {
    let scratch = Scratch::new("made");
    let mut options = Options::default();
    options.certificate_to = Some(scratch.path().to_owned());
    let report = run(Simulated::new(1), &options);
    assert_eq!(report.exit_code(), 0, "{}", report.summary());
    let files = |directory: &Path| fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let own = files(scratch.path()).next().unwrap();
    let read = files(&own.path()).map(|file| (file.file_name(), fs::read(file.path()).unwrap()));
    read.collect()
}

fn hash(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn an_unchanged_certificate_is_accepted() {
    let own = Own::new("accepted");
    for path in [
        own.file("certificate.json"),
        own.file(""),
        own.0.path().to_owned(),
    ] {
        let (code, text) = said(&path);
        let judged = text.contains("histories were judged again");
        assert!(code == 0 && judged && text.contains("proven: Core"), "{text}");
    }
    let (code, text) = said(&own.file("1.01.jsonl.gz"));
    assert!(code == 0 && text.contains(": legal"), "{text}");
    let none = own.file("none");
    fs::create_dir(&none).unwrap();
    let (code, text) = said(&none);
    assert!(code == 3 && text.contains("no certificate in it"), "{text}");
}

#[test]
fn a_certificate_that_was_changed_is_refused() {
    let own = Own::new("changed");
    let files = fs::read_dir(own.file(""))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    for path in files.filter(|path| path.extension().is_some_and(|end| end != "svg")) {
        let bytes = fs::read(&path).unwrap();
        // One hash covers a whole history.
        let changes = if path.ends_with("certificate.json") { 12 } else { 3 };
        for at in (0..bytes.len()).step_by(1 + bytes.len() / changes) {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            fs::write(&path, changed).unwrap();
            own.is_refused("refused: ");
        }
        fs::write(&path, &bytes).unwrap();
    }
    // What is not read is not hashed.
    let path = own.file("certificate.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{text} ")).unwrap();
    own.is_refused("it was changed after it was made");
    fs::write(&path, text).unwrap();
    fs::copy(own.file("1.01.jsonl.gz"), own.file("7.02.jsonl.gz")).unwrap();
    own.is_refused("7.02.jsonl.gz is not the one");
    fs::remove_file(own.file("7.02.jsonl.gz")).unwrap();
    own.is_refused("7.02.jsonl.gz cannot be read");
}

#[test]
fn a_forged_certificate_is_refused() {
    let forged = |change: fn(&mut Certificate), why: &str| {
        let own = Own::new("forged");
        own.forge(change);
        own.is_refused(why);
    };
    forged(|c| c.results.retain(|r| r.rule != "3.01"), "not those of the kit");
    let not_run = |c: &mut Certificate| {
        let reason = String::new();
        c.results[2].outcome = Outcome::NotRun { reason };
    };
    forged(not_run, "profiles do not follow from");
    forged(|c| c.product.push('!'), "is of another run");
    forged(|c| c.schema += 1, "its format is 2");
}

#[test]
fn a_certificate_with_an_illegal_history_is_refused() {
    let own = Own::new("illegal");
    let path = own.file("1.01.jsonl.gz");
    let mut text = Vec::new();
    GzDecoder::new(&*fs::read(&path).unwrap())
        .read_to_end(&mut text)
        .unwrap();
    let (head, mut events) = load(&*text).unwrap();
    for event in &mut events {
        event.token = event.token.map(|_| 7);
    }
    text.clear();
    store(&head, &events, &mut text).unwrap();
    let mut packed = Vec::new();
    GzEncoder::new(&*text, Compression::best())
        .read_to_end(&mut packed)
        .unwrap();
    fs::write(&path, packed).unwrap();
    own.forge(|_| {});
    own.is_refused("its history is illegal");
}
