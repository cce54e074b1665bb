//! One Redis server, and two of them.

use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use dlock_testkit::{
    Connection, Persistence, RedisOptions, RedisPair, RedisServer, Tls, Value, until, wall_clock,
};

fn with(options: RedisOptions) -> RedisServer {
    RedisServer::with(options).unwrap()
}

fn get(server: &RedisServer, key: &str) -> Value {
    server.ask(&["GET", key]).unwrap()
}

fn text(text: &str) -> Value {
    Value::Bytes(text.as_bytes().to_vec())
}

/// What is there after a stop in order, and after a crash, of what was answered before.
fn survives(persistence: Persistence) -> (Value, Value) {
    let server = with(RedisOptions::new().persistence(persistence));
    let (port, first) = (server.address(), server.run_id().unwrap());
    server.ask(&["SET", "k", "before the stop"]).unwrap();
    server.stop_in_order().unwrap();
    assert!(TcpStream::connect(port).is_err());
    server.start_again().unwrap();
    let second = server.run_id().unwrap();
    let stopped = get(&server, "k");
    server.ask(&["SET", "k", "before the crash"]).unwrap();
    server.crash().unwrap();
    assert!(TcpStream::connect(port).is_err());
    server.start_again().unwrap();
    assert_eq!(server.address(), port);
    let third = server.run_id().unwrap();
    assert!(first != second && second != third && first != third);
    (stopped, get(&server, "k"))
}

#[test]
fn without_persistence_every_restart_forgets() {
    assert_eq!(survives(Persistence::None), (Value::Nothing, Value::Nothing));
}

#[test]
fn saved_on_stop_only_a_crash_forgets_what_came_since() {
    assert_eq!(
        survives(Persistence::OnStop),
        (text("before the stop"), text("before the stop"))
    );
}

#[test]
fn saved_always_no_restart_forgets() {
    assert_eq!(
        survives(Persistence::Always),
        (text("before the stop"), text("before the crash"))
    );
}

#[test]
fn a_paused_server_accepts_and_answers_only_when_it_goes_on() {
    let server = RedisServer::start().unwrap();
    let mut before = server.connection().unwrap();
    server.pause().unwrap();
    let asked = std::thread::spawn(move || before.ask(&["PING"]).map(|v| v.text()));
    assert!(TcpStream::connect(server.address()).is_ok());
    std::thread::sleep(Duration::from_millis(200));
    assert!(!asked.is_finished());
    server.go_on().unwrap();
    assert_eq!(asked.join().unwrap().unwrap(), "PONG");
}

#[test]
fn a_paused_server_can_be_killed_and_stopped() {
    let server = RedisServer::start().unwrap();
    server.pause().unwrap();
    server.stop_in_order().unwrap();
    server.start_again().unwrap();
    server.pause().unwrap();
    server.crash().unwrap();
    assert_eq!(server.pid(), None);
}

fn is_near(a: Duration, b: Duration) -> bool {
    a.abs_diff(b) < Duration::from_millis(500)
}

#[test]
fn a_step_of_its_clock_is_seen_by_time_by_expiry_and_by_scripts() {
    const HOUR: Duration = Duration::from_secs(3600);
    let server = with(RedisOptions::new().own_clock());
    let clock = server.clock().unwrap();
    let set = |key: &str| server.ask(&["SET", key, "v", "PX", "600000"]).unwrap();
    let life = |key: &str| server.ask(&["PTTL", key]).unwrap().number().unwrap();
    assert!(is_near(server.time().unwrap(), wall_clock()));
    set("k");
    assert!((590_000..=600_000).contains(&life("k")));

    clock.step(-3_600_000).unwrap();
    assert!(is_near(server.time().unwrap() + HOUR, wall_clock()));
    // Its end is a date, which is an hour further off now.
    assert!((4_190_000..=4_200_000).contains(&life("k")));
    set("while it was early");
    assert!((590_000..=600_000).contains(&life("while it was early")));

    clock.set(300_500).unwrap();
    assert!(is_near(
        server.time().unwrap(),
        wall_clock() + Duration::from_millis(300_500)
    ));
    assert!((290_000..=299_500).contains(&life("k")));
    // Over for 55 minutes.
    assert_eq!(get(&server, "while it was early"), Value::Nothing);
    let seen = server
        .ask(&["EVAL", "return redis.call('TIME')[1]", "0"])
        .unwrap();
    let seen = Duration::from_secs(seen.number().unwrap().unsigned_abs());
    assert!(seen.abs_diff(wall_clock() + Duration::from_secs(300)) < Duration::from_secs(2));

    clock.set(601_000).unwrap();
    assert_eq!(server.ask(&["EXISTS", "k"]).unwrap(), Value::Number(0));
    // What nobody asks for goes too: by the cycle that looks for what is over.
    until("the key is swept", Duration::from_secs(5), || {
        Ok(server.ask(&["DBSIZE"])?.number()? == 0)
    })
    .unwrap();
}

#[test]
fn a_clock_step_is_seen_by_one_server_and_outlives_a_restart() {
    let (one, other) = (
        with(RedisOptions::new().own_clock()),
        with(RedisOptions::new().own_clock()),
    );
    one.clock().unwrap().step(86_400_000).unwrap();
    assert!(is_near(other.time().unwrap(), wall_clock()));
    one.crash().unwrap();
    one.start_again().unwrap();
    let day = Duration::from_secs(86_400);
    assert!(is_near(one.time().unwrap(), wall_clock() + day));
    // The clock that nobody sets went on as it does: the server has not been up for a day.
    assert!(one.info("uptime_in_seconds").unwrap().parse::<u64>().unwrap() < 60);
}

#[test]
fn a_password_is_required() {
    let server = with(RedisOptions::new().password("s3cret"));
    assert_eq!(server.ask(&["PING"]).unwrap().text(), "PONG");
    let mut stranger = Connection::open(server.address()).unwrap();
    let refused = stranger.ask(&["GET", "k"]).unwrap_err().to_string();
    assert!(refused.starts_with("NOAUTH"), "{refused}");
    let refused = stranger.ask(&["AUTH", "wrong"]).unwrap_err().to_string();
    assert!(refused.starts_with("WRONGPASS"), "{refused}");
    assert_eq!(server.url(), format!("redis://:s3cret@{}", server.address()));
}

#[test]
fn users_may_do_what_their_line_says() {
    let options = RedisOptions::new()
        .user("default off")
        .user("app on >pass ~dlock* &* +@all -flushall");
    let server = with(options);
    let mut app = Connection::open(server.address()).unwrap();
    assert!(app.ask(&["PING"]).unwrap_err().to_string().starts_with("NOAUTH"));
    app.ask(&["AUTH", "app", "pass"]).unwrap();
    app.ask(&["SET", "dlock:k", "v"]).unwrap();
    for forbidden in [["SET", "other", "v"].as_slice(), &["FLUSHALL"]] {
        let refused = app.ask(forbidden).unwrap_err().to_string();
        assert!(refused.starts_with("NOPERM"), "{refused}");
    }
    // The tests themselves may.
    server.ask(&["FLUSHALL"]).unwrap();
}

/// The command line client, which knows TLS.
fn cli(server: &RedisServer, more: &[&str]) -> String {
    let port = server.tls_address().unwrap().port().to_string();
    let mut command = Command::new("redis-cli");
    command
        .args(["-h", "localhost", "-p", &port])
        .args(more)
        .arg("PING");
    String::from_utf8_lossy(&command.output().unwrap().stdout)
        .trim()
        .to_owned()
}

#[test]
fn tls_needs_a_signed_certificate() {
    let server = with(RedisOptions::new().tls(Tls::Server));
    let made = server.certificates().unwrap();
    let authority = made.authority();
    let authority = authority.to_str().unwrap();
    assert_eq!(cli(&server, &["--tls", "--cacert", authority]), "PONG");
    assert_ne!(cli(&server, &["--tls"]), "PONG");
    assert_ne!(cli(&server, &[]), "PONG");

    let both = with(RedisOptions::new().tls(Tls::Both));
    assert_ne!(cli(&both, &["--tls", "--cacert", authority]), "PONG");
    let (certificate, key) = made.client();
    let client = [
        "--tls",
        "--cacert",
        authority,
        "--cert",
        certificate.to_str().unwrap(),
        "--key",
        key.to_str().unwrap(),
    ];
    assert_eq!(cli(&both, &client), "PONG");
}

#[test]
fn full_memory_refuses_writes() {
    let server = with(RedisOptions::new().memory(0, "noeviction"));
    server.ask(&["SET", "k", "v"]).unwrap();
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let refused = server.ask(&["SET", "k", "w"]).unwrap_err().to_string();
    assert!(refused.starts_with("OOM"), "{refused}");
}

#[test]
fn a_replica_that_is_cut_off_lacks_what_came_after() {
    let master = RedisServer::start().unwrap();
    let replica = with(RedisOptions::new().replica_of(master.address()));
    replica.wait_until_in_sync(Duration::from_secs(20)).unwrap();
    master.ask(&["SET", "before", "v"]).unwrap();
    let has = |key: &str, value: &str| {
        until("the replica has it", Duration::from_secs(20), || {
            Ok(get(&replica, key) == text(value))
        })
    };
    has("before", "v").unwrap();
    let refused = replica.ask(&["SET", "k", "v"]).unwrap_err().to_string();
    assert!(refused.starts_with("READONLY"), "{refused}");
    master.cut_replicas().unwrap();
    let mut writer = master.connection().unwrap();
    writer.ask(&["SET", "after", "v"]).unwrap();
    assert_eq!(writer.ask(&["WAIT", "1", "300"]).unwrap(), Value::Number(0));
    assert_eq!(
        (get(&replica, "before"), get(&replica, "after")),
        (text("v"), Value::Nothing)
    );
    master.let_replicas_in().unwrap();
    has("after", "v").unwrap();
}

#[test]
fn the_replica_takes_the_address_of_its_master_again_and_again() {
    let pair = RedisPair::with(RedisOptions::new()).unwrap();
    let address = pair.address();
    let mut master = pair.serving().connection().unwrap();
    master.ask(&["SET", "kept", "v"]).unwrap();
    assert_eq!(master.ask(&["WAIT", "1", "10000"]).unwrap(), Value::Number(1));
    let mut leaders = vec![pair.serving().run_id().unwrap()];
    for _ in 0..3 {
        pair.fail_over().unwrap();
        assert_eq!(pair.address(), address);
        assert_eq!(pair.serving().info("role").unwrap(), "master");
        assert_eq!(get(pair.serving(), "kept"), text("v"));
        leaders.push(pair.serving().run_id().unwrap());
    }
    leaders.sort();
    leaders.dedup();
    assert_eq!(leaders.len(), 4);
    pair.fail_over_to_stale(|| pair.serving().ask(&["SET", "lost", "v"]).unwrap())
        .unwrap();
    assert_eq!(
        (get(pair.serving(), "kept"), get(pair.serving(), "lost")),
        (text("v"), Value::Nothing)
    );
}
