//! Histories of rules that failed: stored, found by the failure text, and judged again without the store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dlock_conformance::history::{Event, EventKind, load, store};
use dlock_conformance::simulated::Simulated;
use dlock_conformance::{
    Conditions, Cx, Effort, Harness, Histories, Kind, Options, Rule, Subject, Verdict, run, run_once, verify,
};
use futures::FutureExt;

use crate::dishonest::agreeing::Agreeing;
use crate::fixture::Scratch;
use crate::report::declared;

/// Runs rule 1.01 on the reference backend and keeps its history.
fn kept(directory: &Path) -> PathBuf {
    let mut options = Options::default();
    options.filters = vec!["1.01".to_owned()];
    options.histories_to = Some(directory.to_owned());
    options.histories = Histories::All;
    let report = run(Simulated::new(3), &options);
    assert_eq!(report.exit_code(), 0);
    let stored = report.rules[0].attempts[0].stored.clone();
    let stored = stored.expect("its history is kept");
    assert!(
        report.rules[0]
            .failure_text()
            .contains(&stored.display().to_string())
    );
    stored
}

fn verified(file: &Path) -> (u8, String) {
    let mut out = Vec::new();
    let code = verify([file], &mut out).expect("a vector takes everything");
    (code, String::from_utf8_lossy(&out).into_owned())
}

#[test]
fn a_stored_history_is_judged_the_same() {
    let directory = Scratch::new("kept");
    let file = kept(directory.path());
    let place = file
        .strip_prefix(directory.path())
        .unwrap()
        .to_string_lossy()
        .into_owned();
    assert!(
        place.starts_with("memory-sim/1.01-0x") && place.ends_with(".jsonl"),
        "{place}"
    );
    let (code, said) = verified(&file);
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("rule 1.01") && said.contains("exclusion, tokens and belief: legal"),
        "{said}"
    );
}

#[test]
fn a_history_that_was_tampered_with_is_refused_with_a_drawing() {
    let directory = Scratch::new("tampered");
    let file = kept(directory.path());
    let (head, mut events) = load(std::io::BufReader::new(std::fs::File::open(&file).unwrap())).unwrap();
    // Two grants with one token.
    let mut grants = events
        .iter_mut()
        .filter(|e| e.kind == EventKind::Return && e.token.is_some());
    let token = grants.next().unwrap().token;
    grants.next().unwrap().token = token;
    store(&head, &events, std::fs::File::create(&file).unwrap()).unwrap();
    let (code, said) = verified(&file);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("have the same token") && said.contains("granted   "),
        "{said}"
    );
}

#[test]
fn a_malformed_stored_history_is_refused() {
    let directory = Scratch::new("none");
    let file = directory.path().join("x.jsonl");
    assert_eq!(verified(&file).0, 3);
    for content in ["", "{}\n", "no json"] {
        std::fs::write(&file, content).unwrap();
        assert_eq!(verified(&file).0, 3, "{content}");
    }
    let kept = kept(directory.path());
    let text = std::fs::read_to_string(&kept).unwrap();
    std::fs::write(&file, text.replace("dlock-history-1", "dlock-history-9")).unwrap();
    assert!(verified(&file).1.contains("its format is dlock-history-9"));
    // Times that go back: it is no history, which is not the subject's fault.
    let mut lines: Vec<&str> = text.lines().collect();
    let last = lines.len() - 1;
    lines.swap(1, last);
    std::fs::write(&file, lines.join("\n")).unwrap();
    let (code, said) = verified(&file);
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("not judged"), "{said}");
}

#[test]
fn a_rule_that_passes_removes_the_history_of_an_earlier_run() {
    let directory = Scratch::new("passed");
    let file = kept(directory.path());
    let mut options = Options::default();
    options.filters = vec!["1.01".to_owned()];
    options.histories_to = Some(directory.path().to_owned());
    let report = run(Simulated::new(4), &options);
    assert_eq!(report.exit_code(), 0);
    assert!(!file.exists());
}

/// A lane through a client that acts when it is called, before it is polled, as a child process does.
async fn works_through_a_hasty_client(cx: Cx) -> Verdict {
    let history = cx.history().clone();
    let act = move || {
        history.record(Event::new(EventKind::Queued, 0, 0, "acted"));
    };
    let client = Agreeing::new(cx.claims().capabilities.clone(), Arc::clone(cx.runtime())).acting(act);
    let lane = cx.lane(&(Arc::new(client) as Arc<dyn Subject>));
    let held = lane.acquire(&cx.name("a"), &cx.ask()).await?;
    lane.renew(&held).await?;
    lane.release(&held).await?;
    lane.try_acquire(&cx.name("b"), &cx.ask()).await?;
    Ok(())
}

#[test]
fn a_call_is_written_down_before_it_is_made() {
    static CALLS: Rule = Rule {
        run: |cx| works_through_a_hasty_client(cx).boxed(),
        ..declared("0.00")
    };
    let harness: Arc<dyn Harness> = Arc::new(Simulated::new(1));
    let name = "dlc-hasty".to_owned();
    let attempt = run_once(&CALLS, &harness, name, 1, Effort::Quick, Conditions::default());
    assert_eq!(attempt.outcome.kind(), Kind::Pass, "{:?}", attempt.outcome);
    let mut kinds: Vec<EventKind> = attempt.history.iter().map(|e| e.kind).collect();
    kinds.retain(|kind| *kind != EventKind::GrantedBeliefUntil);
    assert_eq!(
        kinds,
        [EventKind::Invoke, EventKind::Queued, EventKind::Return].repeat(4)
    );
}
