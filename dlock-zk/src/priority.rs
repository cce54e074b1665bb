//! Locks with priorities: the line only orders, and one node says who has it.
//!
//! Sorted by priority a line says nothing about who holds: somebody more urgent may come at any time, and would be first beside a holder. So who is first in the line *takes* the lock: it
//! makes the ephemeral node `held`, which there is once. Its node in the line stays meanwhile, and both are deleted in one step. The token is the transaction that made `held`: they are made one
//! after the other, so tokens grow in the order of the grants, whatever the priorities were.
//!
//! ```text
//! /dlock/locks/repairs
//!   4c1f...e0-2a-q5-0000000007         the priority 5
//!   91ab...77-3-q9-0000000008          comes before it
//!   held                               in its data stands who has it
//! ```
//!
//! Who is not first watches the one before it in that order. Who is first while somebody behind it holds watches `held`; of these there is one for each priority at the most, so
//! a release wakes so many, and lets one in.
//!
//! Whether a name has priorities is not written anywhere else: it is what its line consists of. Of two who use a name in different ways the one that came later finds the other before it, or `held`, and is
//! refused. What is read from a node above the line could be old. And who has just taken the lock finds who came between its place and that, and gives it back: so the line is read behind the take, in the same
//! round trip.
//!
//! What could break it, and why it does not:
//!
//! * *Two are first*, each by the list that it has. Both make `held`, and one is refused.
//! * *It was withdrawn meanwhile, or ended.* `held` is made on condition that the own node is in the line.
//! * *The answer is lost.* That it was tried is noted before it is sent. Whoever asks again, or gives it up, reads `held` behind a `sync`: what is not there by then does not come, see
//!   [`enter`](crate::enter).
//! * *A release is sent again, and somebody else has it by then.* The own node has gone, which is deleted in the same step, so nothing is.
//! * *It is given up while it is taken.* Its node goes first: then it is not taken any more. If it was before, that is read behind a `sync`, and `held` is deleted. A deletion of `held` alone
//!   is sent only after `held` was seen to be the own one by all that was sent before, and on condition that nobody was ended by force since, so none that is late meets somebody else's: see
//!   [`remains`](crate::remains).
//! * *Somebody more urgent comes while one who is first takes it.* It was later.
//! * *One without a priority came while it was taken, and does not read the line before the lock is free again*, since its answers were lost. Then it is first in the line, by a token from before that of `held`. But
//!   whoever had `held` found it in the line, and handed nothing out. Who comes after `held` was made has a later token.
//! * *Nobody is woken.* Who waits has watched somebody before it, or `held`. It cannot be first before that one has gone, and when it has, it looks again.

use std::sync::Arc;

use dlock_core::spi::{Acquire, Attempt, Grant, LeaseKey, Queueing, Wait, Wake};
use dlock_core::{Error, Result};
use futures::future::join;
use zookeeper_client::{CreateMode, Error as Zk, MultiWriteResult};

use crate::address::invalid;
use crate::entries::{Card, HELD};
use crate::failure::Effect;
use crate::leave::Left;
use crate::line::{Line, Place};
use crate::lock::{ZkLock, in_line};
use crate::remains::ANY;
use crate::requests::Request;
use crate::session::{Node, Session};
use crate::single::cause;

/// Where a request is by its priority.
pub(crate) enum Turn {
    Granted(Grant),
    Behind {
        ahead: u32,
        watch: Vec<String>,
    },
    /// The name is used without priorities, or is not by them.
    OtherOrder,
    /// Its node is not in the line.
    Gone,
}

/// What came of taking it.
enum Taken {
    Had(Node),
    /// Somebody else was quicker.
    Not,
    /// It has it, and somebody without a priority is in the line.
    OtherOrder,
    Gone,
}

impl ZkLock {
    /// What that line says of a request with a priority; if it is first, takes the lock.
    ///
    /// # Errors
    /// `Unknown` if it may have been taken.
    pub(crate) async fn turn_by_priority(
        &self,
        session: &Session,
        key: &LeaseKey,
        node: &Node,
        mut line: Line,
    ) -> Result<Turn> {
        loop {
            // An earlier try may have had it.
            if line.is_held() && session.request(key).is_some_and(|r| r.taking) {
                match self.had(session, key, node).await? {
                    Taken::Had(node) => {
                        session.be_ample().await.map_err(in_line)?;
                        return Ok(handed_out(session, key, &node));
                    }
                    Taken::OtherOrder => return Ok(Turn::OtherOrder),
                    Taken::Not | Taken::Gone => {}
                }
            }
            match line.place(&node.name) {
                Some(Place::Next) => match self.take_held(session, key, node).await? {
                    Taken::Had(node) => return Ok(handed_out(session, key, &node)),
                    Taken::OtherOrder => return Ok(Turn::OtherOrder),
                    Taken::Not => line = self.read_line_of_now(session, key).await.map_err(in_line)?,
                    Taken::Gone => return Ok(Turn::Gone),
                },
                Some(Place::Behind { ahead, watch }) => return Ok(Turn::Behind { ahead, watch }),
                Some(_) => return Ok(Turn::OtherOrder),
                None => return Ok(Turn::Gone),
            }
        }
    }

    pub(crate) async fn answer_by_priority(
        &self,
        session: &Arc<Session>,
        request: &Acquire,
        node: &Node,
        line: Line,
    ) -> Result<Option<Attempt>> {
        let key = &request.key;
        Ok(Some(
            match self.turn_by_priority(session, key, node, line).await? {
                Turn::Granted(grant) => Attempt::Granted(grant),
                Turn::Behind { ahead, watch } if request.queue == Queueing::Join => {
                    let turn = self.turn(session, key, node, watch);
                    Attempt::Queued(Wait::new(Wake::Push(turn)).ahead(ahead))
                }
                Turn::Behind { watch, .. } => {
                    self.withdraw(session, request, node).await?;
                    let line = self.paths().lock(&key.name);
                    Attempt::Held(Wait::new(Wake::Push(self.change(session, line, watch))))
                }
                Turn::OtherOrder => {
                    self.withdraw(session, request, node).await?;
                    return Err(other_order());
                }
                Turn::Gone => return Ok(None),
            },
        ))
    }

    fn held(&self, key: &LeaseKey) -> String {
        format!("{}/{HELD}", self.paths().lock(&key.name))
    }

    /// Makes `held`, if nobody has it and the own node is in the line. Servers up to 3.8 do not say the czxid of what is made with others, and of what is written they do.
    async fn take_held(&self, session: &Session, key: &LeaseKey, node: &Node) -> Result<Taken> {
        let told = |e| session.told(e, Effect::Perhaps);
        let client = session.client()?;
        let (held, line) = (self.held(key), self.paths().lock(&key.name));
        let owner = session.request(key).and_then(|r| r.owner);
        let data = self.card(session, Some(key.id), owner).write();
        let options = self.connection.node(CreateMode::Ephemeral);
        let mut all = client.new_multi_writer();
        // It is there. Somebody may have written to it by hand.
        all.add_check_version(&format!("{line}/{}", node.name), ANY)
            .map_err(told)?;
        all.add_create(&held, &[], &options).map_err(told)?;
        all.add_set_data(&held, &data, None).map_err(told)?;
        let Some(tried_before) = session.begin_taking(key) else {
            return Ok(Taken::Gone);
        };
        let taking = session.written(|| {
            let taking = all.commit();
            async { taking.await.map_err(cause) }
        });
        // In this order, and in one round trip.
        let (answer, listed) = join(taking, async { client.list_children(&line).await }).await;
        match answer {
            Ok(made) => match made.last() {
                Some(MultiWriteResult::SetData { stat }) if session.owns(stat) => {
                    let node = has(session, key, node, stat.czxid);
                    let line = match listed {
                        Ok(children) => self.line(&children)?,
                        Err(Zk::NoNode) => Line::default(),
                        Err(e) => return Err(in_line(session.told(e, Effect::None))),
                    };
                    Ok(taken(&line, node))
                }
                _ => match self.had(session, key, node).await? {
                    Taken::Not => Ok(Taken::Gone),
                    taken => Ok(taken),
                },
            },
            Err(Zk::NodeExists) if tried_before => self.had(session, key, node).await,
            Err(Zk::NodeExists) => Ok(Taken::Not),
            Err(Zk::NoNode) => Ok(Taken::Gone),
            Err(e) => Err(told(e)),
        }
    }

    /// What came of an earlier try.
    async fn had(&self, session: &Session, key: &LeaseKey, node: &Node) -> Result<Taken> {
        let Some(node) = self.hold_of(session, key, node).await.map_err(in_line)? else {
            return Ok(Taken::Not);
        };
        if session.request(key).is_some_and(|r| r.granted) {
            return Ok(Taken::Had(node));
        }
        let line = self.read_line_of_now(session, key).await.map_err(in_line)?;
        Ok(taken(&line, node))
    }

    /// Whether the request has it by now.
    async fn hold_of(&self, session: &Session, key: &LeaseKey, node: &Node) -> Result<Option<Node>> {
        let client = session.client()?;
        let held = self.held(key);
        match session.synced(&client, || client.get_data(&held)).await {
            Ok((data, stat)) if session.owns(&stat) && Card::read(&data).id == Some(key.id) => {
                Ok(Some(has(session, key, node, stat.czxid)))
            }
            Ok(_) | Err(Zk::NoNode) => Ok(None),
            Err(e) => Err(session.told(e, Effect::None)),
        }
    }

    /// Ends a request: its node, and `held` if it has that.
    ///
    /// # Errors
    /// `Unknown` if one of them may be there yet.
    pub(crate) async fn leave_priorities(
        &self,
        session: &Session,
        request: &Request,
        node: &Node,
    ) -> Result<Left> {
        let key = &request.key;
        let told = |e| session.told(e, Effect::Perhaps);
        let client = session.client()?;
        let path = format!("{}/{}", self.paths().lock(&key.name), node.name);
        let held = self.held(key);
        // From here on it is neither taken nor handed out.
        session.change(key, |r| r.leaving = true);
        let granted = session.request(key).is_some_and(|r| r.granted);
        if granted {
            let mut both = client.new_multi_writer();
            both.add_delete(&path, None).map_err(told)?;
            both.add_delete(&held, None).map_err(told)?;
            let answer = session
                .written(|| {
                    let leaving = both.commit();
                    async { leaving.await.map_err(cause) }
                })
                .await;
            match answer {
                Ok(_) => {
                    session.forget(key);
                    return Ok(Left::Gone);
                }
                // One of them has gone: by an earlier deletion of ours, or by somebody's hand.
                Err(Zk::NoNode) => {}
                Err(Zk::SessionExpired) => return Ok(Left::NotThere),
                Err(e) => return Err(told(e)),
            }
        }
        let was_there = match session.written(|| client.delete(&path, None)).await {
            Ok(()) => true,
            Err(Zk::NoNode) => false,
            Err(Zk::SessionExpired) => return Ok(Left::NotThere),
            Err(e) => return Err(told(e)),
        };
        // Without its node nothing more is taken for it. What was, is seen.
        let may_have = session.request(key).is_some_and(|r| r.taking);
        if may_have {
            self.let_go(session, key, &held).await?;
        }
        session.forget(key);
        // Of a hold a part was gone, and not by us: then it had ended.
        Ok(match request.leaving || was_there && !granted {
            true => Left::Gone,
            false => Left::NotThere,
        })
    }
}

/// Whether the lock may be handed out to who took it, by the line as it was after that.
fn taken(line: &Line, node: Node) -> Taken {
    match line.is_by_priority() {
        true => Taken::Had(node),
        false => Taken::OtherOrder,
    }
}

/// Notes that it has it: its node, with the token.
fn has(session: &Session, key: &LeaseKey, node: &Node, czxid: i64) -> Node {
    let node = Node {
        name: node.name.clone(),
        czxid,
    };
    session.change(key, |r| r.node = Some(node.clone()));
    node
}

fn handed_out(session: &Session, key: &LeaseKey, node: &Node) -> Turn {
    session.grant(key, node).map_or(Turn::Gone, Turn::Granted)
}

pub(crate) fn other_order() -> Error {
    invalid("the lock is in use both with priorities and without; all users of a name must agree")
}
