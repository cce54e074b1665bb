//! Leaving a line: one deletion.
//!
//! A node is deleted by its name, which only one request ever had, so however late a deletion arrives it meets nobody else's. It is repeated by the engine, and for what
//! failed in here by whoever asks next, until it is answered or the session is over; then the server does it.

use dlock_core::Result;
use dlock_core::spi::LeaseKey;
use futures::future::join;
use zookeeper_client::Error as Zk;

use crate::entries::marker;
use crate::failure::Effect;
use crate::lock::ZkLock;
use crate::requests::Request;
use crate::session::{Node, Session};

/// What a deletion met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The node, now or by an earlier deletion of ours that went unanswered.
    Gone,
    /// Nothing: somebody else had deleted it.
    NotThere,
}

impl ZkLock {
    /// Deletes the node of that request.
    ///
    /// # Errors
    /// `Unknown` if it may be there yet: then it is known as before.
    pub(crate) async fn leave(&self, session: &Session, request: &Request, node: &Node) -> Result<Left> {
        if !self.connection.is_plain() {
            return self.leave_line(session, request, node).await;
        }
        let client = session.client()?;
        let line = self.paths().lock(&request.key.name);
        // In this order, and in one round trip.
        let leaving = self.leave_line(session, request, node);
        join(leaving, self.remove_line(&client, &line)).await.0
    }

    async fn leave_line(&self, session: &Session, request: &Request, node: &Node) -> Result<Left> {
        if self.paths().priorities {
            return self.leave_priorities(session, request, node).await;
        }
        let key: &LeaseKey = &request.key;
        let line = self.paths().lock(&key.name);
        let client = session.client()?;
        session.change(key, |r| r.leaving = true);
        let path = format!("{line}/{}", node.name);
        let answer = match request.marked {
            None => session.written(|| client.delete(&path, None)).await,
            Some(mode) => {
                // First the entry: a mark without one is nothing, an entry without its mark is exclusive.
                let mark = format!("{line}/{}", marker(&node.name, mode));
                let sent = session.now();
                let (entry, mark) = join(client.delete(&path, None), client.delete(&mark, None)).await;
                session.heard(sent, &entry);
                session.heard(sent, &mark);
                match mark {
                    Ok(()) | Err(Zk::NoNode) => entry,
                    Err(e) => Err(e),
                }
            }
        };
        match answer {
            Ok(()) => {
                session.forget(key);
                Ok(Left::Gone)
            }
            Err(Zk::NoNode) => {
                session.forget(key);
                Ok(if request.leaving {
                    Left::Gone
                } else {
                    Left::NotThere
                })
            }
            // With it went the node.
            Err(Zk::SessionExpired) => Ok(Left::NotThere),
            Err(e) => Err(session.told(e, Effect::Perhaps)),
        }
    }
}
