//! What the command is given, and what the program says of itself.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use crate::site::{Site, children, said, signal};

#[test]
fn the_command_finds_name_token_and_store() {
    let site = Site::new();
    let script = "echo $DLOCK_NAME $DLOCK_TOKEN $DLOCK_URL";
    let (code, first) = site.run(&["run", "a b", "--", "sh", "-c", script]);
    let (_, second) = site.run(&["run", "a b", "--", "sh", "-c", script]);
    let token = |said: &str| said.split(' ').nth(2).unwrap().parse::<u64>().unwrap();
    assert!(code == 0 && first.starts_with("a b "), "{first}");
    assert!(token(&second) > token(&first));
    let file = format!("sqlite://{}", site.path(".local/state/dlock/locks.db").display());
    assert!(first.trim().ends_with(&file), "{first}");
}

#[test]
fn each_failure_has_its_exit_code() {
    let site = Site::new();
    assert_eq!(site.run(&["run", "x", "--", "sh", "-c", "exit 7"]).0, 7);
    assert_eq!(site.run(&["run", "x", "--", "sh", "-c", "kill -9 $$"]).0, 137);
    for (args, expected, words) in [
        (
            &["run", "x", "--", "./no-such-command"][..],
            127,
            "no-such-command",
        ),
        (&["run", "x", "--", "/"], 126, "cannot run /"),
        (&["run", "x"], 125, "COMMAND"),
        (&["run", "--ttl", "soon", "x", "--", "true"], 125, "--ttl"),
        (
            &["run", "--ttl", "9s", "--kill-after", "4s", "x", "--", "true"],
            125,
            "at most 3s, a third",
        ),
        (
            &["run", "--url", "redis://127.0.0.1:1", "x", "--", "true"],
            121,
            "127.0.0.1:1",
        ),
        (
            &["run", "--url", "nonsense://h", "x", "--", "true"],
            125,
            "scheme",
        ),
        (
            &["run", "--permits", "2", "--shared", "x", "--", "true"],
            125,
            "--shared",
        ),
        (&["release", "x"], 125, "--force"),
    ] {
        let (code, said) = site.run(args);
        assert!(
            code == expected && said.contains(words),
            "{args:?}: {code} {said}"
        );
    }
    let held = site.start(&["run", "x"], "echo up; sleep 60");
    held.line();
    let (code, said) = site.run(&["run", "--try", "x", "--", "true"]);
    assert!(code == 124 && said.contains("somebody else"), "{code} {said}");
    assert_eq!(site.run(&["run", "--wait", "200ms", "x", "--", "true"]).0, 124);
}

#[test]
fn command_uses_the_standard_streams() {
    let site = Site::new();
    let mut command = site.dlock(["run", "x", "--", "sh", "-c", "cat; echo bad >&2"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"in and out").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.stdout, output.stderr),
        (b"in and out".to_vec(), b"bad\n".to_vec())
    );
}

#[test]
fn shared_runs_and_permits_respect_their_limits() {
    let site = Site::new();
    let shared = ["run", "--shared", "reports"];
    let readers = [
        site.start(&shared, "echo up; sleep 60"),
        site.start(&shared, "echo up; sleep 60"),
    ];
    readers.iter().for_each(|one| drop(one.line()));
    assert_eq!(site.run(&["run", "--try", "reports", "--", "true"]).0, 124);
    let permits = ["run", "--permits", "2", "encode"];
    let both = [
        site.start(&permits, "echo up; sleep 60"),
        site.start(&permits, "echo up; sleep 60"),
    ];
    both.iter().for_each(|one| drop(one.line()));
    assert_eq!(
        site.run(&["run", "--try", "--permits", "2", "encode", "--", "true"])
            .0,
        124
    );
}

#[test]
fn url_comes_from_flag_then_environment_then_file() {
    let site = Site::new();
    let seen = |args: &[&str], url: Option<&str>| {
        let mut command =
            site.dlock(
                ["run", "x"]
                    .iter()
                    .chain(args)
                    .chain(&["--", "sh", "-c", "echo $DLOCK_URL"]),
            );
        said(&command.envs(url.map(|url| ("DLOCK_URL", url))).output().unwrap())
    };
    let url = |name: &str| format!("sqlite://{}", site.path(name).display());
    fs::create_dir(site.path(".config")).unwrap();
    fs::write(
        site.path(".config/dlock.toml"),
        format!("url = '{}'\n", url("file.db")),
    )
    .unwrap();
    assert_eq!(seen(&[], None).1.trim(), url("file.db"));
    assert_eq!(seen(&[], Some(&url("env.db"))).1.trim(), url("env.db"));
    assert_eq!(
        seen(&["--url", &url("line.db")], Some(&url("env.db"))).1.trim(),
        url("line.db")
    );
    fs::write(
        site.path(".config/dlock.toml"),
        "url = 'redis://:secret@h'\nuser = 'x'\n",
    )
    .unwrap();
    let (code, said) = seen(&[], None);
    assert!(
        code == 125 && said.contains("dlock.toml, line 2") && !said.contains("secret"),
        "{said}"
    );
}

#[test]
fn passwords_are_never_printed() {
    let redis =
        dlock_testkit::RedisServer::with(dlock_testkit::RedisOptions::new().password("s3cret/pw")).unwrap();
    let (site, address) = (Site::new(), redis.address());
    fs::write(site.path("password"), "s3cret/pw\n").unwrap();
    let file = site.path("password").display().to_string();
    let script = "env | grep DLOCK; tr '\\0' '\\n' < /proc/$PPID/environ | grep DLOCK";
    for args in [
        &[
            "run",
            "--url",
            &format!("redis://{address}"),
            "--password-file",
            &file,
            "x",
            "--",
            "sh",
            "-c",
            script,
        ][..],
        &[
            "run",
            "--url",
            &format!("redis://:s3cret%2Fpw@{address}"),
            "x",
            "--",
            "sh",
            "-c",
            script,
        ],
    ] {
        let (code, said) = site.run(args);
        assert!(
            code == 0 && said.contains(&format!("redis://{address}")),
            "{code} {said}"
        );
        assert!(!said.contains("s3cret"), "{said}");
    }
    fs::write(site.path("password"), "wrong-one\n").unwrap();
    let (code, said) = site.run(&[
        "status",
        "--url",
        &format!("redis://{address}"),
        "--password-file",
        &file,
        "x",
    ]);
    assert!(code == 122 && !said.contains("wrong-one"), "{code} {said}");
}

#[test]
fn man_pages_and_completions_match_the_command_line() {
    let site = Site::new();
    for shell in ["bash", "zsh", "fish"] {
        let (code, said) = site.run(&["completions", shell]);
        assert!(
            code == 0 && said.contains("elect") && !said.contains("__leash"),
            "{shell}"
        );
    }
    let folder = site.path("man");
    assert_eq!(site.run(&["man", folder.to_str().unwrap()]).0, 0);
    for page in [
        "dlock.1",
        "dlock-run.1",
        "dlock-elect.1",
        "dlock-status.1",
        "dlock-ls.1",
        "dlock-doctor.1",
        "dlock-bench.1",
        "dlock-watch.1",
        "dlock-release.1",
    ] {
        let text = fs::read_to_string(folder.join(page)).unwrap();
        assert!(text.contains("dlock"), "{page}");
    }
    let (code, said) = site.run(&["run", "--help"]);
    assert!(
        code == 0 && said.contains("120") && said.contains("DLOCK_TOKEN"),
        "{said}"
    );
}

#[test]
fn a_short_job_runs_on_one_of_three_machines() {
    let site = Site::new();
    let line = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/cron")).unwrap();
    let line = line.lines().last().unwrap();
    let args = line.split_once("dlock ").unwrap().1.split_once(" --").unwrap();
    assert!(line.starts_with("0 3 * * *") && args.0 == "run", "{line}");
    let flags: Vec<&str> = line
        .split_whitespace()
        .skip_while(|word| *word != "run")
        .take_while(|word| *word != "--")
        .collect();
    // They come one after the other, as with clocks that differ by more than the job takes.
    let ran = (0..3).filter(|_| site.run(&[&flags[..], &["--", "true"]].concat()).0 == 0);
    assert_eq!(ran.count(), 1);
}

#[test]
fn deployment_runs_once_and_shows_its_holder() {
    let site = Site::new();
    let deploy = |command: &[&str]| {
        let mut script = std::process::Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/deploy"));
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_dlock"))
            .parent()
            .unwrap();
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
        script
            .args(command)
            .env("PATH", path)
            .env("HOME", site.path(""))
            .env_remove("DLOCK_URL")
            .stdin(Stdio::null());
        script
    };
    let mut first = crate::site::Running::of(
        deploy(&["sh", "-c", "echo up; sleep 60"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    first.line();
    let (code, told) = said(&deploy(&["true"]).output().unwrap());
    assert!(
        code == 124 && told.contains("deploy: held") && told.contains('@'),
        "{code} {told}"
    );
    children(first.pid())
        .into_iter()
        .for_each(|dlock| signal("TERM", dlock));
    assert_eq!(first.code(), 143);
}
