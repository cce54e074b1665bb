//! ZooKeeper, alone and as an ensemble.

use std::net::TcpStream;
use std::time::Duration;

use dlock_testkit::{Mode, Tls, ZkEnsemble, ZkOptions, ZkServer, ZkSession, password, until, wall_clock};

/// Enough for a busy machine.
const LONG: Duration = Duration::from_secs(30);

#[test]
fn a_server_keeps_its_data_and_port_through_a_stop_and_a_crash() {
    let server = ZkServer::start().unwrap();
    let address = server.address();
    assert_eq!(server.mode().unwrap(), Mode::Standalone);
    let mut pids = vec![server.pid().unwrap()];
    let end = [ZkServer::stop_in_order, ZkServer::crash];
    for (n, end) in end.into_iter().enumerate() {
        let path = format!("/kept-{n}");
        server.with_session(|s| s.create(&path, b"v")).unwrap();
        end(&server).unwrap();
        assert!(TcpStream::connect(address).is_err());
        server.start_again().unwrap();
        assert_eq!(server.address(), address);
        pids.push(server.pid().unwrap());
        assert_eq!(server.with_session(|s| s.get(&path)).unwrap().unwrap(), b"v");
    }
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 3);
}

#[test]
fn a_paused_server_accepts_and_answers_only_when_it_goes_on() {
    let server = ZkServer::start().unwrap();
    server.pause().unwrap();
    assert!(TcpStream::connect(server.address()).is_ok());
    std::thread::scope(|threads| {
        let asked = threads.spawn(|| server.mode());
        std::thread::sleep(Duration::from_millis(200));
        assert!(!asked.is_finished());
        server.go_on().unwrap();
        assert_eq!(asked.join().unwrap().unwrap(), Mode::Standalone);
    });
    server.pause().unwrap();
    server.crash().unwrap();
    assert_eq!(server.pid(), None);
}

#[test]
fn nodes_are_made_read_and_removed_with_all_below_them() {
    let server = ZkServer::start().unwrap();
    let mut session = server.session().unwrap();
    for path in ["/a", "/a/b", "/a/c", "/a/b/d"] {
        assert!(session.create(path, path.as_bytes()).unwrap());
    }
    assert!(!session.create("/a", b"").unwrap());
    session.create("/x/y", b"").unwrap_err();
    assert_eq!(session.get("/a/b").unwrap().unwrap(), b"/a/b");
    assert!(session.set("/a/b", b"new").unwrap());
    assert_eq!(session.get("/a/b").unwrap().unwrap(), b"new");
    assert!(!session.set("/z", b"").unwrap());
    assert_eq!(session.children("/a").unwrap().unwrap(), ["b", "c"]);
    assert_eq!(session.all("/a").unwrap(), ["/a", "/a/b", "/a/b/d", "/a/c"]);
    let stat = session.stat("/a/b").unwrap().unwrap();
    assert_eq!((stat.version, stat.owner, stat.children), (1, 0, 1));
    session.delete("/a").unwrap_err();
    assert!(session.delete_all("/a").unwrap());
    assert_eq!(
        (session.stat("/a").unwrap(), session.get("/a").unwrap()),
        (None, None)
    );
    assert!(!session.delete_all("/a").unwrap());
    session.close().unwrap();
}

#[test]
fn a_session_that_is_ended_by_its_number_is_over() {
    // Of a server, 3.8: the password that it gave for that session.
    let server = ZkServer::start().unwrap();
    let mut session = server.session().unwrap();
    let number = session.number();
    assert_ne!(password(number), password(number + 1));
    let clients = server.clients().unwrap();
    let seen = clients.iter().find(|c| c.session == number).unwrap();
    assert_eq!((seen.timeout, seen.received), (Duration::from_secs(10), 2));
    session.stat("/").unwrap();
    assert_eq!(server.received().unwrap(), 3);
    server.expire(number).unwrap();
    ZkSession::take_over(server.address(), number).unwrap_err();
    server.expire(number).unwrap_err();
}

#[test]
fn sessions_last_as_the_options_say_and_empty_containers_go() {
    let second = Duration::from_secs(1);
    let server = ZkServer::with(ZkOptions::new().sessions(second, 2 * second)).unwrap();
    let mut session = server.session().unwrap();
    assert_eq!(server.clients().unwrap()[0].timeout, 2 * second);
    let nodes = server.monitor("znode_count").unwrap();
    for path in ["/container", "/never-used"] {
        assert!(session.create_container(path).unwrap());
    }
    session.create("/container/x", b"").unwrap();
    assert_eq!(server.monitor("znode_count").unwrap(), nodes + 3);
    session.delete("/container/x").unwrap();
    // Of one that never had a child it is not known whether it is about to.
    until("the empty one is swept", LONG, || {
        Ok(server.with_session(|s| s.children("/"))?.unwrap() == ["never-used", "zookeeper"])
    })
    .unwrap();
    assert!(server.monitor("nothing").is_err());
    drop(session);
    until("its session runs out", LONG, || {
        Ok(server.monitor("global_sessions")? == 0)
    })
    .unwrap();
}

#[test]
fn its_wall_clock_can_be_set_and_is_seen_in_what_it_writes() {
    let server = ZkServer::with(ZkOptions::new().own_clock()).unwrap();
    let now = |path: &str| {
        let stat = server.with_session(|s| {
            s.create(path, b"")?;
            s.stat(path)
        });
        stat.unwrap().unwrap().ctime
    };
    let near = |a: Duration, b: Duration| a.abs_diff(b) < Duration::from_secs(2);
    assert!(near(now("/a"), wall_clock()));
    let hour = Duration::from_secs(3600);
    server.clock().unwrap().step(3_600_000).unwrap();
    assert!(near(now("/b"), wall_clock() + hour));
    server.clock().unwrap().step(-7_200_000).unwrap();
    assert!(near(now("/c"), wall_clock() - hour));
}

#[test]
fn tls_proves_the_server_and_may_ask_for_a_client_certificate() {
    for tls in [Tls::Server, Tls::Both] {
        let server = ZkServer::with(ZkOptions::new().tls(tls)).unwrap();
        let made = server.certificates().unwrap();
        let speaks = |own: bool| {
            let mut command = std::process::Command::new("openssl");
            command
                .args([
                    "s_client",
                    "-quiet",
                    "-no_ign_eof",
                    "-verify_return_error",
                    "-connect",
                ])
                .arg(server.tls_address().unwrap().to_string())
                .arg("-CAfile")
                .arg(made.authority());
            if own {
                let (certificate, key) = made.client();
                command.arg("-cert").arg(certificate).arg("-key").arg(key);
            }
            // `srvr`, and then wait for the answer.
            command.stdin(std::process::Stdio::piped());
            command.stdout(std::process::Stdio::piped());
            command.stderr(std::process::Stdio::null());
            let mut child = command.spawn().unwrap();
            let mut to = child.stdin.take().unwrap();
            std::io::Write::write_all(&mut to, b"srvr").unwrap();
            std::io::Write::flush(&mut to).unwrap();
            let output = std::thread::spawn(move || child.wait_with_output().unwrap());
            let _ = until("it has answered or refused", Duration::from_secs(5), || {
                Ok(output.is_finished())
            });
            drop(to);
            String::from_utf8_lossy(&output.join().unwrap().stdout).contains("Mode: standalone")
        };
        assert_eq!(speaks(false), tls == Tls::Server, "{tls:?}");
        assert!(speaks(true), "{tls:?}");
        assert_eq!(server.mode().unwrap(), Mode::Standalone, "without TLS too");
    }
}

#[test]
fn another_member_leads_if_the_leader_dies_and_nothing_is_lost() {
    let all = ZkEnsemble::start().unwrap();
    let leader = all.leader().unwrap();
    assert_ne!(leader, all.a_follower().unwrap());
    all.with_session(|s| s.create("/kept", b"v")).unwrap();
    assert_eq!(all.crash_leader().unwrap(), leader);
    let next = all.leader().unwrap();
    assert_ne!(next, leader);
    assert_eq!(all.with_session(|s| s.get("/kept")).unwrap().unwrap(), b"v");
    all.start_again(leader).unwrap();
    assert_eq!(all.members()[leader].mode().unwrap(), Mode::Follower);
    // Two are a majority, one is none.
    all.members()[leader].crash().unwrap();
    all.members()[next].crash().unwrap();
    let left = &all.members()[3 - leader - next];
    until("the last one serves nobody", LONG, || Ok(left.mode().is_err())).unwrap();
    all.start_again(next).unwrap();
    all.start_again(leader).unwrap();
    all.restart(ZkServer::stop_in_order).unwrap();
    assert_eq!(all.with_session(|s| s.get("/kept")).unwrap().unwrap(), b"v");
}

#[test]
fn in_an_ensemble_a_session_is_ended_from_another_member() {
    let all = ZkEnsemble::start().unwrap();
    let follower = all.a_follower().unwrap();
    let session = all.members()[follower].session().unwrap();
    let number = session.number();
    assert_eq!(all.member_of(number).unwrap(), follower);
    all.expire(number).unwrap();
    until("its connection is closed", LONG, || {
        Ok(all.member_of(number).is_err())
    })
    .unwrap();
    ZkSession::take_over(all.members()[follower].address(), number).unwrap_err();
}
