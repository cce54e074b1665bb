//! The connections that are listened on: a wait hears its push after whatever happened to them.

use std::time::Duration;

use dlock_core::spi::{Acquire, Attempt, Lock as _, Push, Release, Wake};
use dlock_redis::RedisLock;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};

use crate::{config, here, is_granted, key, open, queued, until};
use dlock_testkit::{Proxy, RedisServer};

const SOON: Duration = Duration::from_secs(5);

/// A silent connection is asked every ten seconds, and has one to answer.
const PROBED: Duration = Duration::from_secs(15);

/// A request whose lease and whose place in the line outlast the test: nothing but a push says that it is its
/// turn.
fn lasting(name: &str, client: u128) -> Acquire {
    let mut request = queued(&key(name, client, 1));
    (request.ttl, request.queue_ttl) = (Duration::from_secs(60), Duration::from_secs(60));
    request
}

type Pushes = BoxStream<'static, Push>;

/// Takes its place in line, or finds it again.
async fn in_line(lock: &RedisLock, request: &Acquire) -> Pushes {
    let found = std::cell::RefCell::new(None);
    until("it is in line", SOON, async || {
        match lock.attempt(request).await {
            Ok(Attempt::Queued(wait)) => {
                let Wake::Push(pushes) = wait.wake else {
                    panic!("Redis pushes")
                };
                found.replace(Some(pushes));
                true
            }
            Ok(other) => panic!("it is held: {other:?}"),
            Err(e) => {
                assert!(
                    e.is_retryable() || e.kind() == dlock_core::ErrorKind::Unknown,
                    "{e}"
                );
                false
            }
        }
    })
    .await;
    found.take().unwrap()
}

/// Lets go, also over a line that has just been made anew.
async fn release(lock: &RedisLock, request: &Acquire) {
    until("it is released", SOON, async || {
        lock.release(&request.key, Release::Now).await.is_ok()
    })
    .await;
}

/// It has its turn, and asks for it only when it is told to.
async fn has_its_turn(lock: &RedisLock, request: &Acquire, mut pushes: Pushes, limit: Duration) {
    let turn = async {
        loop {
            match pushes.next().await {
                Some(Push::Granted(_)) => return,
                _ => match lock.attempt(request).await {
                    Ok(Attempt::Queued(wait)) => {
                        let Wake::Push(anew) = wait.wake else {
                            panic!("Redis pushes")
                        };
                        pushes = anew;
                    }
                    Ok(attempt) => return assert!(is_granted(&attempt), "{attempt:?}"),
                    Err(_) => {}
                },
            }
        }
    };
    let turn = tokio::time::timeout(limit, turn).await;
    turn.expect("nobody said that it is its turn");
}

/// What ends its stream is that the connection turns out to be dead. Then it is as after any loss.
async fn finds_out_that_it_is_deaf(lock: &RedisLock, request: &Acquire, mut pushes: Pushes) -> Pushes {
    let ended = async { while pushes.next().await.is_some() {} };
    let ended = tokio::time::timeout(PROBED, ended).await;
    ended.expect("a connection that answers nothing was not given up");
    in_line(lock, request).await
}

#[tokio::test]
async fn a_connection_that_a_nat_forgot_is_given_up_before_long() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let holder = open(&server).await;
    let url = format!("redis://{}", proxy.address());
    let waiter = config(&url).connect(here()).await.unwrap();
    let (a, b) = (lasting("x", 1), lasting("x", 2));
    assert!(is_granted(&holder.attempt(&a).await.unwrap()));
    let pushes = in_line(&waiter, &b).await;
    assert_eq!(proxy.mute_ears(), 1);
    let pushes = finds_out_that_it_is_deaf(&waiter, &b, pushes).await;
    release(&holder, &a).await;
    has_its_turn(&waiter, &b, pushes, SOON).await;
}

#[cfg(feature = "cluster")]
mod of_a_cluster {
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::cluster::{apart, slot_of_name};
    use dlock_testkit::{Connection, Port, RedisCluster, Value};

    /// A cluster whose nodes clients reach by proxies alone: they are told of those.
    async fn behind_proxies() -> (Arc<RedisCluster>, Vec<Proxy>) {
        apart(|| {
            let cluster = RedisCluster::start().unwrap();
            let proxy = |at: SocketAddr| Proxy::start(at).unwrap();
            let proxies: Vec<_> = cluster.addresses().into_iter().map(proxy).collect();
            let ports: Vec<_> = proxies.iter().map(|p| p.address().port().to_string()).collect();
            for (node, port) in cluster.nodes().iter().zip(&ports) {
                node.ask(&["CONFIG", "SET", "cluster-announce-port", port])
                    .unwrap();
            }
            dlock_testkit::until("all are told of", Duration::from_secs(30), || {
                for node in cluster.nodes() {
                    let told = format!("{:?}", node.ask(&["CLUSTER", "SLOTS"])?);
                    if !ports.iter().all(|port| told.contains(&format!("Number({port})"))) {
                        return Ok(false);
                    }
                }
                Ok(true)
            })
            .unwrap();
            (Arc::new(cluster), proxies)
        })
        .await
    }

    async fn reached_by(proxies: &[Proxy]) -> RedisLock {
        let nodes: Vec<_> = proxies.iter().map(|p| p.address().to_string()).collect();
        let url = format!("redis+cluster://{}", nodes.join(","));
        config(&url).connect(here()).await.unwrap()
    }

    /// One that is asked on is there all the time. Only the one that is listened on is forgotten.
    #[tokio::test]
    async fn ears_that_a_nat_forgot_are_given_up_before_long() {
        let (cluster, proxies) = behind_proxies().await;
        let (holder, waiter) = (reached_by(&proxies).await, reached_by(&proxies).await);
        let (a, b) = (lasting("x", 1), lasting("x", 2));
        assert!(is_granted(&holder.attempt(&a).await.unwrap()));
        let proxy = &proxies[cluster.master_of(slot_of_name(&cluster, "x")).unwrap()];
        let pushes = in_line(&waiter, &b).await;
        assert!(proxy.mute_ears() > 0);
        let pushes = finds_out_that_it_is_deaf(&waiter, &b, pushes).await;
        release(&holder, &a).await;
        has_its_turn(&waiter, &b, pushes, SOON).await;
    }

    /// Both connections to a node are lost. A waiter is queued again over the one for requests, and passed
    /// over until the one for pushes is back.
    #[tokio::test]
    async fn ears_that_come_back_late_have_missed_nothing() {
        let (cluster, proxies) = behind_proxies().await;
        let (holder, waiter) = (reached_by(&proxies).await, reached_by(&proxies).await);
        let (a, b) = (lasting("x", 1), lasting("x", 2));
        assert!(is_granted(&holder.attempt(&a).await.unwrap()));
        let proxy = &proxies[cluster.master_of(slot_of_name(&cluster, "x")).unwrap()];
        let mut pushes = in_line(&waiter, &b).await;
        proxy.hold_ears();
        proxy.cut_ears();
        let ended = async { while pushes.next().await.is_some() {} };
        tokio::time::timeout(SOON, ended)
            .await
            .expect("it is told that it is deaf");
        proxy.cut();
        let mut pushes = in_line(&waiter, &b).await;
        release(&holder, &a).await;
        let watch = holder.watch().expect("Redis looks");
        let left = watch.inspect(&a.key.name).await.unwrap();
        assert!(left.holders.is_empty(), "it was passed over: {left:?}");
        // What was told up to here is of no use to it.
        while let Some(Some(_)) = pushes.next().now_or_never() {}
        proxy.let_ears();
        has_its_turn(&waiter, &b, pushes, Duration::from_secs(2)).await;
    }

    /// Plays a node, as far as it takes to be listened at.
    struct Played {
        port: Port,
        script: Arc<Mutex<Script>>,
    }

    struct Script {
        /// Who has all slots, as each of them says.
        master: SocketAddr,
        /// Where all slots go with the first request of a lock.
        then: SocketAddr,
        /// How often it was asked for the slots since.
        asked: usize,
        /// Where it was subscribed, each time.
        subscribed: Vec<SocketAddr>,
    }

    impl Played {
        fn start(port: Port, script: &Arc<Mutex<Script>>) -> Self {
            let listener = TcpListener::bind(port.address()).unwrap();
            let (at, told) = (port.address(), script.clone());
            std::thread::spawn(move || {
                for client in listener.incoming() {
                    let told = told.clone();
                    std::thread::spawn(move || client.map(|client| play(client, at, &told)));
                }
            });
            let script = script.clone();
            Self { port, script }
        }
    }

    /// Until the client ends it.
    fn play(client: TcpStream, at: SocketAddr, script: &Mutex<Script>) {
        let mut line = Connection::accepted(client).unwrap();
        while let Ok(command) = line.answer() {
            let words: Vec<_> = command.list().unwrap().iter().map(Value::text).collect();
            let answer = answer(&words, at, &mut script.lock().unwrap());
            if line.tell(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn answer(words: &[String], at: SocketAddr, script: &mut Script) -> String {
        let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        match words[0].as_str() {
            "HELLO" => "%3\r\n+version\r\n+7.4.0\r\n+mode\r\n+cluster\r\n+role\r\n+master\r\n".to_owned(),
            "INFO" => bulk("maxmemory:0"),
            "SCRIPT" => format!("*{}\r\n{}", words.len() - 2, ":1\r\n".repeat(words.len() - 2)),
            "CLUSTER" => {
                script.asked += 1;
                let (host, port) = (bulk(&script.master.ip().to_string()), script.master.port());
                format!(
                    "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n{host}:{port}\r\n{}",
                    bulk("id")
                )
            }
            "SSUBSCRIBE" => {
                script.subscribed.push(at);
                format!(">3\r\n{}{}:1\r\n", bulk("ssubscribe"), bulk(&words[1]))
            }
            "EVALSHA" if script.master != script.then => {
                (script.master, script.asked) = (script.then, 0);
                format!("-MOVED 1 {}\r\n", script.master)
            }
            // Which makes nobody look for anything.
            "EVALSHA" => "-ERR nothing is locked here\r\n".to_owned(),
            "PING" => "+PONG\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        }
    }

    /// The slots go to a node that cannot be reached, and come back: at the first one it is listened to
    /// again. Once that is a node of the URL, whose connection is kept, and once one that it only told of,
    /// and which is given up.
    #[tokio::test]
    async fn a_slot_that_comes_back_is_listened_to_again() {
        for is_given_up in [false, true] {
            let [here_first, elsewhere, other] = [(); 3].map(|()| Port::free().unwrap());
            let home = here_first.address();
            let script = Arc::new(Mutex::new(Script {
                master: home,
                then: elsewhere.address(),
                asked: 0,
                subscribed: Vec::new(),
            }));
            let nodes = [here_first, other].map(|port| Played::start(port, &script));
            let seed = nodes[usize::from(is_given_up)].port.address();
            let lock = config(&format!("redis+cluster://{seed}"))
                .connect(here())
                .await
                .unwrap();
            let script = &nodes[0].script;
            lock.attempt(&lasting("x", 1))
                .await
                .expect_err("it has gone elsewhere");
            // It is looked again when it could not be listened there.
            until("it was looked for there", SOON, async || {
                script.lock().unwrap().asked > 1
            })
            .await;
            let before = {
                let mut script = script.lock().unwrap();
                (script.master, script.then) = (home, home);
                script.subscribed.len()
            };
            assert!(before > 0);
            until("it is listened to", SOON, async || {
                script.lock().unwrap().subscribed.len() > before
            })
            .await;
            assert!(script.lock().unwrap().subscribed.iter().all(|at| *at == home));
        }
    }

    /// It has no slots any more, so nothing of it is kept; then it has them again. That was seen by looks
    /// which were made for something else.
    #[tokio::test]
    async fn at_a_node_that_was_given_up_it_is_listened_to_again() {
        let [port, elsewhere, other] = [(); 3].map(|()| Port::free().unwrap());
        let home = port.address();
        let script = Arc::new(Mutex::new(Script {
            master: home,
            then: home,
            asked: 0,
            subscribed: Vec::new(),
        }));
        let nodes = [port, other].map(|port| Played::start(port, &script));
        let url = format!("redis+cluster://{}", nodes[1].port.address());
        let lock = config(&url).connect(here()).await.unwrap();
        lock.attempt(&lasting("x", 1))
            .await
            .expect_err("nothing is locked");
        let before = script.lock().unwrap().subscribed.len();
        assert!(before > 0);
        for master in [elsewhere.address(), home] {
            script.lock().unwrap().master = master;
            lock.ready().await.unwrap();
        }
        let listens = || script.lock().unwrap().subscribed.len() > before;
        until("it is listened to", SOON, async || listens()).await;
    }
}
