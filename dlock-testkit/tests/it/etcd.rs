//! etcd, alone and as an ensemble.

use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use dlock_testkit::{EtcdEnsemble, EtcdOptions, EtcdServer, Tls, etcd_35, until};

/// Enough for a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// The value of a key, read through a majority.
fn get(server: &EtcdServer, key: &str) -> String {
    let words = ["get", key, "--print-value-only"];
    server.etcdctl(&words).unwrap()
}

fn put(server: &EtcdServer, key: &str, value: &str) {
    assert_eq!(server.etcdctl(&["put", key, value]).unwrap(), "OK");
}

#[test]
fn a_server_keeps_its_data_and_port_through_a_stop_and_a_crash() {
    let server = EtcdServer::start().unwrap();
    let address = server.address();
    let mut pids = vec![server.pid().unwrap()];
    let end = [EtcdServer::stop_in_order, EtcdServer::crash];
    for (n, end) in end.into_iter().enumerate() {
        let key = format!("kept-{n}");
        put(&server, &key, "v");
        end(&server).unwrap();
        assert!(TcpStream::connect(address).is_err());
        server.start_again().unwrap();
        assert_eq!(server.address(), address);
        pids.push(server.pid().unwrap());
        assert_eq!(get(&server, &key), "v");
    }
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 3);
}

#[test]
fn a_paused_server_accepts_and_answers_only_when_it_goes_on() {
    let server = EtcdServer::start().unwrap();
    put(&server, "a", "v");
    server.pause().unwrap();
    assert!(TcpStream::connect(server.address()).is_ok());
    std::thread::scope(|threads| {
        let asked = threads.spawn(|| server.metric("etcd_server_has_leader"));
        std::thread::sleep(Duration::from_millis(200));
        assert!(!asked.is_finished());
        server.go_on().unwrap();
        assert!(asked.join().unwrap().unwrap() > 0.0);
    });
    assert_eq!(get(&server, "a"), "v");
}

#[test]
fn a_metric_is_the_sum_over_its_labels() {
    let server = EtcdServer::start().unwrap();
    let calls = || server.metric("grpc_server_started_total").unwrap();
    let before = calls();
    // Each is a label of its own.
    put(&server, "a", "v");
    assert_eq!(get(&server, "a"), "v");
    assert!((calls() - before - 2.0).abs() < 0.1);
    assert!((server.metric("etcd_mvcc_put_total").unwrap() - 1.0).abs() < 0.1);
    let nothing = server.metric("etcd_mvcc_put");
    assert!(nothing.unwrap_err().to_string().contains("has no"));
}

#[test]
fn tls_proves_the_server_and_may_ask_for_a_client_certificate() {
    for tls in [Tls::Server, Tls::Both] {
        let server = EtcdServer::with(EtcdOptions::new().tls(tls)).unwrap();
        let made = server.certificates().unwrap();
        let speaks = |own: bool| {
            let mut command = Command::new("etcdctl");
            command.env("ETCDCTL_API", "3");
            // One that is refused tries until then.
            command.args(["put", "a", "v", "--command-timeout=2s"]);
            let address = server.tls_address().unwrap();
            command.arg(format!("--endpoints=https://{address}"));
            command.arg("--cacert").arg(made.authority());
            if own {
                let (certificate, key) = made.client();
                command.arg("--cert").arg(certificate).arg("--key").arg(key);
            }
            command.output().unwrap().status.success()
        };
        assert_eq!(speaks(false), tls == Tls::Server, "{tls:?}");
        assert!(speaks(true), "{tls:?}");
        assert_eq!(get(&server, "a"), "v", "without TLS too");
    }
}

#[test]
fn a_user_gets_in_by_name_and_no_further_than_the_prefix() {
    let options = EtcdOptions::new().user("app", "secret", "dlock/");
    let server = EtcdServer::with(options.token_ttl(2)).unwrap();
    let puts = |key: &str, words: &[&str]| {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["put", key, "v"]);
        command
            .arg(format!("--endpoints={}", server.address()))
            .args(words);
        command.output().unwrap().status.success()
    };
    assert!(puts("dlock/a", &["--user=app:secret"]));
    assert!(!puts("other/a", &["--user=app:secret"]));
    assert!(!puts("dlock/a", &["--user=app:wrong"]));
    assert!(!puts("dlock/a", &[]));
    server.crash().unwrap();
    server.start_again().unwrap();
    assert!(puts("dlock/b", &["--user=app:secret"]));
    assert_eq!(get(&server, "dlock/b"), "v", "root");
}

#[test]
fn a_full_server_takes_no_writes_and_starts_again_nevertheless() {
    let server = EtcdServer::with(EtcdOptions::new().quota(256 << 10)).unwrap();
    let large = "x".repeat(64 << 10);
    let fill = || server.etcdctl(&["put", "large", &large]);
    until("it is full", LONG, || Ok(fill().is_err())).unwrap();
    let refused = fill().unwrap_err().to_string();
    assert!(refused.contains("database space exceeded"), "{refused}");
    server.crash().unwrap();
    server.start_again().unwrap();
    assert!(server.etcdctl(&["alarm", "list"]).unwrap().contains("NOSPACE"));
    assert_eq!(get(&server, "large"), large);
}

#[test]
fn what_is_restored_is_what_the_snapshot_has() {
    let server = EtcdServer::start().unwrap();
    put(&server, "a", "then");
    let first = server.snapshot().unwrap();
    put(&server, "a", "later");
    assert_ne!(server.snapshot().unwrap(), first);
    server.restore(&first).unwrap();
    assert_eq!(get(&server, "a"), "then");
}

#[test]
fn a_server_of_3_5_does_the_same() {
    let server = EtcdServer::with(EtcdOptions::new().program(&etcd_35().unwrap())).unwrap();
    assert!(server.log().contains("\"etcd-version\":\"3.5."));
    put(&server, "a", "then");
    let snapshot = server.snapshot().unwrap();
    server.crash().unwrap();
    server.start_again().unwrap();
    put(&server, "a", "later");
    server.restore(&snapshot).unwrap();
    assert_eq!(get(&server, "a"), "then");
}

#[test]
fn another_member_leads_if_the_leader_dies_and_nothing_is_lost() {
    let all = EtcdEnsemble::with(EtcdOptions::new().user("app", "secret", "dlock/")).unwrap();
    let leader = all.leader().unwrap();
    put(&all.members()[leader], "dlock/kept", "v");
    all.crash(leader).unwrap();
    let next = all.leader().unwrap();
    assert_ne!(next, leader);
    assert_eq!(get(&all.members()[next], "dlock/kept"), "v");
    put(&all.members()[next], "dlock/kept", "w");
    all.start_again(leader).unwrap();
    assert_eq!(get(&all.members()[leader], "dlock/kept"), "w");
    // One that stands still leads no longer.
    let leader = all.leader().unwrap();
    all.members()[leader].pause().unwrap();
    until("another leads", LONG, || Ok(all.leader()? != leader)).unwrap();
    all.members()[leader].go_on().unwrap();
    all.wait_until_ok().unwrap();
    let snapshot = all.members()[leader].snapshot().unwrap();
    put(&all.members()[next], "dlock/kept", "x");
    all.restore(&snapshot).unwrap();
    for member in all.members() {
        assert_eq!(get(member, "dlock/kept"), "w");
    }
}

#[test]
fn a_member_that_is_cut_off_has_no_leader_until_it_is_back() {
    let all = EtcdEnsemble::start().unwrap();
    let is_led = |n: usize| all.members()[n].metric("etcd_server_has_leader").map(|n| n > 0.0);
    let leader = all.leader().unwrap();
    for member in [leader, (leader + 1) % 3] {
        all.wait_until_ok().unwrap();
        put(&all.members()[member], "a", "before");
        all.cut(member);
        until("it has no leader", LONG, || Ok(!is_led(member)?)).unwrap();
        all.wait_until_ok().unwrap();
        assert_ne!(all.leader().unwrap(), member);
        put(&all.members()[(member + 1) % 3], "a", "after");
        let away = &all.members()[member];
        let old = ["get", "a", "--print-value-only", "--consistency=s"];
        assert_eq!(away.etcdctl(&old).unwrap(), "before");
        away.etcdctl(&["get", "a", "--command-timeout=300ms"])
            .unwrap_err();
        // A new process has other sockets, and is cut off as well.
        away.crash().unwrap();
        std::thread::scope(|threads| {
            let started = threads.spawn(|| away.start_again());
            until("it runs", LONG, || Ok(!is_led(member)?)).unwrap();
            std::thread::sleep(Duration::from_secs(1));
            assert!(!is_led(member).unwrap() && !started.is_finished());
            all.heal(member);
            started.join().unwrap().unwrap();
        });
        all.wait_until_ok().unwrap();
        assert_eq!(get(away, "a"), "after");
    }
}
