//! Force-release.
//!
//! The entries of the holders are deleted, and in the same transaction a key is written that says so: from
//! its revision a watcher knows that these were not releases. A holder learns of it at its next renewal,
//! which reads its entry.
//!
//! What could break it, and why it does not:
//!
//! * *A holder releases meanwhile, and others are granted.* The holders are ended only if all are still
//!   there; otherwise the queue is read again.
//! * *The operator dies between two steps.* Some holds are ended, the others stay; a repeated force-release
//!   ends them.
//! * *The store is out of space.* It accepts only deletions. Then watchers see releases.

use dlock_core::{Error, ErrorKind, LockName, Result};
use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};

use crate::lock::EtcdLock;
use crate::session::Session;

/// How many are ended in one step at the most: a member takes 128 operations in a transaction.
const AT_ONCE: usize = 100;

/// How often the line may change under it.
const TRIES: usize = 16;

/// How far it has come.
#[derive(Default)]
struct Ended {
    count: usize,
    /// There is no space for the key that says so.
    is_full: bool,
}

impl EtcdLock {
    pub(crate) async fn end_holders(&self, session: &Session, name: &LockName) -> Result<u32> {
        let mut ended = Ended::default();
        match self.end_all(session, name, &mut ended).await {
            Ok(()) => Ok(u32::try_from(ended.count).unwrap_or(u32::MAX)),
            Err(e) if ended.count > 0 || ended.is_full => {
                let message = "holders of the lock may have been ended, and others may be holding it yet";
                Err(Error::new(ErrorKind::Unknown, message).with_source(e))
            }
            Err(e) => Err(e),
        }
    }

    async fn end_all(&self, session: &Session, name: &LockName, ended: &mut Ended) -> Result<()> {
        let line = self.keys().line(name);
        let now = session.names(line.clone()).await?;
        // The present holders, and none that are granted after them.
        let mut left: Vec<_> = now.entries[..now.admitted()].to_vec();
        let mut tries = TRIES;
        while let Some(step) = left.chunks(AT_ONCE).next() {
            if tries == 0 {
                let message = "the holders of the lock changed again and again while they were ended";
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            let is_there = |revision, key: &[u8]| Compare::create_revision(key, CompareOp::Equal, revision);
            let all: Vec<_> = step.iter().map(|e| is_there(e.revision, &e.key)).collect();
            let mut ops: Vec<_> = step.iter().map(|e| TxnOp::delete(e.key.clone(), None)).collect();
            if !ended.is_full {
                let put = PutOptions::new().with_lease(session.lease);
                ops.push(TxnOp::put(self.keys().forced(name), "", Some(put)));
            }
            let (many, was_full) = (step.len(), ended.is_full);
            match session.write(Txn::new().when(all).and_then(ops)).await {
                Ok(answer) if answer.succeeded() => {
                    left.drain(..many);
                    ended.count += many;
                    continue;
                }
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::LimitReached && !was_full => ended.is_full = true,
                Err(e) => return Err(e),
            }
            tries -= 1;
            let now = session.names(line.clone()).await?;
            let before = left.len();
            left.retain(|e| now.entries.iter().any(|n| n.revision == e.revision));
            if ended.is_full && !was_full {
                // The write that exceeds the quota is carried out before it is refused; or they went by
                // themselves.
                ended.count += before - left.len();
            }
        }
        Ok(())
    }
}
