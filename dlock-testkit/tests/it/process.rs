//! What holds for every kind of server: its port is its own, and it ends with the program that started it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use dlock_testkit::{Port, RedisServer, until};

/// Whether that process runs: one that was killed and not yet collected does not.
fn runs(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = status.rsplit(") ").next().and_then(|rest| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

#[test]
fn a_port_is_claimed_once() {
    let all: Vec<Port> = (0..200).map(|_| Port::free().unwrap()).collect();
    let mut numbers: Vec<u16> = all.iter().map(Port::number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), all.len());
}

#[test]
fn a_dropped_server_is_gone_with_its_folder() {
    let server = RedisServer::start().unwrap();
    let pid = server.pid().unwrap().to_string();
    let folder = server.ask(&["CONFIG", "GET", "dir"]).unwrap().list().unwrap()[1].text();
    assert!(runs(&pid) && Path::new(&folder).is_dir());
    drop(server);
    assert!(!runs(&pid) && !Path::new(&folder).exists());
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let server = std::thread::spawn(|| RedisServer::start().unwrap())
        .join()
        .unwrap();
    // A signal for the end of that thread would have come by now, before the answer.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.ask(&["PING"]).unwrap().text(), "PONG");
}

/// The test below starts the program again, to run only this; as a test of its own it does nothing.
#[test]
fn child_that_waits_to_be_killed() {
    if std::env::var_os("DLOCK_SERVERS_CHILD").is_none() {
        return;
    }
    let server = RedisServer::start().unwrap();
    let folder = server.ask(&["CONFIG", "GET", "dir"]).unwrap().list().unwrap()[1].text();
    let pid = server.pid().unwrap();
    // Past libtest, which keeps what a test prints.
    std::fs::write(
        std::env::var("DLOCK_SERVERS_CHILD").unwrap(),
        format!("{pid} {folder}\n"),
    )
    .unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_killed_program_leaves_no_server_and_no_folder() {
    // A pipe could not be told apart from the test's own output.
    let told = std::env::temp_dir().join(format!("dlock-servers-child-{}", std::process::id()));
    std::fs::write(&told, "").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process::child_that_waits_to_be_killed", "--nocapture"])
        .env("DLOCK_SERVERS_CHILD", &told)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let said = until("the child has a server", Duration::from_secs(20), || {
        line.clear();
        BufReader::new(std::fs::File::open(&told)?).read_line(&mut line)?;
        Ok(line.ends_with('\n'))
    });
    let _ = std::fs::remove_file(&told);
    let kill = child.kill();
    said.unwrap();
    let (pid, folder) = line.trim().split_once(' ').unwrap();
    kill.unwrap();
    child.wait().unwrap();
    until("the server is gone", Duration::from_secs(5), || Ok(!runs(pid))).unwrap();
    let of_the_program = Path::new(folder).parent().unwrap();
    until("the folder is gone", Duration::from_secs(5), || {
        Ok(!of_the_program.exists())
    })
    .unwrap();
}
