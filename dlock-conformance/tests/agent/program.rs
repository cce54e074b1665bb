//! The program that `main!` makes of a harness: its arguments, what it prints, and its exit code.
//!
//! This program is one, of the harness that `DLOCK_TRIAL` names.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_conformance::simulated::Simulated;
use dlock_conformance::{Claims, Clockwork, Cx, Engine, Harness, Need, Subject};
use dlock_core::{Error, ErrorKind, Result, Runtime};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use crate::agreeing::Agreeing;
use crate::trials::{Local, passes};

const VARIABLE: &str = "DLOCK_TRIAL";

/// The exit code, where this process is to be such a program.
pub(crate) fn main() -> Option<ExitCode> {
    dlock_conformance::main!(Other::new(std::env::var(VARIABLE).unwrap_or_default()));
    std::env::var_os(VARIABLE).map(|_| main())
}

/// The simulated store, or the one in real time, with something that is not as usual.
struct Other {
    what: String,
    inner: Arc<dyn Harness>,
    stalls: AtomicBool,
}

impl Other {
    fn new(what: String) -> Self {
        let inner: Arc<dyn Harness> = match what.as_str() {
            "stalls" | "grants and stalls" => Arc::new(Local::new(false)),
            _ => Arc::new(Simulated::new(1)),
        };
        let stalls = AtomicBool::new(what.ends_with("stalls"));
        Self { what, inner, stalls }
    }
}

impl Harness for Other {
    fn claims(&self) -> Claims {
        let mut claims = self.inner.claims();
        if self.what.starts_with("grants") {
            claims.engine = Engine::Own;
        }
        match self.what.as_str() {
            "does not renew" => claims.without(Need::AutoRenew),
            "does not try" => claims.without(Need::Try),
            "waives" => claims.waive("17.06", "known", "https://acme.example/7"),
            "stalls" => claims.slack(Duration::from_secs(1)),
            _ => claims,
        }
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.inner.runtime()
    }

    fn connect<'a>(&'a self, cx: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        if self.stalls.swap(false, Ordering::Relaxed) {
            // The whole process stands still.
            let script = "kill -STOP $PPID; sleep 0.7; kill -CONT $PPID";
            let stalled = Command::new("sh").args(["-c", script]).status();
            assert!(stalled.is_ok_and(|status| status.success()), "there is a shell");
        }
        if self.what == "is away" {
            return ready(Err(Error::new(ErrorKind::Unavailable, "nobody is there"))).boxed();
        }
        if self.what.starts_with("grants") {
            let client = Agreeing::new(self.claims().capabilities, self.runtime());
            return ready(Ok(Arc::new(client) as Arc<dyn Subject>)).boxed();
        }
        self.inner.connect(cx)
    }

    fn clockwork(&self) -> Arc<dyn Clockwork> {
        self.inner.clockwork()
    }
}

/// Programs that were built by cargo, as far as they can see: in a directory of their own, with its tag.
struct Built(PathBuf);

impl Built {
    fn new() -> Self {
        let built = Self(std::env::temp_dir().join(format!("dlock-program-{}", std::process::id())));
        let _ = fs::remove_dir_all(&built.0);
        fs::create_dir_all(&built.0).expect("a directory can be made");
        fs::write(built.0.join("CACHEDIR.TAG"), "").expect("a file can be written");
        built
    }

    /// Runs the program of that name and that harness: its exit code, and what it says.
    fn named(&self, name: &str, what: &str, args: &[&str]) -> (i32, String) {
        let (own, program) = (std::env::current_exe().expect("it runs"), self.0.join(name));
        if !program.exists() {
            let linked = fs::hard_link(&own, &program).or_else(|_| fs::copy(&own, &program).map(drop));
            linked.expect("a program can be copied");
        }
        let mut command = Command::new(program);
        let output = command
            .args(args)
            .env(VARIABLE, what)
            .current_dir(&self.0)
            .output();
        let output = output.expect("the program runs");
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code().unwrap_or(-1),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    fn run(&self, what: &str, args: &str) -> (i32, String) {
        let args: Vec<&str> = args.split_whitespace().collect();
        // Cargo puts a hash behind the name.
        self.named("my-lock-5ba2a35d97f4c01e", what, &args)
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

fn lacks(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(!text.contains(part), "{part} is in {text}");
    }
}

fn flags_are_understood(built: &Built) {
    let one = "must_3_02_no_early_grant: test\n";
    let list = |args: &str| built.run("", &format!("--list {args}"));
    let filtered = "3.02 4.01 --exact --skip=4.01 --format=terse";
    assert_eq!(list(filtered), (0, one.to_owned()));
    assert_eq!(list("3.02"), (0, format!("{one}\n1 tests, 0 benchmarks\n")));
    assert_eq!(list("--format terse --ignored"), (0, String::new()));
    let args = "3.02 --seed 0xff --exact --nocapture --test-threads=2 --full";
    let (code, text) = built.run("", args);
    assert_eq!(code, 0, "{text}");
    has(&text, &["seed 0xff\n", "test must_3_02_no_early_grant ... ok\n"]);
    let (code, text) = built.run("", "3.02 --quiet");
    assert!(code == 0 && text.starts_with("\nconformance: "), "{text}");
    assert_eq!(built.run("", "--help").0, 0);
}

fn reports_of_a_filtered_run_replace_none(built: &Built) {
    let reports = built.0.join("conformance");
    lacks(&built.run("", "4.01").1, &["reports: "]);
    assert!(!reports.exists());
    let (code, text) = built.run("is away", "");
    assert_eq!(code, 4, "{text}");
    has(&text, &[&format!("reports: {}", reports.display())]);
    assert!(reports.join("summary.json").is_file());
}

fn an_unknown_flag_is_refused(built: &Built) {
    for (args, why) in [
        ("--sed 1", "no such flag: --sed"),
        ("--seed x", "not a seed: x"),
        ("--seed", "--seed needs a value"),
        ("--exact=yes", "--exact takes no value"),
        ("--format json", "no such format: json"),
        ("--test-threads x", "not a number of threads: x"),
        ("explain", "explain needs"),
        ("verify", "verify needs"),
    ] {
        let (code, text) = built.run("", args);
        assert_eq!(code, 2, "{args}: {text}");
        has(&text, &[why, "usage: "]);
    }
}

fn a_rule_is_explained_with_its_bugs(built: &Built) {
    let (code, text) = built.run("", "explain 3.06");
    assert_eq!(code, 0);
    has(
        &text.replace("\n  ", " "),
        &[
            "rule 3.06 Must: ",
            "call `.with_nature(Nature::Session)`",
            "https://github.com/lukas-krecan/ShedLock/issues/2583",
            "--- a/",
        ],
    );
    assert_eq!(built.run("", "explain an_expired_guard_harms_no"), (0, text));
}

fn an_unknown_rule_is_an_error_with_suggestions(built: &Built) {
    for (name, near) in [
        ("3.99", "3.13 (must_3_13_"),
        ("no_early_grunt", "3.02 (must_3_02_"),
    ] {
        let (code, text) = built.run("", &format!("explain {name}"));
        assert_eq!(code, 2, "{text}");
        has(&text, &[near]);
    }
}

fn a_single_unclaimed_rule_is_no_failure(built: &Built) {
    for (what, args, expected) in [
        ("", "--exact 4.01", 0),
        ("does not renew", "--exact 5.09", 0),
        ("does not renew", "5.09", 4),
        ("does not try", "--exact 4.01", 4),
        // The harness names no server.
        ("", "--exact 15.05", 0),
        ("", "15.05", 4),
        ("is away", "--exact 4.01", 4),
        // The harness connects to nowhere.
        ("waives", "--exact 17.06", 4),
        ("grants", "--exact 1.03", 1),
    ] {
        let (code, text) = built.run(what, args);
        assert_eq!(code, expected, "{what}: {args}: {text}");
    }
}

/// The line with which the first rule that failed is run again.
fn replay(text: &str) -> &str {
    let line = text.lines().find_map(|line| line.strip_prefix("  replay: "));
    line.unwrap_or_else(|| panic!("no replay in {text}"))
}

fn a_replay_line_is_understood(built: &Built) {
    let (_, text) = built.run("grants", "1.03 --full --seed 7");
    let line = replay(&text);
    let (command, args) = line.split_once(" -- ").expect("it has arguments");
    assert_eq!(command, "cargo test --test my-lock");
    assert!(
        args.starts_with("1.03 --attempt-seed 0x") && args.ends_with(" --full"),
        "{args}"
    );
    let (code, text) = built.run("grants", args);
    assert_eq!((code, replay(&text)), (1, line));
    let (_, text) = built.run("grants", "1.03 --attempt-seed 42");
    has(replay(&text), &["--attempt-seed 0x2a"]);
    // The name of a program that cargo has not built is that of no test.
    let (_, text) = built.named("my-beef", "grants", &["1.03"]);
    has(replay(&text), &["cargo test --test conformance -- 1.03 "]);
}

fn several_failures_on_a_busy_machine_say_where_to_begin(built: &Built) {
    let (code, text) = built.run("grants", "1.03 1.07");
    assert_eq!(code, 1);
    has(&text, &["\nbegin with 1.03: several failures"]);
    lacks(&text, &["this machine was busy"]);
    let (code, text) = built.run("grants and stalls", "1.03");
    assert_eq!(code, 1);
    has(&text, &["this machine was busy: timers were late by "]);
    lacks(&text, &["begin with"]);
}

fn a_rule_about_time_is_tried_again_after_a_stall(built: &Built) {
    let (code, text) = built.run("stalls", "--exact 2.01 --report reports");
    assert_eq!(code, 0, "{text}");
    let report = fs::read(built.0.join("reports/memory-tokio/report.json"));
    let report: serde_json::Value = serde_json::from_slice(&report.expect("a report")).expect("it is JSON");
    let attempts = report["rules"][0]["attempts"]
        .as_array()
        .expect("it has attempts");
    assert!(attempts.len() > 1, "{attempts:?}");
    assert_eq!(attempts[0]["outcome"], "inconclusive");
    has(
        attempts[0]["why"].as_str().expect("it says why"),
        &["this machine or its disk stalled for ", "it would have passed"],
    );
}

type Trial = fn(&Built);

macro_rules! trials {
    ($($trial:ident),* $(,)?) => { &[$((stringify!($trial), $trial as Trial)),*] };
}

const TRIALS: &[(&str, Trial)] = trials![
    flags_are_understood,
    reports_of_a_filtered_run_replace_none,
    an_unknown_flag_is_refused,
    a_rule_is_explained_with_its_bugs,
    an_unknown_rule_is_an_error_with_suggestions,
    a_single_unclaimed_rule_is_no_failure,
    a_replay_line_is_understood,
    several_failures_on_a_busy_machine_say_where_to_begin,
    a_rule_about_time_is_tried_again_after_a_stall,
];

/// Each trial, and whether it passed.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, bool)> {
    let built = Built::new();
    let tried = move |(name, trial): &(&'static str, Trial)| (*name, passes(|| trial(&built)));
    TRIALS.iter().map(tried)
}
