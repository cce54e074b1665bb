//! An unfair lock has two nodes, of which somebody deletes one with `zkCli`: what is left of it is in
//! nobody's way for longer than it is believed in.

use std::sync::Arc;

use dlock_core::Mode;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Lock as _, LostLeases, Queueing, Release, Released, RenewItem, RenewOutcome,
    Signal, Watch as _,
};
use dlock_zk::ZkLock;
use futures::StreamExt as _;

use crate::frames::{DELETE, Stop, Way};
use crate::{LONG, at_once, children, config, granted, hands, here, key, queued, start, unanswered, until};
use dlock_testkit::ZkServer;

const X: Mode = Mode::Exclusive;

/// Which of the two is deleted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Node {
    /// That of the lock, which all have in turn.
    InTurn,
    Own,
}

const BOTH: [Node; 2] = [Node::InTurn, Node::Own];

async fn open(server: &ZkServer) -> ZkLock {
    let config = config().unfair().servers(&server.address().to_string());
    config.connect(here()).await.unwrap()
}

fn request(client: u128) -> Acquire {
    let mut request = queued(&key("x", client, 1), X);
    request.queue = Queueing::No;
    request
}

/// All that there is of the lock.
async fn nodes(server: &Arc<ZkServer>) -> Vec<(Node, String)> {
    let mut nodes = Vec::new();
    for (node, above) in [(Node::InTurn, "/dlock/unfair"), (Node::Own, "/dlock/holders")] {
        let children = children(server, above).await;
        nodes.extend(children.into_iter().map(|c| (node, format!("{above}/{c}"))));
    }
    nodes
}

/// What this client asked for before is answered when this is.
async fn catch_up(lock: &ZkLock, n: u64) {
    let other = at_once(&key(&format!("y{n}"), 9, n), X);
    granted(lock, &other).await;
    lock.release(&other.key, Release::Now).await.unwrap();
}

async fn delete(server: &Arc<ZkServer>, which: Node) {
    let nodes = nodes(server).await;
    let (_, path) = nodes.into_iter().find(|(node, _)| *node == which).unwrap();
    assert!(hands(server, move |s| s.with_session(|s| s.delete(&path))).await);
}

/// Nothing is left of it, and somebody else has it.
async fn is_free(server: &Arc<ZkServer>, at: &str) {
    let left = nodes(server).await;
    assert!(left.is_empty(), "{at}: {left:?}");
    let other = open(server).await;
    granted(&other, &request(2)).await;
    other.release(&request(2).key, Release::Now).await.unwrap();
}

async fn renewed(lock: &ZkLock, request: &Acquire) -> RenewOutcome {
    let items = [RenewItem::lease(request.key.clone(), LONG)];
    lock.renew().unwrap().renew(&items).await.remove(0)
}

#[tokio::test]
async fn a_release_deletes_what_is_left() {
    let server = start().await;
    for node in BOTH {
        let lock = open(&server).await;
        granted(&lock, &request(1)).await;
        delete(&server, node).await;
        lock.release(&request(1).key, Release::Now).await.unwrap();
        is_free(&server, &format!("{node:?}")).await;
    }
}

/// The shared node tells the holder: without it the hold has gone, and without the other one it stands.
#[tokio::test]
async fn a_renewal_tells_what_is_so_and_deletes_what_is_left() {
    let server = start().await;
    for node in BOTH {
        let lock = open(&server).await;
        let first = request(1);
        granted(&lock, &first).await;
        delete(&server, node).await;
        let outcome = renewed(&lock, &first).await;
        match (node, &outcome) {
            (Node::InTurn, RenewOutcome::Gone) => {}
            (Node::Own, RenewOutcome::Renewed(_)) => {
                let released = lock.release(&first.key, Release::Now).await.unwrap();
                assert_eq!(released, Released::Released);
            }
            _ => panic!("without {node:?}: {outcome:?}"),
        }
        is_free(&server, &format!("{node:?}")).await;
    }
}

/// Where nobody holds it any more there is nothing to end; what is left goes when its client looks.
#[tokio::test]
async fn an_operator_ends_what_is_held_yet() {
    let server = start().await;
    for node in BOTH {
        let (lock, operator) = (open(&server).await, open(&server).await);
        let first = request(1);
        granted(&lock, &first).await;
        delete(&server, node).await;
        let ended = operator.force_release(&first.key.name).await.unwrap();
        assert_eq!(ended, u32::from(node == Node::Own), "without {node:?}");
        // Or it is looking for it just now, since it has been told.
        until("it has gone", LONG, async || {
            matches!(renewed(&lock, &first).await, RenewOutcome::Gone)
        })
        .await;
        is_free(&server, &format!("{node:?}")).await;
    }
}

/// A session that missed a forced release looks for each of its holds: a holder is told if its hold has gone,
/// and nothing is left.
#[tokio::test]
async fn a_search_ends_only_holds_that_are_gone() {
    let server = start().await;
    for node in BOTH {
        let (lock, operator) = (open(&server).await, open(&server).await);
        let mut signals = lock.signals();
        let (first, later) = (request(1), at_once(&key("y", 1, 2), X));
        granted(&lock, &first).await;
        granted(&lock, &later).await;
        delete(&server, node).await;
        // Another node, at the version that comes next. Its client sees that alone, since nothing else of
        // this thread goes on meanwhile: then it looks for all.
        crate::listens(&server, &lock).await;
        let made_anew = server.with_session(|s| {
            let seen = s.stat("/dlock/forced")?.unwrap().version;
            s.delete("/dlock/forced")?;
            s.create("/dlock/forced", b"")?;
            (0..=seen).try_for_each(|_| s.set("/dlock/forced", b"").map(drop))
        });
        made_anew.unwrap();
        // What is ended after that is told after it.
        assert_eq!(operator.force_release(&later.key.name).await.unwrap(), 1);
        let mut lost = Vec::new();
        while !lost.contains(&later.key) {
            let told = tokio::time::timeout(LONG, signals.next()).await.unwrap();
            let Some(Signal::Lost(LostLeases::These(keys), _)) = told else {
                panic!("{told:?}");
            };
            lost.extend(keys);
        }
        let is_lost = lost.contains(&first.key);
        assert_eq!(is_lost, node == Node::InTurn, "without {node:?}");
        if !is_lost {
            let outcome = renewed(&lock, &first).await;
            assert!(matches!(outcome, RenewOutcome::Renewed(_)), "{outcome:?}");
            lock.release(&first.key, Release::Now).await.unwrap();
        }
        is_free(&server, &format!("{node:?}")).await;
    }
}

/// What is left of it does not let the next attempt of the same request ask for ever.
#[tokio::test]
async fn an_unfair_lock_is_taken_again_after_losing_its_node() {
    let server = start().await;
    let lock = open(&server).await;
    let first = request(1);
    granted(&lock, &first).await;
    delete(&server, Node::InTurn).await;
    let again = lock.attempt(&first).await.unwrap();
    assert!(matches!(again, Attempt::Granted(_)), "{again:?}");
    lock.release(&first.key, Release::Now).await.unwrap();
    is_free(&server, "again").await;
}

/// The next holder may be another request of the same client.
#[tokio::test]
async fn what_lost_its_nodes_takes_none_of_its_own_client() {
    let server = start().await;
    for deleted in [&[Node::InTurn][..], &BOTH] {
        let lock = open(&server).await;
        let (first, second) = (request(1), at_once(&key("x", 1, 2), X));
        granted(&lock, &first).await;
        for node in deleted {
            delete(&server, *node).await;
        }
        granted(&lock, &second).await;
        if deleted.len() == 1 {
            let outcome = renewed(&lock, &first).await;
            assert!(matches!(outcome, RenewOutcome::Gone), "{outcome:?}");
        }
        let released = lock.release(&first.key, Release::Now).await.unwrap();
        assert_eq!(released, Released::NotHeld);
        let outcome = renewed(&lock, &second).await;
        assert!(matches!(outcome, RenewOutcome::Renewed(_)), "{outcome:?}");
        lock.release(&second.key, Release::Now).await.unwrap();
        is_free(&server, &format!("{deleted:?}")).await;
    }
}

/// The answer to its creation was lost as well.
#[tokio::test]
async fn an_abandon_deletes_what_is_left() {
    let server = start().await;
    let lock = open(&server).await;
    let user = lock.signals();
    catch_up(&lock, 0).await;
    hands(&server, |s| s.pause()).await;
    let first = request(1);
    unanswered(lock.attempt(&first)).await;
    hands(&server, |s| s.go_on()).await;
    until("both are there", LONG, async || nodes(&server).await.len() == 2).await;
    delete(&server, Node::InTurn).await;
    let abandoned = lock.abandon(&[first.key]).await.remove(0).unwrap();
    assert_eq!(abandoned, Abandoned::Nothing);
    is_free(&server, "abandoned").await;
    // Nothing is known of it any more: a session of nobody with nothing in it is closed at once.
    drop(user);
    until("its session is closed", LONG / 2, async || {
        children(&server, "/dlock/sessions").await.is_empty()
    })
    .await;
}

/// A release finds that its own node is missing, and stands still between the look at the other one and the
/// deletion. Meanwhile an operator ends it, and the next one has it.
#[tokio::test]
async fn a_deletion_that_comes_late_spares_the_next_holder() {
    let server = start().await;
    let lock = open(&server).await;
    let (operator, next) = (open(&server).await, open(&server).await);
    let first = request(1);
    granted(&lock, &first).await;
    delete(&server, Node::Own).await;
    let mut undoing = lock.abandon(std::slice::from_ref(&first.key));
    // The deletion of both is refused, and then it looks.
    for n in 0..2 {
        assert!(futures::poll!(&mut undoing).is_pending());
        catch_up(&lock, n).await;
    }
    let left = nodes(&server).await;
    assert!(matches!(left[..], [(Node::InTurn, _)]), "{left:?}");
    assert_eq!(operator.force_release(&first.key.name).await.unwrap(), 1);
    let second = request(2);
    granted(&next, &second).await;
    undoing.await.remove(0).unwrap();
    let outcome = renewed(&next, &second).await;
    assert!(matches!(outcome, RenewOutcome::Renewed(_)), "{outcome:?}");
    assert_eq!(nodes(&server).await.len(), 2, "the next one's");
    next.release(&second.key, Release::Now).await.unwrap();
    is_free(&server, "late").await;
}

/// Somebody is about to end a hold of which only the node is left that all have in turn. Its session ends
/// just then, and the next one has it.
#[tokio::test]
async fn an_end_by_force_that_comes_late_spares_the_next_holder() {
    let server = start().await;
    let (lock, operator, next) = (open(&server).await, open(&server).await, open(&server).await);
    granted(&lock, &request(1)).await;
    delete(&server, Node::Own).await;
    let name = request(1).key.name;
    let mut ending = operator.force_release(&name);
    // So often it asks before it ends somebody.
    for n in 0..4 {
        assert!(futures::poll!(&mut ending).is_pending());
        catch_up(&operator, n).await;
    }
    crate::expire(&server, lock.session_id().unwrap()).await;
    let second = request(2);
    until("it is had", LONG, async || {
        matches!(next.attempt(&second).await, Ok(Attempt::Granted(_)))
    })
    .await;
    assert_eq!(ending.await.unwrap(), 0);
    let outcome = renewed(&next, &second).await;
    assert!(matches!(outcome, RenewOutcome::Renewed(_)), "{outcome:?}");
    let released = next.release(&second.key, Release::Now).await.unwrap();
    assert_eq!(released, Released::Released);
}

/// By hand, and with what stands in an own one.
#[tokio::test]
async fn a_lock_that_no_session_has_is_not_taken_for_an_own_one() {
    let server = start().await;
    let lock = open(&server).await;
    let first = request(1);
    granted(&lock, &first).await;
    let copied = hands(&server, |s| {
        s.with_session(|s| {
            let data = s.get("/dlock/unfair/x")?.unwrap();
            s.delete("/dlock/unfair/x")?;
            s.create("/dlock/unfair/x", &data)
        })
    });
    assert!(copied.await);
    let again = lock.attempt(&first).await.unwrap();
    assert!(matches!(again, Attempt::Held(_)), "{again:?}");
    let left = nodes(&server).await;
    assert!(matches!(left[..], [(Node::InTurn, _)]), "{left:?}");
}

/// A renewal finds that it has gone, and does not come to delete what is left. Until that is done it is no
/// hold, with however many others it is renewed.
#[tokio::test]
async fn a_hold_that_was_found_to_have_gone_is_not_renewed() {
    let server = start().await;
    let way = Way::to(server.address()).unwrap();
    let config = config().unfair().servers(&way.address.to_string());
    let lock = config.connect(here()).await.unwrap();
    let (first, other) = (request(1), at_once(&key("y", 1, 2), X));
    granted(&lock, &first).await;
    granted(&lock, &other).await;
    delete(&server, Node::InTurn).await;
    way.stop(Stop::Before(DELETE));
    let losing = async {
        way.stopped().await;
        way.break_off();
    };
    let (outcome, ()) = futures::join!(renewed(&lock, &first), losing);
    assert!(matches!(outcome, RenewOutcome::Failed(_)), "{outcome:?}");
    let items = [&first, &other].map(|r| RenewItem::lease(r.key.clone(), LONG));
    let outcomes = lock.renew().unwrap().renew(&items).await;
    assert!(
        matches!(outcomes[..], [RenewOutcome::Gone, RenewOutcome::Renewed(_)]),
        "{outcomes:?}"
    );
    lock.release(&other.key, Release::Now).await.unwrap();
    is_free(&server, "found").await;
}
