//! Downgrade in place.
//!
//! A second node beside the holder's, its marker, makes it a reader. It is in the list that all clients read
//! anyway. The same step rewrites the data of the first node, which wakes its watchers: those are the waiters
//! that it now admits.
//!
//! Why there is no upgrade: an upgrade needs a new token, and the writers that wait behind the reader already
//! have smaller ones, which they would be granted with later.

use async_trait::async_trait;
use dlock_core::spi::{Converted, LeaseKey, RwLock};
use dlock_core::{Error, LossReason, Mode, Result};
use zookeeper_client::{CreateMode, Error as Zk};

use crate::lock::{ZkLock, unsupported};
use crate::node::marker;
use crate::requests::Node;
use crate::session::Session;

#[async_trait]
impl RwLock for ZkLock {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let session = self.connection.session().await?;
        let _in_call = session.requests.call(lease)?;
        let lost = || Error::lost(LossReason::Refused);
        let request = session.requests.get(lease).filter(|r| r.granted && !r.leaving);
        let request = request.ok_or_else(lost)?;
        let node = request.node.ok_or_else(lost)?;
        let is = request.converted.unwrap_or(request.mode);
        if is != to {
            match (is, to) {
                (Mode::Exclusive, Mode::Shared { .. }) => self.mark(&session, lease, &node, to).await?,
                (_, Mode::Exclusive) => {
                    return Err(unsupported("a ZooKeeper reader cannot be upgraded"));
                }
                _ => return Err(is.mismatch(to)),
            }
        }
        session.be_heard().await?;
        session.grant(lease, &node).map(Converted::Done).ok_or_else(lost)
    }
}

impl ZkLock {
    async fn mark(&self, session: &Session, lease: &LeaseKey, node: &Node, to: Mode) -> Result<()> {
        let perhaps = |e| session.perhaps(e);
        let line = self.paths().lock(&lease.name);
        let path = format!("{line}/{}", node.name);
        let client = session.client()?;
        // Behind a `sync`, so that all waiters of another class of sharing are seen.
        let others = self.line(session.children(&client, &line).await?)?;
        let mut others = others.entries.iter();
        if let Some(other) = others.find(|e| !e.mode.is_exclusive() && e.mode != to) {
            return Err(other.mode.mismatch(to));
        }
        let (data, _) = client.get_data(&path).await.map_err(|e| match e {
            Zk::NoNode => Error::lost(LossReason::Refused),
            e => session.failed(e),
        })?;
        let mut both = client.new_multi_writer();
        let options = self.connection.node(CreateMode::Ephemeral);
        let marker = format!("{line}/{}", marker(&node.name, to));
        both.add_set_data(&path, &data, None).map_err(perhaps)?;
        both.add_create(&marker, &[], &options).map_err(perhaps)?;
        // Before it is sent: a release removes the marker as well.
        session.requests.change(lease, |r| r.marked = Some(to));
        match session.commit(both).await {
            // It was there: an earlier one of ours that went unanswered.
            Ok(_) | Err(Zk::NodeExists) => {
                session.requests.change(lease, |r| r.converted = Some(to));
                Ok(())
            }
            Err(Zk::NoNode) => Err(Error::lost(LossReason::Refused)),
            // Asked again, it is marked again.
            Err(e) => Err(perhaps(e)),
        }
    }
}
