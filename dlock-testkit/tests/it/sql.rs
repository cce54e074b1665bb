//! SQL servers, and a pooler.

use std::net::TcpStream;
use std::time::Duration;

use dlock_testkit::{
    Following, MariaDbOptions, MariaDbPair, MariaDbServer, PgBouncer, PoolMode, PostgresOptions,
    PostgresPair, PostgresServer, ReadOnly, until,
};

const LONG: Duration = Duration::from_secs(20);

/// Waits until a connection to PostgreSQL sleeps, and tells which. One of before may be seen for a while yet,
/// so it is not enough that there is one.
fn sleeping_backend(server: &PostgresServer) -> i32 {
    let pid = "SELECT coalesce(max(pid), 0) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    until("it sleeps", LONG, || Ok(server.number(pid)? > 0)).unwrap();
    server.number(pid).unwrap().try_into().unwrap()
}

/// Whether nothing is answered while `pause` lasts, and the answer comes after it.
fn stands_still(
    ask: impl Fn() -> String + Send + Sync + 'static,
    pause: impl FnOnce(),
    go_on: impl FnOnce(),
) {
    pause();
    let asked = std::thread::spawn(ask);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!asked.is_finished());
    go_on();
    assert_eq!(asked.join().unwrap(), "1");
}

#[test]
fn postgres_keeps_what_it_answered_through_a_stop_and_a_crash() {
    let server = PostgresServer::start().unwrap();
    let port = server.address();
    server.ask("CREATE TABLE kept (n int)").unwrap();
    server.ask("INSERT INTO kept VALUES (1)").unwrap();
    server.restart().unwrap();
    // One of its processes has much to do when it is killed, and does not go on with it.
    let busy = std::thread::scope(|s| {
        let busy = s.spawn(|| server.ask("SELECT pg_sleep(60)"));
        sleeping_backend(&server);
        server.ask("INSERT INTO kept VALUES (2)").unwrap();
        server.crash().unwrap();
        busy.join().unwrap()
    });
    busy.unwrap_err();
    assert!(TcpStream::connect(port).is_err());
    assert_eq!(server.pid(), None);
    server.start_again().unwrap();
    assert_eq!(
        (
            server.address(),
            server.number("SELECT sum(n) FROM kept").unwrap()
        ),
        (port, 3)
    );
}

#[test]
fn postgres_that_crashed_leaves_no_shared_memory() {
    let server = PostgresServer::start().unwrap();
    let folder = server.ask("SHOW data_directory").unwrap();
    let file = std::fs::read_to_string(format!("{folder}/postmaster.pid")).unwrap();
    let line = file.lines().nth(6).unwrap();
    let number = line.split_whitespace().nth(1).unwrap().to_owned();
    let there = || {
        let all = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
        all.lines().any(|l| l.split_whitespace().nth(1) == Some(&number))
    };
    assert!(there());
    server.crash().unwrap();
    assert!(there());
    drop(server);
    assert!(!there());
}

#[test]
fn a_paused_postgres_does_not_answer() {
    let server = std::sync::Arc::new(PostgresServer::start().unwrap());
    let asks = server.clone();
    let sleeps = server.clone();
    // Who is connected already gets no answer either, though another process is to give it.
    let connected = std::thread::spawn(move || sleeps.ask("SELECT 1 FROM pg_sleep(0.5)"));
    sleeping_backend(&server);
    stands_still(
        move || asks.ask("SELECT 1").unwrap(),
        || {
            server.pause().unwrap();
            std::thread::sleep(Duration::from_millis(800));
            assert!(!connected.is_finished());
        },
        || server.go_on().unwrap(),
    );
    assert_eq!(connected.join().unwrap().unwrap(), "1");
    server.pause().unwrap();
    server.stop_in_order().unwrap();
    server.start_again().unwrap();
    server.pause().unwrap();
    server.crash().unwrap();
    assert_eq!(server.pid(), None);
}

#[test]
fn connections_to_postgres_are_ended_and_cancelled_by_number() {
    let server = PostgresServer::start().unwrap();
    std::thread::scope(|s| {
        let asleep = s.spawn(|| server.ask("SELECT pg_sleep(60)"));
        let pid = sleeping_backend(&server);
        server.cancel(pid).unwrap();
        let said = asleep.join().unwrap().unwrap_err().to_string();
        assert!(said.contains("canceling statement"), "{said}");
        let asleep = s.spawn(|| server.ask("SELECT pg_sleep(60)"));
        server.terminate(sleeping_backend(&server)).unwrap();
        let said = asleep.join().unwrap().unwrap_err().to_string();
        assert!(said.contains("terminating connection"), "{said}");
    });
    server.terminate(1).unwrap_err();
}

#[test]
fn postgres_is_set_while_it_runs_and_before() {
    let server = PostgresServer::with(PostgresOptions::new().setting("idle_session_timeout", "7s")).unwrap();
    assert_eq!(server.ask("SHOW idle_session_timeout").unwrap(), "7s");
    assert_eq!(server.ask("SHOW fsync").unwrap(), "off");
    server.ask("CREATE TABLE t (n int)").unwrap();
    server.set_read_only(ReadOnly::On).unwrap();
    let said = server.ask("INSERT INTO t VALUES (1)").unwrap_err().to_string();
    assert!(said.contains("read-only transaction"), "{said}");
    server.set_read_only(ReadOnly::Off).unwrap();
    server.ask("INSERT INTO t VALUES (1)").unwrap();
    let durable = PostgresServer::with(PostgresOptions::new().durable()).unwrap();
    assert_eq!(durable.ask("SHOW fsync").unwrap(), "on");
}

#[test]
fn waiters_in_postgres_are_seen() {
    let server = PostgresServer::start().unwrap();
    server.ask("CREATE TABLE t (n int)").unwrap();
    server.ask("INSERT INTO t VALUES (1)").unwrap();
    std::thread::scope(|s| {
        let holds = "BEGIN; UPDATE t SET n = 2; SELECT pg_sleep(60); COMMIT";
        let holder = s.spawn(|| server.ask(holds));
        let holder_pid = sleeping_backend(&server);
        let waiter = s.spawn(|| server.ask("UPDATE t SET n = n + 10"));
        server.wait_until_blocked(1, LONG).unwrap();
        server.terminate(holder_pid).unwrap();
        holder.join().unwrap().unwrap_err();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(server.number("SELECT n FROM t").unwrap(), 11);
}

#[test]
fn mariadb_keeps_what_it_answered_through_a_stop_and_a_crash() {
    let server = MariaDbServer::start().unwrap();
    let port = server.address();
    server.ask("CREATE TABLE kept (n int)").unwrap();
    server.ask("INSERT INTO kept VALUES (1)").unwrap();
    server.restart().unwrap();
    server.ask("INSERT INTO kept VALUES (2)").unwrap();
    server.crash().unwrap();
    assert!(TcpStream::connect(port).is_err());
    server.start_again().unwrap();
    assert_eq!(
        (
            server.address(),
            server.number("SELECT sum(n) FROM kept").unwrap()
        ),
        (port, 3)
    );
}

#[test]
fn a_paused_mariadb_does_not_answer() {
    let server = std::sync::Arc::new(MariaDbServer::start().unwrap());
    let asks = server.clone();
    stands_still(
        move || asks.ask("SELECT 1").unwrap(),
        || server.pause().unwrap(),
        || server.go_on().unwrap(),
    );
    server.pause().unwrap();
    server.stop_in_order().unwrap();
    assert_eq!(server.pid(), None);
}

#[test]
fn connections_to_mariadb_are_ended_by_number_and_it_is_set() {
    let options = MariaDbOptions::new().setting("innodb_lock_wait_timeout", "7");
    let server = MariaDbServer::with(options).unwrap();
    assert_eq!(server.number("SELECT @@innodb_lock_wait_timeout").unwrap(), 7);
    assert!(server.status("Questions").unwrap() > 0);
    std::thread::scope(|s| {
        let asleep = s.spawn(|| server.ask("SELECT sleep(60)"));
        until("it sleeps", LONG, || Ok(server.connections()?.len() == 1)).unwrap();
        server.kill_connection(server.connections().unwrap()[0]).unwrap();
        asleep.join().unwrap().unwrap_err();
    });
    server.ask("CREATE TABLE t (n int)").unwrap();
    server.ask("CREATE USER app@'%' IDENTIFIED BY 'app'").unwrap();
    server.set_read_only(ReadOnly::On).unwrap();
    assert_eq!(server.number("SELECT @@global.read_only").unwrap(), 1);
    server.set_read_only(ReadOnly::Off).unwrap();
    assert_eq!(server.number("SELECT @@global.read_only").unwrap(), 0);
}

#[test]
fn a_pooler_shares_by_transaction_and_outlives_its_server() {
    let server = PostgresServer::start().unwrap();
    let pooler = PgBouncer::start(&server, PoolMode::Transaction, 1).unwrap();
    let backend = || pooler.ask_server("SELECT pg_backend_pid()").unwrap();
    // Two that connect one after the other have the same one.
    let first = backend();
    assert_eq!(first, backend());
    server.terminate(first.parse().unwrap()).unwrap();
    until("it has another", LONG, || {
        Ok(pooler.ask_server("SELECT pg_backend_pid()")? != first)
    })
    .unwrap();
    server.restart().unwrap();
    until("it answers again", LONG, || {
        Ok(pooler.ask_server("SELECT 1")? == "1")
    })
    .unwrap();
    assert!(pooler.ask("SHOW POOLS").unwrap().contains("transaction"));
    pooler.restart().unwrap();
    assert_eq!(pooler.ask_server("SELECT 1").unwrap(), "1");
    pooler.crash().unwrap();
    assert!(TcpStream::connect(pooler.address()).is_err());
}

/// What is in step answers nothing that the other one has not heard, and what is not does.
fn waits_for_the_other_one(
    following: Following,
    write: impl FnOnce() + Send + 'static,
    pause: impl FnOnce(),
    go_on: impl FnOnce(),
) {
    pause();
    let writing = std::thread::spawn(write);
    if following == Following::Behind {
        until("it is answered", LONG, || Ok(writing.is_finished())).unwrap();
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(writing.is_finished(), following == Following::Behind);
    go_on();
    writing.join().unwrap();
}

#[test]
fn a_standby_of_postgres_in_step_is_waited_for_and_takes_over() {
    for following in [Following::InStep, Following::Behind] {
        let pair = std::sync::Arc::new(PostgresPair::start(following).unwrap());
        pair.first().ask("CREATE TABLE kept (n int)").unwrap();
        pair.catch_up().unwrap();
        let too = pair.clone();
        waits_for_the_other_one(
            following,
            move || drop(too.first().ask("INSERT INTO kept VALUES (1)").unwrap()),
            || pair.second().pause().unwrap(),
            || pair.second().go_on().unwrap(),
        );
        pair.catch_up().unwrap();
        pair.fail_over().unwrap();
        pair.second().ask("INSERT INTO kept VALUES (2)").unwrap();
        assert_eq!(pair.second().number("SELECT sum(n) FROM kept").unwrap(), 3);
        assert!(TcpStream::connect(pair.first().address()).is_err());
    }
}

#[test]
fn a_replica_of_mariadb_in_step_is_waited_for_and_takes_over() {
    for following in [Following::InStep, Following::Behind] {
        let pair = std::sync::Arc::new(MariaDbPair::start(following).unwrap());
        pair.first().ask("CREATE TABLE kept (n int)").unwrap();
        pair.catch_up().unwrap();
        let too = pair.clone();
        waits_for_the_other_one(
            following,
            move || drop(too.first().ask("INSERT INTO kept VALUES (1)").unwrap()),
            || pair.second().pause().unwrap(),
            || pair.second().go_on().unwrap(),
        );
        pair.catch_up().unwrap();
        pair.fail_over().unwrap();
        pair.second().ask("INSERT INTO kept VALUES (2)").unwrap();
        assert_eq!(pair.second().number("SELECT sum(n) FROM kept").unwrap(), 3);
        assert!(TcpStream::connect(pair.first().address()).is_err());
    }
}
