//! The resource side of fencing: one node for each resource, with the tokens seen and the value.
//!
//! The node is read, judged, and written on condition that it still has the version that was read. What could
//! break it, and why it does not:
//!
//! * *Another client writes in between.* The version has changed, and the node is read again.
//! * *A server lags, and shows an old node.* It is read behind a `sync`; and the write goes through the
//!   leader and meets the present version. A refusal by an old node stands: tokens only grow. So an admitted
//!   token is written even if it changes nothing.
//! * *The node is deleted and made anew.* dlock never does that. An operator who does removes the fence.
//! * *The answer is lost.* Then the node is read: it has the write, or the version of before, over which the
//!   write is repeated; both have the same content, and the server takes one of them. If others have written
//!   since, the outcome is `Unknown`.

use std::sync::Arc;

use async_trait::async_trait;
use dlock_core::{Access, Admission, Error, ErrorKind, FenceGate, FencedValue, LockName, Result, Token};
use futures::FutureExt as _;
use zookeeper_client::{Client, CreateMode, Error as Zk};

use crate::failure::invalid;
use crate::lock::ZkLock;
use crate::session::Session;

/// A request of more than 1 MiB ends its connection.
const LARGEST: usize = 1_000_000;

/// How often another writer may be faster.
const TRIES: usize = 100;

impl ZkLock {
    async fn ask_gate(
        &self,
        name: &LockName,
        token: Token,
        access: Access,
        value: Option<&[u8]>,
    ) -> Result<Admission> {
        self.check_name(name)?;
        if value.is_some_and(|v| v.len() > LARGEST) {
            return Err(invalid(format!(
                "a value behind the gate of ZooKeeper has {LARGEST} bytes at most"
            )));
        }
        let path = self.paths().fence(name);
        // What was written without an answer, and over which version.
        let mut unanswered: Option<(Vec<u8>, Option<i32>)> = None;
        for _ in 0..TRIES {
            let found = self.look_behind(&path).await;
            let found = found.map_err(|e| match unanswered {
                Some(_) => perhaps_stored(e),
                None => e,
            })?;
            let (mut fenced, version) = match &found {
                Some((data, version)) => (FencedValue::from_record(data)?, Some(*version)),
                None => (FencedValue::new(Vec::new(), None, None), None),
            };
            if let Some((data, over)) = unanswered.take() {
                let next = Some(over.map_or(0, |v| v.wrapping_add(1)));
                if version == next && found.is_some_and(|(found, _)| found == data) {
                    return Ok(Admission::Admitted);
                }
                // At the version of before nothing has been done since, and at the next one somebody else did
                // it in our place.
                if version != over && version != next && value.is_some() {
                    return Err(perhaps_stored(Error::new(
                        ErrorKind::Unavailable,
                        "the answer to the write was lost, and another writer has changed the value since",
                    )));
                }
            }
            let admission = fenced.admit(token, access);
            if !admission.is_admitted() {
                return Ok(admission);
            }
            if let Some(value) = value {
                fenced.value = value.to_vec();
            }
            let data = fenced.to_record();
            match self.store(&path, &data, version).await? {
                Stored::Done => return Ok(Admission::Admitted),
                Stored::Not => {}
                Stored::Perhaps => unanswered = Some((data, version)),
            }
        }
        let message =
            format!("another writer changed the fenced value before each of {TRIES} tries: try again");
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// The data of a node and their version, as the leader has them.
    async fn look_behind(&self, path: &str) -> Result<Option<(Vec<u8>, i32)>> {
        let read = |session: Arc<Session>, client: Arc<Client>| {
            async move { session.data(&client, path).await }.boxed()
        };
        let found = self.reading(read).await?;
        Ok(found.map(|(data, stat)| (data, stat.version)))
    }

    /// Writes over that version, or makes the node.
    async fn store(&self, path: &str, data: &[u8], version: Option<i32>) -> Result<Stored> {
        let session = self.connection.session().await?;
        let client = session.client()?;
        let options = self.connection.node(CreateMode::Persistent);
        let written = session
            .written(|| async {
                match version {
                    Some(version) => client.set_data(path, data, Some(version)).await.map(drop),
                    None => client.create(path, data, &options).await.map(drop),
                }
            })
            .await;
        match (written, version) {
            (Ok(()), _) => Ok(Stored::Done),
            // Somebody else was quicker; or the session was over, and nothing is done in it.
            (Err(Zk::BadVersion | Zk::NodeExists | Zk::SessionExpired | Zk::SessionMoved), _)
            | (Err(Zk::NoNode), Some(_)) => Ok(Stored::Not),
            (Err(Zk::NoNode), None) => {
                let fences = self.paths().fences();
                let making = self.connection.make_directory(&client, &fences);
                making.await.map_err(|e| session.failed(e))?;
                Ok(Stored::Not)
            }
            (Err(e), _) => match session.perhaps(e) {
                e if e.kind() == ErrorKind::Unknown => Ok(Stored::Perhaps),
                e => Err(e),
            },
        }
    }
}

/// What became of a write.
enum Stored {
    Done,
    Not,
    Perhaps,
}

fn perhaps_stored(e: Error) -> Error {
    let message = "whether the fenced value was stored is not known";
    Error::new(ErrorKind::Unknown, message).with_source(e)
}

#[async_trait]
impl FenceGate for ZkLock {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.ask_gate(resource, token, access, None).await
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        let exclusive = Access::Exclusive;
        self.ask_gate(resource, token, exclusive, Some(value)).await
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        self.check_name(resource)?;
        let found = self.look_behind(&self.paths().fence(resource)).await?;
        found.map(|(data, _)| FencedValue::from_record(&data)).transpose()
    }
}
