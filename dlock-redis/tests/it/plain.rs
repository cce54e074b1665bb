//! The plain recipe: what it writes, what it takes from others, and that it shares locks with redis-py's
//! `Lock` for real.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::spi::{Abandoned, Acquire, Attempt, Lock as _, Release, Released, RenewItem, RenewOutcome};
use dlock_core::{Capability, Client, ErrorKind, LockOptions, LossReason};
use dlock_redis::{Config, PlainLock};

use crate::{config, here, is_granted, key, until};
use dlock_testkit::{RedisServer, Value};

const TTL: Duration = Duration::from_secs(2);

async fn open(server: &RedisServer) -> PlainLock {
    config(&server.url()).connect_plain(here()).await.unwrap()
}

async fn client(server: &RedisServer) -> Client {
    let client = Client::builder(Arc::new(open(server).await), here());
    client.op_timeout(Duration::from_secs(1)).build().unwrap()
}

fn text(server: &RedisServer, key: &str) -> Option<String> {
    match server.ask(&["GET", key]).unwrap() {
        Value::Nothing => None,
        value => Some(value.text()),
    }
}

fn left(server: &RedisServer, key: &str) -> i64 {
    server.ask(&["PTTL", key]).unwrap().number().unwrap()
}

/// What all clients of the recipe agree on, as redsync, node-redlock and redis-py have it word for word.
const THEIRS: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

#[tokio::test]
async fn a_lock_is_a_key_of_its_name_with_the_holder_and_an_expiry() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    assert!(!lock.capabilities().has(Capability::Fencing) && lock.capabilities().strength.is_none());
    let lease = key("stock/42", 1, 1);
    let Attempt::Granted(grant) = lock.attempt(&Acquire::new(lease.clone(), TTL)).await.unwrap() else {
        panic!("it is free")
    };
    assert_eq!((grant.token, grant.expires_in), (None, TTL));
    assert_eq!(text(&server, "stock/42"), Some(lease.id.to_string()));
    assert!((1..=2_000).contains(&left(&server, "stock/42")));
    assert_eq!(server.ask(&["DBSIZE"]).unwrap().number().unwrap(), 1);
    // Sent again it is the same lock, with what is left of it.
    let again = lock.attempt(&Acquire::new(lease.clone(), TTL)).await.unwrap();
    assert!(matches!(again, Attempt::Granted(g) if g.expires_in <= TTL));
    // Another value is another holder.
    let theirs = server
        .ask(&["SET", "stock/42", "theirs", "NX", "PX", "1000"])
        .unwrap();
    assert!(matches!(theirs, Value::Nothing));
    assert_eq!(
        server
            .ask(&["EVAL", THEIRS, "1", "stock/42", "theirs"])
            .unwrap()
            .number()
            .unwrap(),
        0
    );
    assert_eq!(
        lock.release(&lease, Release::Now).await.unwrap(),
        Released::Released
    );
    assert_eq!(
        lock.release(&lease, Release::Now).await.unwrap(),
        Released::NotHeld
    );
    assert_eq!(server.ask(&["DBSIZE"]).unwrap().number().unwrap(), 0);
    // And with a prefix.
    let lock = config(&server.url())
        .prefix("lock:")
        .connect_plain(here())
        .await
        .unwrap();
    lock.attempt(&Acquire::new(lease.clone(), TTL)).await.unwrap();
    assert_eq!(text(&server, "lock:stock/42"), Some(lease.id.to_string()));
}

#[tokio::test]
async fn only_its_own_is_released_or_renewed() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    let lease = key("x", 1, 1);
    let renew = async |ttl| {
        lock.renew()
            .unwrap()
            .renew(&[RenewItem::lease(lease.clone(), ttl)])
            .await
            .pop()
    };
    assert!(is_granted(
        &lock.attempt(&Acquire::new(lease.clone(), TTL)).await.unwrap()
    ));
    // Longer, and never shorter; and an expiry that somebody took away comes back.
    assert!(matches!(renew(TTL * 4).await, Some(RenewOutcome::Renewed(_))));
    assert!(left(&server, "x") > 6_000);
    let Some(RenewOutcome::Renewed(r)) = renew(TTL).await else {
        panic!("it is held")
    };
    assert!(r.expires_in > TTL * 2 && left(&server, "x") > 6_000);
    server.ask(&["PERSIST", "x"]).unwrap();
    assert!(matches!(renew(TTL).await, Some(RenewOutcome::Renewed(_))));
    assert!((1..=2_000).contains(&left(&server, "x")));
    // Somebody else's by now.
    server.ask(&["SET", "x", "theirs", "PX", "60000"]).unwrap();
    assert!(matches!(renew(TTL).await, Some(RenewOutcome::Gone)));
    assert_eq!(
        lock.release(&lease, Release::Now).await.unwrap(),
        Released::NotHeld
    );
    let undone = lock
        .abandon(std::slice::from_ref(&lease))
        .await
        .pop()
        .unwrap()
        .unwrap();
    assert_eq!(undone, Abandoned::Nothing);
    assert_eq!(text(&server, "x").as_deref(), Some("theirs"));
}

#[tokio::test]
async fn a_late_copy_of_an_abandoned_acquire_is_not_granted() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    let (early, late) = (key("x", 1, 1), key("a}b", 1, 2));
    assert!(is_granted(
        &lock.attempt(&Acquire::new(early.clone(), TTL)).await.unwrap()
    ));
    let undone = lock.abandon(&[early.clone(), late.clone()]).await;
    assert!(
        matches!(
            undone[..],
            [Ok(Abandoned::WasGranted(None)), Ok(Abandoned::Nothing)]
        ),
        "{undone:?}"
    );
    for lease in [early, late] {
        let e = lock.attempt(&Acquire::new(lease, TTL)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Lost, "{e}");
    }
    // Its tombstone expires.
    for key in server.ask(&["KEYS", "*"]).unwrap().list().unwrap() {
        assert!((1..=60_000).contains(&left(&server, &key.text())), "{key:?}");
    }
}

/// As redis-py has it with no timeout: held until it is deleted. Waiting goes on, and trying says so.
#[tokio::test]
async fn a_lock_without_an_end_is_held_until_it_is_deleted() {
    let server = RedisServer::start().unwrap();
    let client = client(&server).await;
    server.ask(&["SET", "x", "for ever"]).unwrap();
    let lock = client.lock("x").unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    let limited = LockOptions::new().wait_limit(Duration::from_millis(200));
    let e = lock
        .clone()
        .options(limited)
        .unwrap()
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Timeout, "{e}");
    let waits = client.lock("x").unwrap();
    let waiting = tokio::spawn(async move { waits.acquire().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    server.ask(&["DEL", "x"]).unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn what_is_no_lock_is_said_and_kept() {
    let server = RedisServer::start().unwrap();
    let client = client(&server).await;
    server.ask(&["RPUSH", "x", "mine"]).unwrap();
    let e = client.lock("x").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::BackendData, "{e}");
    assert_eq!(server.ask(&["LLEN", "x"]).unwrap().number().unwrap(), 1);
    // It was replaced while it was held: that is a loss, told by the renewal.
    let held = client.lock("y").unwrap().acquire().await.unwrap();
    server.ask(&["DEL", "y"]).unwrap();
    server.ask(&["RPUSH", "y", "mine"]).unwrap();
    assert_eq!(held.renew().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(held.lost().await, LossReason::Refused);
}

#[tokio::test]
async fn options_that_it_does_not_have_are_refused() {
    let nowhere = "redis://127.0.0.1:1";
    let nobody = || Config::from_url(nowhere).unwrap();
    for config in [
        nobody().claim_window(Duration::from_secs(1)),
        nobody().replicas(1),
        nobody().prefix("a b"),
        nobody().timeout(Duration::ZERO),
    ] {
        let e = config.connect_plain(here()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    }
}

#[tokio::test]
async fn clients_exclude_one_another_and_count_one_command_each() {
    let server = RedisServer::start().unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    one.lock("x")
        .unwrap()
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let before = crate::counts::calls(&server, "evalsha");
    let held = one.lock("x").unwrap().acquire().await.unwrap();
    assert!(two.lock("x").unwrap().try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    assert_eq!(crate::counts::calls(&server, "evalsha"), before + 3);
    two.lock("x").unwrap().try_acquire().await.unwrap().unwrap();
}

// --- redis-py ---

/// A Python process with redis-py's `Lock`.
struct Python {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Python {
    /// One that is missing is a failure: `scripts/services` installs it.
    fn start(server: &RedisServer) -> Self {
        let has_it = |python: &&str| {
            let tried = Command::new(python).args(["-c", "import redis"]).output();
            tried.is_ok_and(|done| done.status.success())
        };
        let python = ["/usr/bin/python3", "python3"].into_iter().find(has_it);
        let python = python.expect("python3 with redis-py is not installed: scripts/services installs it");
        let mut child = Command::new(python)
            .args(["-u", "-c", include_str!("redis_py.py")])
            .arg(server.address().port().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            ask: child.stdin.take().unwrap(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.ask, "{line}").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How often anybody was inside.
fn times(server: &RedisServer) -> i64 {
    text(server, "times").map_or(0, |n| n.parse().unwrap())
}

/// First each as it comes, and then in turns: who was inside waits for the other one to be, and asks while it
/// is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_py_and_dlock_never_overlap_in_two_hundred_turns() {
    const FREE: i64 = 50;
    const TURNS: i64 = 200;
    let server = Arc::new(RedisServer::start().unwrap());
    let (client, mut python) = (client(&server).await, Python::start(&server));
    let watched = Arc::clone(&server);
    // Each counts who is inside, with nothing but the lock to keep the other out.
    let other = std::thread::spawn(move || {
        for n in 0..FREE + TURNS {
            let turn = n - FREE;
            // The second of each turn is theirs; before it there were the free ones of both.
            while turn >= 0 && times(&watched) < FREE * 2 + turn * 2 + 1 {
                std::thread::yield_now();
            }
            assert_eq!(python.ask("lock x 10 30"), "got");
            assert_eq!(python.ask("enter"), "1");
            assert_eq!(python.ask("leave"), "0");
            assert_eq!(python.ask("release"), "released");
        }
    });
    let lock = client.lock("x").unwrap();
    for n in 0..FREE + TURNS {
        let turn = n - FREE;
        while turn >= 0 && times(&server) < FREE * 2 + turn * 2 {
            tokio::task::yield_now().await;
        }
        let held = lock.acquire().await.unwrap();
        assert_eq!(server.ask(&["INCR", "inside"]).unwrap().number().unwrap(), 1);
        server.ask(&["INCR", "times"]).unwrap();
        // The other one asks by now, and is kept out.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(server.ask(&["DECR", "inside"]).unwrap().number().unwrap(), 0);
        held.release().await.unwrap();
    }
    tokio::task::spawn_blocking(move || other.join().unwrap())
        .await
        .unwrap();
    assert_eq!(times(&server), (FREE + TURNS) * 2);
}

#[tokio::test]
async fn either_side_keeps_the_other_out_for_its_ttl_and_no_longer() {
    let server = RedisServer::start().unwrap();
    let (client, mut python) = (client(&server).await, Python::start(&server));
    let lock = client.lock("x").unwrap();
    // Theirs, let go of in time, and too late.
    assert_eq!(python.ask("lock x 30 0"), "got");
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert_eq!(python.ask("release"), "released");
    let held = lock.try_acquire().await.unwrap().unwrap();
    assert_eq!(python.ask("lock x 30 0"), "held");
    held.release().await.unwrap();
    assert_eq!(python.ask("lock x 0.5 0"), "got");
    let from = Instant::now();
    assert_eq!(python.ask("extend 1"), "extended");
    let held = lock.acquire().await.unwrap();
    assert!(
        from.elapsed() >= Duration::from_millis(950),
        "{:?}",
        from.elapsed()
    );
    assert!(from.elapsed() < Duration::from_secs(2), "{:?}", from.elapsed());
    assert_eq!(
        python.ask("release"),
        "LockNotOwnedError",
        "and ours is not touched"
    );
    assert!(lock.try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    // Ours, without a renewal.
    let short = LockOptions::new()
        .ttl(Duration::from_secs(1))
        .auto_renew(dlock_core::AutoRenew::Off);
    let held = client
        .lock("x")
        .unwrap()
        .options(short)
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let from = Instant::now();
    assert_eq!(python.ask("lock x 30 10"), "got");
    let waited = from.elapsed();
    assert!(waited < Duration::from_secs(2) && !held.is_valid(), "{waited:?}");
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(
        lock.try_acquire().await.unwrap().is_none(),
        "theirs is not touched"
    );
    assert_eq!(python.ask("release"), "released");
    // Theirs without an end.
    assert_eq!(python.ask("lock x 0 0"), "got");
    assert_eq!(left(&server, "x"), -1);
    assert!(lock.try_acquire().await.unwrap().is_none());
    python.say("release");
    until("it was let go of", Duration::from_secs(5), async || {
        lock.try_acquire().await.unwrap().is_some()
    })
    .await;
    assert_eq!(python.hear(), "released");
}
