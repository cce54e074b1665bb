//! What the kit finds in rslock, without the kit: rslock and a Redis server alone. Each test asserts the
//! fault and is named after it; the numbers are those of the rules that fail for it. `REDIS_URL` names the
//! server.

use std::error::Error;
use std::time::Duration;

use rslock::{LockError, LockManager};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const LONG: Duration = Duration::from_secs(10);

/// What happens on the way to the server.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Open,
    /// Replies do not arrive.
    Deaf,
    /// The connection breaks instead of the next reply.
    LosesAReply,
    Away,
}

fn server() -> String {
    std::env::var("REDIS_URL").expect("REDIS_URL is not set: redis://127.0.0.1:6379, for example")
}

/// One that tries once, as the kit's adapter does.
fn client(url: String) -> LockManager {
    let mut manager = LockManager::new(vec![url]);
    manager.set_retry(1, Duration::ZERO);
    manager
}

/// A name of its own for each test.
fn name(what: &str) -> Vec<u8> {
    format!("rslock-faults-{}-{what}", std::process::id()).into_bytes()
}

/// Whether somebody has it, as the server says.
async fn is_taken(name: &[u8]) -> bool {
    let looked = client(server()).query_redis_for_key_value(name).await;
    looked.expect("the server answers").is_some()
}

/// A client whose way to the server is in the test's hands.
async fn through() -> (LockManager, watch::Sender<Way>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it listens");
    let (set, mut way) = watch::channel(Way::Open);
    let teller = set.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = is_away(&mut way) => return,
                Ok((client, _)) = listener.accept() => {
                    tokio::spawn(forward(client, teller.clone()));
                }
            }
        }
    });
    (client(format!("redis://{address}/")), set)
}

async fn is_away(way: &mut watch::Receiver<Way>) {
    let _ = way.wait_for(|way| *way == Way::Away).await;
}

async fn forward(mut client: TcpStream, way: watch::Sender<Way>) {
    let url = server();
    let host = url.trim_start_matches("redis://").trim_end_matches('/');
    let mut server = TcpStream::connect(host).await.expect("the server is there");
    let mut away = way.subscribe();
    let (mut there, mut back) = ([0; 4096], [0; 4096]);
    loop {
        tokio::select! {
            () = is_away(&mut away) => return,
            Ok(n) = client.read(&mut there) => match n {
                0 => return,
                n => server.write_all(&there[..n]).await.expect("the server reads"),
            },
            Ok(n) = server.read(&mut back) => match n {
                0 => return,
                n => {
                    let now = *way.borrow();
                    match now {
                        Way::LosesAReply => {
                            way.send_replace(Way::Open);
                            return;
                        }
                        Way::Deaf => {}
                        _ => client.write_all(&back[..n]).await.expect("the client reads"),
                    }
                }
            },
        }
    }
}

/// 3.06, 4.02, 4.05, 16.06: the successor keeps its lock, and the former holder is not told that it had none.
#[tokio::test]
async fn the_release_of_a_lapsed_lock_says_nothing() {
    let (name, manager) = (name("lapsed"), client(server()));
    let lapsed = manager.lock(&name[..], Duration::from_millis(50)).await.expect("it is free");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let next = client(server()).lock(&name[..], LONG).await.expect("it has lapsed");
    let told: () = lapsed.release().await;
    assert_eq!(told, ());
    assert!(is_taken(&name).await);
    next.release().await;
}

/// 4.05, 15.05, 15.11, 16.02: `release` is done, and the lock stays until its ttl ends.
#[tokio::test]
async fn a_release_that_never_arrives_says_nothing() {
    let (name, (manager, way)) = (name("unreleased"), through().await);
    let held = manager.lock(&name[..], LONG).await.expect("it is free");
    way.send_replace(Way::Away);
    let told: () = held.release().await;
    assert_eq!(told, ());
    assert!(is_taken(&name).await);
}

/// 15.08, 15.11: nobody else asks for it, and the key stays for ten seconds.
#[tokio::test]
async fn a_lock_that_it_took_is_called_unavailable() {
    let (name, (manager, way)) = (name("taken"), through().await);
    manager.lock(b"before", LONG).await.expect("it is free").release().await;
    way.send_replace(Way::Deaf);
    let breaks = async {
        while !is_taken(&name).await {}
        way.send_replace(Way::Away);
    };
    let (told, ()) = tokio::join!(manager.lock(&name[..], LONG), breaks);
    assert!(matches!(told, Err(LockError::Unavailable)));
    assert!(is_taken(&name).await);
}

/// 15.02: its own request is all that ever held the name.
#[tokio::test]
async fn after_a_lost_reply_a_free_lock_is_unavailable() {
    let (name, (manager, way)) = (name("free"), through().await);
    manager.lock(b"at first", LONG).await.expect("it is free").release().await;
    way.send_replace(Way::LosesAReply);
    assert!(matches!(manager.lock(&name[..], LONG).await, Err(LockError::Unavailable)));
}

/// 16.09, 17.06: as if somebody had the lock, and without a cause.
#[tokio::test]
async fn a_server_that_is_away_looks_like_a_held_lock() {
    let (manager, way) = through().await;
    way.send_replace(Way::Away);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let told = manager.lock(b"asked for", LONG).await.expect_err("nobody is there");
    assert!(matches!(told, LockError::Unavailable));
    assert!(told.source().is_none());
}
