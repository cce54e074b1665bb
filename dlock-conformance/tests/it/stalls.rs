//! A disk that stands still while rules run: a pipe that is full, in the place of the file that is written.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_conformance::simulated::Simulated;
use dlock_conformance::{Claims, Clockwork, Cx, Engine, Harness, Kind, Options, Outcome, Subject, run};
use dlock_core::{Result, Runtime};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use crate::dishonest::agreeing::Agreeing;
use crate::fixture::Scratch;

/// A store that grants whatever it is asked for, in virtual time.
struct OnDisk {
    world: Simulated,
    folder: PathBuf,
    /// While it is there, the disk stands still.
    pipe: Mutex<Option<File>>,
}

impl Harness for OnDisk {
    fn claims(&self) -> Claims {
        let mut claims = self.world.claims().slack(Duration::from_secs(1));
        claims.engine = Engine::Own;
        claims
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.world.runtime()
    }

    fn connect<'a>(&'a self, cx: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        if cx.rule() == "3.01" && self.pipe.lock().unwrap().is_some() {
            // Longer than half of the slack.
            std::thread::sleep(Duration::from_millis(700));
        }
        if cx.namespace().ends_with("3.02-1") && self.pipe.lock().unwrap().take().is_some() {
            // Now the disk is quick, and the canary has the time to see that.
            std::thread::sleep(Duration::from_millis(300));
        }
        let client = Agreeing::new(self.claims().capabilities, self.runtime());
        ready(Ok(Arc::new(client) as Arc<dyn Subject>)).boxed()
    }

    fn disk(&self) -> Option<PathBuf> {
        Some(self.folder.clone())
    }

    fn clockwork(&self) -> Arc<dyn Clockwork> {
        self.world.clockwork()
    }
}

fn on_disk(folder: &Path, pipe: Option<File>) -> dlock_conformance::Report {
    let mut options = Options::default();
    options.filters = vec!["3.01".to_owned(), "3.02".to_owned()];
    let harness = OnDisk {
        world: Simulated::new(1),
        folder: folder.to_owned(),
        pipe: Mutex::new(pipe),
    };
    run(harness, &options)
}

#[test]
fn a_stall_of_the_disk_counts_until_it_is_over_and_not_after() {
    let scratch = Scratch::new("disk");
    let path = scratch.path().join("canary");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let mut pipe = OpenOptions::new().read(true).write(true).open(path).unwrap();
    rustix::io::ioctl_fionbio(&pipe, true).unwrap();
    while pipe.write(&[0; 4096]).is_ok() {}
    let report = on_disk(scratch.path(), Some(pipe));
    let [passed, failed] = &report.rules[..] else {
        panic!("two rules were run")
    };
    // What passed although the disk was late has passed.
    assert_eq!(passed.outcome, Outcome::Pass);
    assert_eq!(passed.attempts[0].stall, Duration::ZERO);
    // The canary has not woken from it, then it has, then it is over.
    let attempts = failed.attempts.iter();
    let kinds: Vec<Kind> = attempts.map(|attempt| attempt.outcome.kind()).collect();
    assert_eq!(
        kinds,
        [Kind::Inconclusive, Kind::Inconclusive, Kind::Fail],
        "{failed:?}"
    );
    assert_eq!(failed.outcome.kind(), Kind::Fail);
    let why = failed.attempts[0].outcome.text();
    assert!(why.contains("this machine or its disk stalled for"), "{why}");
    // The file that is written has no name any more.
    std::fs::remove_dir(scratch.path()).unwrap();
}

#[test]
fn without_a_disk_to_try_rules_fail_at_once() {
    let report = on_disk(Path::new("/nowhere"), None);
    let kinds: Vec<Kind> = report.rules.iter().map(|rule| rule.outcome.kind()).collect();
    assert_eq!(kinds, [Kind::Pass, Kind::Fail]);
    assert_eq!(report.rules[1].attempts.len(), 1);
}
