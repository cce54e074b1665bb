//! Unfair locks: one node, which exists or not. Two requests a cycle, and the fastest waiter gets it next.
//!
//! All holders of a lock use the same node in turn, and a node is deleted by its name. A release whose answer
//! was lost would, if repeated, delete the node of the next holder. So a second node goes with it, below
//! `holders`, with the name of the acquisition. Both are created in one step and deleted in one step, by a
//! release and by [force-release](crate::force_release), and if the second is gone nothing is deleted.
//!
//! All waiters watch the one node: each release wakes all of them, and all but one ask in vain. It is for
//! locks with few waiters.
//!
//! # When one of the two is missing
//!
//! Then it was deleted by hand. The other one blocks everyone: so the call that finds out deletes it before
//! it reports the hold as gone, and until then the request is known. The holder's own node is deleted by its
//! name, which no other acquisition has. The node of the lock may be the next holder's by the time that a
//! deletion of it arrives. What could come between the look that shows it to be the own one and its deletion,
//! and why nobody else's is deleted:
//!
//! * *An own release, earlier or now.* One [call](crate::requests) at a time has the request, and the look,
//!   behind a `sync`, shows the effects of all that was sent before.
//! * *The end of the session.* Its requests are refused.
//! * *An end by force.* That writes the node `forced` in the same step. So does this, at the version which
//!   that node had at the look: of the two, one is refused. For the same reason an end by force uses the
//!   version from before it read the holder; and since the end of that session is not its own, by the node of
//!   the session, too.
//! * *It is deleted by hand once more.* That is not noticed: see `docs/zookeeper.md`.

use std::sync::Arc;

use dlock_core::spi::{Acquire, Attempt, LeaseKey, Wait, Wake};
use dlock_core::{Error, ErrorKind, Result};
use futures::FutureExt as _;
use futures::future::try_join;
use zookeeper_client::{Client, CreateMode, Error as Zk, MultiWriteResult};

use crate::failure::did_nothing;
use crate::force_release::{self, is_of};
use crate::lock::{ZkLock, in_line};
use crate::requests::{Node, Request};
use crate::session::Session;

/// How often a force-release may come between the look and the deletion.
const TRIES: usize = 16;

impl ZkLock {
    /// Creates the node if it is missing.
    pub(crate) async fn take(
        &self,
        session: &Arc<Session>,
        request: &Acquire,
        asked_before: bool,
    ) -> Result<Attempt> {
        let key = &request.key;
        let holder = self.paths().holder(key.id);
        if asked_before {
            if let Some(node) = self.find_taken(session, key).await.map_err(in_line)? {
                return handed_out(session, key, &node);
            }
            // Somebody may have deleted the other one by hand.
            self.delete_own(session, &holder).await?;
        }
        let client = session.client()?;
        let lock = self.paths().lock(&key.name);
        let data = self.node_data(session, request, Some(key.id));
        let mut made = self.make_both(session, &client, [&lock, &holder], &data).await;
        if made == Err(Zk::NoNode) {
            // Nothing was made. Who has abandoned it meanwhile counts on that.
            self.connection
                .check_buried(key.id)
                .inspect_err(|_| session.requests.forget(key))?;
            for directory in [&self.paths().locks, &self.paths().holders()] {
                let making = self.connection.make_directory(&client, directory).await;
                if let Err(e) = making {
                    // Nothing was made, and nothing will be.
                    session.requests.forget(key);
                    return Err(session.failed(e));
                }
            }
            made = self.make_both(session, &client, [&lock, &holder], &data).await;
        }
        let czxid = match made {
            Ok(czxid) => czxid,
            Err(Zk::NodeExists) => {
                session.requests.forget(key);
                let (line, node) = lock.rsplit_once('/').unwrap_or(("", &lock));
                let change = self.change(session, line.to_owned(), vec![node.to_owned()]);
                return Ok(Attempt::Held(Wait::new(Wake::Push(change))));
            }
            Err(e) => {
                if did_nothing(&e) {
                    session.requests.forget(key);
                }
                return Err(session.perhaps(e));
            }
        };
        let mut node = czxid.map(|czxid| Node {
            name: lock.into(),
            czxid,
        });
        // First this: a later end finds it.
        session.requests.change(key, |r| r.node.clone_from(&node));
        // Or the server has not said since when it is there.
        if node.is_none() || session.requests.is_doubted(key) {
            node = self.find_taken(session, key).await.map_err(in_line)?;
        }
        match node {
            Some(node) => handed_out(session, key, &node),
            None => {
                session.requests.forget(key);
                Err(removed())
            }
        }
    }

    /// Both in one step. Answers the czxid of the first. Servers up to 3.8 do not say it of what is made with
    /// others, and of what is written they do.
    async fn make_both(
        &self,
        session: &Session,
        client: &Client,
        [lock, holder]: [&str; 2],
        data: &[u8],
    ) -> Result<Option<i64>, Zk> {
        let options = self.connection.node(CreateMode::Ephemeral);
        let mut both = client.new_multi_writer();
        both.add_create(holder, &[], &options)?;
        both.add_create(lock, &[], &options)?;
        both.add_set_data(lock, data, None)?;
        Ok(match session.commit(both).await?.last() {
            Some(MultiWriteResult::SetData { stat }) if session.owns(stat) => Some(stat.czxid),
            _ => None,
        })
    }

    /// The node of that request, if it has it.
    pub(crate) async fn find_taken(&self, session: &Session, key: &LeaseKey) -> Result<Option<Node>> {
        let client = session.client()?;
        let lock = self.paths().lock(&key.name);
        loop {
            let found = session.data(&client, &lock).await?;
            let Some((_, stat)) = found.filter(|found| is_of(session, key.id, found)) else {
                // What comes of it from here on is another one.
                session.requests.change(key, |r| r.node = None);
                return Ok(None);
            };
            let node = Node {
                name: lock.clone().into(),
                czxid: stat.czxid,
            };
            session.requests.change(key, |r| r.node = Some(node.clone()));
            // Or it may have been ended since it was read, by who did not find it noted.
            if !session.requests.is_doubted(key) {
                return Ok(Some(node));
            }
        }
    }

    /// Deletes the nodes of that request. Answers as [`leave`](Self::leave).
    ///
    /// # Errors
    /// `Unknown` if they may be there yet.
    pub(crate) async fn give_back(&self, session: &Session, request: &Request, node: &Node) -> Result<bool> {
        let key = &request.key;
        let client = session.client()?;
        let told = |e| session.perhaps(e);
        let holder = self.paths().holder(key.id);
        session.requests.change(key, |r| r.leaving = true);
        let mut both = client.new_multi_writer();
        both.add_delete(&holder, None).map_err(told)?;
        both.add_delete(&node.name, None).map_err(told)?;
        let was_there = match session.commit(both).await {
            Ok(_) => true,
            // One of them has gone: both by an earlier deletion of ours, or one by somebody's hand.
            Err(Zk::NoNode) => {
                let had = self.delete_in_turn(session, key, &node.name).await?;
                self.delete_own(session, &holder).await?;
                request.leaving || had
            }
            Err(Zk::SessionExpired) => return Ok(false),
            Err(e) => return Err(told(e)),
        };
        session.requests.forget(key);
        Ok(was_there)
    }

    /// Forgets a hold whose node has gone, of an unfair lock when the other one has gone as well.
    ///
    /// # Errors
    /// `Unknown` if that may be there yet. Then it is known as before, and never granted again.
    pub(crate) async fn forget_hold(&self, session: &Session, request: &Request) -> Result<()> {
        let key = &request.key;
        if self.paths().unfair {
            let _in_call = session.requests.call(key)?;
            if (session.requests.get(key)).is_some_and(|noted| noted.node != request.node) {
                let message = "the lock was taken again while it was looked for";
                return Err(Error::new(ErrorKind::Unknown, message));
            }
            session.requests.change(key, |r| r.leaving = true);
            self.delete_own(session, &self.paths().holder(key.id)).await?;
        }
        session.requests.forget_node(request);
        Ok(())
    }

    /// Deletes a node that only one acquisition has.
    ///
    /// # Errors
    /// `Unknown` if it may be there yet.
    pub(crate) async fn delete_own(&self, session: &Session, path: &str) -> Result<()> {
        let client = session.client()?;
        match session.written(|| client.delete(path, None)).await {
            Ok(()) | Err(Zk::NoNode | Zk::SessionExpired) => Ok(()),
            Err(e) => Err(session.perhaps(e)),
        }
    }

    /// Deletes the node that all have in turn, if that request has it. Answers whether it had.
    ///
    /// # Errors
    /// `Unknown` if it may have it yet.
    async fn delete_in_turn(&self, session: &Session, key: &LeaseKey, lock: &str) -> Result<bool> {
        let looked = |e| in_line(session.failed(e));
        let told = |e| session.perhaps(e);
        let forced = self.paths().forced();
        for _ in 0..TRIES {
            let client = session.client()?;
            let looking = session.synced(&client, || {
                // In this order: an end by force after the first of them counts as one after both.
                let [ends, found] = [&*forced, lock].map(|path| {
                    client.get_data(path).map(|found| match found {
                        Err(Zk::NoNode) => Ok(None),
                        found => found.map(Some),
                    })
                });
                try_join(ends, found)
            });
            let (ends, found) = looking.await.map_err(looked)?;
            if !found.is_some_and(|found| is_of(session, key.id, &found)) {
                return Ok(false);
            }
            let Some((said, stat)) = ends else {
                let making = force_release::make(&self.connection, &client).await;
                making.map_err(looked)?;
                continue;
            };
            let mut both = client.new_multi_writer();
            both.add_delete(lock, None).map_err(told)?;
            both.add_set_data(&forced, &said, Some(stat.version))
                .map_err(told)?;
            match session.commit(both).await {
                Ok(_) => return Ok(true),
                // Somebody was ended since the look.
                Err(Zk::NoNode | Zk::BadVersion) => {}
                Err(Zk::SessionExpired) => return Ok(false),
                Err(e) => return Err(told(e)),
            }
        }
        let message = "other locks were force-released during each try to release this one";
        Err(Error::new(ErrorKind::Unknown, message))
    }
}

fn handed_out(session: &Session, key: &LeaseKey, node: &Node) -> Result<Attempt> {
    let grant = session.grant(key, node).map(Attempt::Granted);
    // Either it was ended by force, and both of its nodes are gone; or it is given up just now, by who sees
    // to it that they go.
    grant.ok_or_else(|| match session.requests.get(key) {
        None => removed(),
        Some(_) => in_line(removed()),
    })
}

fn removed() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the lock's node was removed as soon as it was made: try again",
    )
}
