//! Writes behind the gate whose answers are lost: what became of them is read, and never guessed.

use dlock_core::spi::Lock as _;
use dlock_core::{Access, Admission, ErrorKind, FenceGate, Token};
use dlock_testkit::Proxy;
use dlock_zk::ZkLock;

use crate::frames::{CREATE, SET, Stop, Way};
use crate::{LONG, config, here, key, listens, open, start, until};

fn gate(lock: &ZkLock) -> &dyn FenceGate {
    lock.fencing().unwrap().gate().unwrap()
}

fn token(n: u64) -> Token {
    Token::new(n).unwrap()
}

#[tokio::test]
async fn a_fenced_write_without_its_answer_is_looked_for() {
    let server = start().await;
    let way = Way::to(server.address()).unwrap();
    let proxy = Proxy::start(way.address).unwrap();
    let lock = config().servers(&proxy.address().to_string()).connect(here());
    let (lock, other) = (lock.await.unwrap(), open(&server).await);
    listens(&server, &lock).await;
    let name = key("x", 1, 1).name;
    // It makes what is above the resource.
    let made = gate(&other).write(&key("y", 1, 1).name, token(1), b"").await;
    assert!(made.unwrap().is_admitted());
    let admitted = Ok(Admission::Admitted);
    let refused = |n| Ok(Admission::Refused { highest: token(n) });
    // What is lost, whether a value is written, by whom else meanwhile, and the outcome.
    for (n, stop, writes, others, outcome) in [
        (10, Stop::Behind(CREATE), true, None, admitted),
        (20, Stop::Behind(SET), true, None, admitted),
        (30, Stop::Behind(SET), true, Some(30), Err(ErrorKind::Unknown)),
        (40, Stop::Behind(SET), false, Some(45), refused(45)),
        (50, Stop::Before(SET), true, Some(55), refused(55)),
        (60, Stop::Before(SET), true, None, admitted),
    ] {
        way.stop(stop);
        let asking = async {
            match writes {
                true => gate(&lock).write(&name, token(n), b"ours").await,
                false => gate(&lock).admit(&name, token(n), Access::Exclusive).await,
            }
        };
        let losing = async {
            way.stopped().await;
            let has_it = async || {
                let stored = gate(&other).read(&name).await.unwrap();
                stored.is_some_and(|s| s.max_any == Some(token(n)))
            };
            if let Stop::Behind(_) = stop {
                until("the server has it", LONG, has_it).await;
            }
            if let Some(theirs) = others {
                let stored = gate(&other).write(&name, token(theirs), b"theirs").await;
                assert!(stored.unwrap().is_admitted());
            }
            match stop {
                Stop::Before(_) => way.break_off(),
                Stop::Behind(_) => {
                    proxy.cut();
                    way.go_on();
                }
            }
        };
        let (told, ()) = futures::join!(asking, losing);
        assert_eq!(told.map_err(|e| e.kind()), outcome, "{n}, {stop:?}");
    }
    assert_eq!(gate(&other).read(&name).await.unwrap().unwrap().value, b"ours");
}
