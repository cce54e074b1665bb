//! Unfair locks: one node, which is there or not. Two requests a cycle, and whoever is quickest has it next.
//!
//! All who ever hold a lock have the same node in turn, and a node is deleted by its name. A release whose answer was lost would, sent again, delete the node of whoever holds
//! it by then. So a second node goes with it, which has the name of the acquisition: both are made in one step and deleted in one step, and if the second is gone nothing is
//! deleted; but for what is left of one of which somebody deleted a part by hand, see [`remains`](crate::remains).
//!
//! Whoever waits watches the node, as everybody else does: each release wakes all of them, and all but one have asked in vain. It is for locks that few wait for.

use std::sync::Arc;

use dlock_core::spi::{Acquire, Attempt, LeaseKey, Wait, Wake};
use dlock_core::{Error, ErrorKind, Result};
use zookeeper_client::{Client, CreateMode, Error as Zk, MultiWriteError, MultiWriteResult};

use crate::entries::Card;
use crate::failure::{Effect, did_nothing};
use crate::leave::Left;
use crate::lock::{ZkLock, in_line};
use crate::requests::Request;
use crate::session::{Node, Session};

impl ZkLock {
    /// Makes the node, if nobody has.
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
            self.end_own(session, &holder).await?;
        }
        let client = session.client()?;
        let lock = self.paths().lock(&key.name);
        let data = self.card(session, Some(key.id), request.owner.clone()).write();
        let mut made = self.make_both(session, &client, [&lock, &holder], &data).await;
        if made == Err(Zk::NoNode) {
            // Nothing was made. Who has abandoned it meanwhile counts on that.
            self.check_buried(key)
                .inspect_err(|_| drop(session.forget(key)))?;
            for directory in [self.paths().locks(), &self.paths().holders()] {
                let making = self.connection.make_directory(&client, directory).await;
                if let Err(e) = making {
                    // Nothing was made, and nothing will be.
                    session.forget(key);
                    return Err(session.told(e, Effect::None));
                }
            }
            made = self.make_both(session, &client, [&lock, &holder], &data).await;
        }
        match made {
            Ok(czxid) => {
                let node = match czxid {
                    Some(czxid) => {
                        let name = lock.into();
                        let node = Node { name, czxid };
                        // First this: whoever ends it from here on finds it.
                        session.change(key, |r| r.node = Some(node.clone()));
                        match session.is_doubted(key) {
                            false => Some(node),
                            true => self.find_taken(session, key).await.map_err(in_line)?,
                        }
                    }
                    // The server has not said since when it is there.
                    None => self.find_taken(session, key).await.map_err(in_line)?,
                };
                match node {
                    Some(node) => handed_out(session, key, &node),
                    None => {
                        session.forget(key);
                        Err(removed())
                    }
                }
            }
            Err(Zk::NodeExists) => {
                session.forget(key);
                let (line, node) = lock.rsplit_once('/').unwrap_or(("", &lock));
                let change = self.change(session, line.to_owned(), vec![node.to_owned()]);
                Ok(Attempt::Held(Wait::new(Wake::Push(change))))
            }
            Err(e) => {
                if did_nothing(&e) {
                    session.forget(key);
                }
                Err(session.told(e, Effect::Perhaps))
            }
        }
    }

    /// Both in one step. Answers the czxid of the first. Servers up to 3.8 do not say it of what is made with others, and of what is written they do.
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
        let made = session
            .written(|| {
                let making = both.commit();
                async { making.await.map_err(cause) }
            })
            .await?;
        Ok(match made.last() {
            Some(MultiWriteResult::SetData { stat }) if session.owns(stat) => Some(stat.czxid),
            _ => None,
        })
    }

    /// The node of that request, if it has it.
    pub(crate) async fn find_taken(&self, session: &Session, key: &LeaseKey) -> Result<Option<Node>> {
        let client = session.client()?;
        let lock = self.paths().lock(&key.name);
        loop {
            match session.synced(&client, || client.get_data(&lock)).await {
                Ok((data, stat)) if session.owns(&stat) && Card::read(&data).id == Some(key.id) => {
                    let node = Node {
                        name: lock.clone().into(),
                        czxid: stat.czxid,
                    };
                    session.change(key, |r| r.node = Some(node.clone()));
                    // Or it may have been ended since it was read, by who did not find it noted.
                    if !session.is_doubted(key) {
                        return Ok(Some(node));
                    }
                }
                Ok(_) | Err(Zk::NoNode) => {
                    // What comes of it from here on is another one.
                    session.change(key, |r| r.node = None);
                    return Ok(None);
                }
                Err(e) => return Err(session.told(e, Effect::None)),
            }
        }
    }

    /// Deletes the nodes of that request.
    ///
    /// # Errors
    /// `Unknown` if they may be there yet.
    pub(crate) async fn give_back(&self, session: &Session, request: &Request, node: &Node) -> Result<Left> {
        let key = &request.key;
        let client = session.client()?;
        session.change(key, |r| r.leaving = true);
        let mut both = client.new_multi_writer();
        let told = |e| session.told(e, Effect::Perhaps);
        both.add_delete(&self.paths().holder(key.id), None)
            .map_err(told)?;
        both.add_delete(&node.name, None).map_err(told)?;
        let answer = session
            .written(|| {
                let leaving = both.commit();
                async { leaving.await.map_err(cause) }
            })
            .await;
        match answer {
            Ok(_) => {
                session.forget(key);
                Ok(Left::Gone)
            }
            // One of them has gone: both by an earlier deletion of ours, or one by somebody's hand.
            Err(Zk::NoNode) => {
                let had = self.let_go(session, key, &node.name).await?;
                self.end_own(session, &self.paths().holder(key.id)).await?;
                session.forget(key);
                Ok(match request.leaving || had {
                    true => Left::Gone,
                    false => Left::NotThere,
                })
            }
            Err(Zk::SessionExpired) => Ok(Left::NotThere),
            Err(e) => Err(told(e)),
        }
    }
}

fn handed_out(session: &Session, key: &LeaseKey, node: &Node) -> Result<Attempt> {
    let grant = session.grant(key, node).map(Attempt::Granted);
    // Either it was ended by force, and both of its nodes are gone; or it is given up just now, by who sees to it that they go.
    grant.ok_or_else(|| match session.request(key) {
        None => removed(),
        Some(_) => in_line(removed()),
    })
}

fn removed() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the lock was removed as soon as it was taken",
    )
}

/// Why nothing of several writes was done.
pub(crate) fn cause(e: MultiWriteError) -> Zk {
    e.into()
}
