//! Acquisitions of two nodes, of which somebody deletes one with `zkCli`: what is left of it is in nobody's way for longer than it is believed in.

use std::sync::Arc;

use dlock_core::Mode;
use dlock_core::spi::{
    Acquire, Attempt, Lock as _, LostLeases, Release, Released, RenewItem, RenewOutcome, Signal, Watch as _,
};
use dlock_zk::ZkLock;
use futures::StreamExt as _;

use crate::priorities::{open_by_a_way, taken_without_an_answer};
use crate::servers::ZkServer;
use crate::{LONG, at_once, builder, children, granted, hands, here, key, queued, start, turn, until, waits};

const X: Mode = Mode::Exclusive;

/// Where the nodes of a lock `x` are.
#[derive(Clone, Copy, Debug)]
enum Kind {
    ByPriority,
    Unfair,
}

/// Which of the two is deleted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Node {
    InTurn,
    Own,
}

const TABLE: [(Kind, Node); 4] = [
    (Kind::ByPriority, Node::InTurn),
    (Kind::ByPriority, Node::Own),
    (Kind::Unfair, Node::InTurn),
    (Kind::Unfair, Node::Own),
];

impl Kind {
    async fn open(self, server: &ZkServer) -> ZkLock {
        let builder = match self {
            Self::ByPriority => builder().priorities(),
            Self::Unfair => builder().unfair(),
        };
        builder.open(&server.address().to_string(), here()).await.unwrap()
    }

    fn request(self, client: u128) -> Acquire {
        let mut request = queued(&key("x", client, 1), X);
        if let Self::Unfair = self {
            request.queue = dlock_core::spi::Queueing::No;
        }
        request
    }

    /// All that there is of the lock.
    async fn nodes(self, server: &Arc<ZkServer>) -> Vec<(Node, String)> {
        let mut nodes = Vec::new();
        match self {
            Self::ByPriority => {
                for child in children(server, "/dlock/locks/x").await {
                    let node = if child == "held" { Node::InTurn } else { Node::Own };
                    nodes.push((node, format!("/dlock/locks/x/{child}")));
                }
            }
            Self::Unfair => {
                for (node, above) in [(Node::InTurn, "/dlock/unfair"), (Node::Own, "/dlock/holders")] {
                    let children = children(server, above).await;
                    nodes.extend(children.into_iter().map(|c| (node, format!("{above}/{c}"))));
                }
            }
        }
        nodes
    }

    async fn delete(self, server: &Arc<ZkServer>, which: Node) {
        let nodes = self.nodes(server).await;
        let (_, path) = nodes.into_iter().find(|(node, _)| *node == which).unwrap();
        assert!(hands(server, move |s| s.with_session(|s| s.delete(&path))).await);
    }

    /// Nothing is left of it, and somebody else has it.
    async fn is_free(self, server: &Arc<ZkServer>, at: &str) {
        let left = self.nodes(server).await;
        assert!(left.is_empty(), "{self:?}, {at}: {left:?}");
        let other = self.open(server).await;
        granted(&other, &self.request(2)).await;
        other.release(&self.request(2).key, Release::Now).await.unwrap();
    }
}

async fn renewed(lock: &ZkLock, request: &Acquire) -> RenewOutcome {
    let items = [RenewItem::lease(request.key.clone(), LONG)];
    lock.renew().unwrap().renew(&items).await.remove(0)
}

#[tokio::test]
async fn a_release_deletes_what_is_left() {
    let server = start().await;
    for (kind, node) in TABLE {
        let lock = kind.open(&server).await;
        granted(&lock, &kind.request(1)).await;
        kind.delete(&server, node).await;
        lock.release(&kind.request(1).key, Release::Now).await.unwrap();
        kind.is_free(&server, &format!("{node:?}")).await;
    }
}

/// The one that all have in turn says who holds: without it the hold has gone, and without the other one it stands.
#[tokio::test]
async fn a_renewal_tells_what_is_so_and_deletes_what_is_left() {
    let server = start().await;
    for (kind, node) in TABLE {
        let lock = kind.open(&server).await;
        let request = kind.request(1);
        granted(&lock, &request).await;
        kind.delete(&server, node).await;
        let outcome = renewed(&lock, &request).await;
        match (node, &outcome) {
            (Node::InTurn, RenewOutcome::Gone) => {}
            (Node::Own, RenewOutcome::Renewed(_)) => {
                let released = lock.release(&request.key, Release::Now).await.unwrap();
                let said = match kind {
                    Kind::ByPriority => Released::NotHeld,
                    Kind::Unfair => Released::Released,
                };
                assert_eq!(released, said);
            }
            _ => panic!("{kind:?} without {node:?}: {outcome:?}"),
        }
        kind.is_free(&server, &format!("{node:?}")).await;
    }
}

/// Where nobody holds it any more there is nothing to end; what is left goes when its client looks.
#[tokio::test]
async fn an_operator_ends_what_is_held_yet() {
    let server = start().await;
    for (kind, node) in TABLE {
        let (lock, operator) = (kind.open(&server).await, kind.open(&server).await);
        let request = kind.request(1);
        granted(&lock, &request).await;
        kind.delete(&server, node).await;
        let ended = operator.force_release(&request.key.name).await.unwrap();
        assert_eq!(ended, u32::from(node == Node::Own), "{kind:?} without {node:?}");
        // Or it is looking for it just now, since it has been told.
        until("it has gone", LONG, async || {
            matches!(renewed(&lock, &request).await, RenewOutcome::Gone)
        })
        .await;
        kind.is_free(&server, &format!("{node:?}")).await;
    }
}

/// Whoever missed what was ended looks for each of its holds: then it is told, if it has gone, and nothing is left.
#[tokio::test]
async fn who_looks_for_its_holds_ends_those_that_have_gone_and_no_others() {
    let server = start().await;
    for (kind, node) in TABLE {
        let (lock, operator) = (kind.open(&server).await, kind.open(&server).await);
        let mut signals = lock.signals();
        let (request, later) = (kind.request(1), at_once(&key("y", 1, 2), X));
        granted(&lock, &request).await;
        granted(&lock, &later).await;
        kind.delete(&server, node).await;
        // At a version that it has not seen coming: then it looks for all.
        hands(&server, |s| {
            s.with_session(|s| {
                s.delete("/dlock/forced")?;
                s.create("/dlock/forced", b"")
            })
        })
        .await;
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
        let is_lost = lost.contains(&request.key);
        assert_eq!(is_lost, node == Node::InTurn, "{kind:?} without {node:?}");
        if !is_lost {
            let outcome = renewed(&lock, &request).await;
            assert!(matches!(outcome, RenewOutcome::Renewed(_)), "{outcome:?}");
            lock.release(&request.key, Release::Now).await.unwrap();
        }
        kind.is_free(&server, &format!("{node:?}")).await;
    }
}

/// What is left of it does not let the next attempt of the same request ask for ever.
#[tokio::test]
async fn an_unfair_lock_is_had_again_by_who_lost_its_node() {
    let server = start().await;
    let lock = Kind::Unfair.open(&server).await;
    let request = Kind::Unfair.request(1);
    granted(&lock, &request).await;
    Kind::Unfair.delete(&server, Node::InTurn).await;
    let again = lock.attempt(&request).await.unwrap();
    assert!(matches!(again, Attempt::Granted(_)), "{again:?}");
    lock.release(&request.key, Release::Now).await.unwrap();
    Kind::Unfair.is_free(&server, "again").await;
}

/// With `zkCli`'s `set`.
#[tokio::test]
async fn who_waits_by_priority_takes_its_turn_whatever_was_written_to_its_place() {
    let server = start().await;
    let kind = Kind::ByPriority;
    let (holder, lock) = (kind.open(&server).await, kind.open(&server).await);
    granted(&holder, &kind.request(1)).await;
    let mut wait = waits(&lock, &kind.request(2)).await;
    let place = children(&server, "/dlock/locks/x").await;
    let its = |c: &String| c.starts_with(&format!("{:032x}-", 2));
    let place = place.into_iter().find(its).unwrap();
    let path = format!("/dlock/locks/x/{place}");
    assert!(hands(&server, move |s| s.with_session(|s| s.set(&path, b"somebody"))).await);
    holder.release(&kind.request(1).key, Release::Now).await.unwrap();
    turn(&mut wait).await;
    lock.release(&kind.request(2).key, Release::Now).await.unwrap();
    kind.is_free(&server, "written").await;
}

/// It is given up while it is taken, and stands still between the look whether it was taken and the deletion. Meanwhile an operator ends it, and the next one has it.
#[tokio::test]
async fn a_deletion_that_comes_late_spares_the_next_holder() {
    let server = start().await;
    let kind = Kind::ByPriority;
    let (way, lock) = open_by_a_way(&server).await;
    let (operator, next) = (kind.open(&server).await, kind.open(&server).await);
    let request = kind.request(1);
    taken_without_an_answer(&server, &way, &lock, &request).await;
    let mut undoing = lock.abandon(std::slice::from_ref(&request.key));
    assert!(futures::poll!(&mut undoing).is_pending());
    // What was asked before this is answered before it: the deletion of its place, and then the look.
    granted(&lock, &at_once(&key("y", 1, 2), X)).await;
    assert!(futures::poll!(&mut undoing).is_pending());
    granted(&lock, &at_once(&key("z", 1, 3), X)).await;
    let left = kind.nodes(&server).await;
    assert!(matches!(left[..], [(Node::InTurn, _)]), "{left:?}");
    assert_eq!(operator.force_release(&request.key.name).await.unwrap(), 1);
    let second = kind.request(2);
    granted(&next, &second).await;
    undoing.await.remove(0).unwrap();
    let outcome = renewed(&next, &second).await;
    assert!(matches!(outcome, RenewOutcome::Renewed(_)), "{outcome:?}");
    assert_eq!(kind.nodes(&server).await.len(), 2, "the next one's");
    next.release(&second.key, Release::Now).await.unwrap();
    kind.is_free(&server, "late").await;
}

/// Somebody is about to end a hold of which only the node is left that all have in turn. Its session ends just then, and the next one has it.
#[tokio::test]
async fn an_end_by_force_that_comes_late_spares_the_next_holder() {
    // How often it asks before it ends somebody.
    for (kind, looks) in [(Kind::Unfair, 4), (Kind::ByPriority, 5)] {
        let server = start().await;
        let (lock, operator, next) = (
            kind.open(&server).await,
            kind.open(&server).await,
            kind.open(&server).await,
        );
        granted(&lock, &kind.request(1)).await;
        kind.delete(&server, Node::Own).await;
        let name = kind.request(1).key.name;
        let mut ending = operator.force_release(&name);
        for n in 0..looks {
            assert!(futures::poll!(&mut ending).is_pending(), "{kind:?}");
            // What was asked before this is answered before it.
            granted(&operator, &at_once(&key(&format!("y{n}"), 8, n), X)).await;
        }
        crate::expire(&server, lock.session_id().unwrap()).await;
        let second = kind.request(2);
        until("it is had", LONG, async || {
            matches!(next.attempt(&second).await, Ok(Attempt::Granted(_)))
        })
        .await;
        assert_eq!(ending.await.unwrap(), 0, "{kind:?}");
        let outcome = renewed(&next, &second).await;
        assert!(
            matches!(outcome, RenewOutcome::Renewed(_)),
            "{kind:?}: {outcome:?}"
        );
        assert_eq!(
            next.release(&second.key, Release::Now).await.unwrap(),
            Released::Released
        );
    }
}
