//! Leases live with their session, so renewing them is hearing of it: one write for all, whatever their
//! number.
//!
//! For many, an answer will do that came a moment ago: they last from when its write was sent.
//!
//! A lease that is renewed alone is looked for as well, in the same round trip: one whose node somebody has
//! deleted is gone, and one that was ended by force before the renewal was sent. What else is in its line is
//! nothing to it: a foreign node there keeps newcomers out, and ends nobody. Of many leases, that would be a
//! look for each.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use dlock_core::spi::{LeaseKey, Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
use dlock_core::{LockName, Result};
use futures::future::{join, join_all};

use crate::line::{Line, Place};
use crate::lock::ZkLock;
use crate::requests::Node;
use crate::session::Session;

#[async_trait]
impl Renew for ZkLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let session = match self.connection.session().await {
            Ok(session) => session,
            Err(e) => {
                let failed = |item: &RenewItem| RenewOutcome::Failed(e.clone().with_name(&item.key.name));
                return items.iter().map(failed).collect();
            }
        };
        if let [item] = items
            && item.kind == RenewKind::Lease
        {
            return vec![self.renewed_alone(&session, &item.key).await];
        }
        let has_leases = items.iter().any(|item| item.kind == RenewKind::Lease);
        let heard = async {
            match has_leases {
                true => session.be_heard_recently().await,
                false => Ok(()),
            }
        };
        let (heard, lines) = join(heard, self.lines(&session, items)).await;
        let mut outcomes = Vec::with_capacity(items.len());
        for item in items {
            let outcome = match item.kind {
                // It was found to have gone, and what is left of it is to be deleted.
                RenewKind::Lease if session.requests.get(&item.key).is_some_and(|r| r.leaving) => {
                    self.renewed_alone(&session, &item.key).await
                }
                RenewKind::Lease => renewed(&session, &item.key, &heard),
                _ => self.asked(&session, &item.key, &lines).await,
            };
            outcomes.push(outcome);
        }
        outcomes
    }
}

/// One list for each name that is waited for.
type Lines = HashMap<LockName, Result<Line>>;

fn renewed(session: &Session, key: &LeaseKey, heard: &Result<()>) -> RenewOutcome {
    match (session.requests.get(key), heard) {
        // Of an earlier session, or ended by an operator.
        (None, _) => RenewOutcome::Gone,
        (Some(_), Ok(())) => RenewOutcome::Renewed(Renewal::new(
            session.deadline.confirmed(),
            session.deadline.span(),
        )),
        (Some(_), Err(e)) => RenewOutcome::Failed(e.clone().with_name(&key.name)),
    }
}

impl ZkLock {
    async fn renewed_alone(&self, session: &Session, key: &LeaseKey) -> RenewOutcome {
        let failed = |e: dlock_core::Error| RenewOutcome::Failed(e.with_name(&key.name));
        let Some(request) = session.requests.get(key) else {
            return RenewOutcome::Gone;
        };
        let Some(node) = &request.node else {
            return RenewOutcome::Gone;
        };
        let client = match session.client() {
            Ok(client) => client,
            Err(e) => return failed(e),
        };
        let path = self.proof(key, node);
        let (heard, stat) = join(session.be_heard(), client.check_stat(&path)).await;
        match (stat, heard) {
            (Err(e), _) => failed(session.failed(e)),
            (Ok(_), Err(e)) => failed(e),
            (Ok(Some(stat)), Ok(())) if session.owns(&stat) && stat.czxid == node.czxid => {
                renewed(session, key, &Ok(()))
            }
            (Ok(_), Ok(())) => match self.forget_hold(session, &request).await {
                Ok(()) => RenewOutcome::Gone,
                Err(e) => failed(e),
            },
        }
    }

    /// The node that is there as long as it holds, and has its token.
    fn proof(&self, key: &LeaseKey, node: &Node) -> String {
        let lock = self.paths().lock(&key.name);
        match self.paths().unfair {
            true => lock,
            false => format!("{lock}/{}", node.name),
        }
    }

    async fn lines(&self, session: &Arc<Session>, items: &[RenewItem]) -> Lines {
        let mut names: Vec<&LockName> = items
            .iter()
            .filter(|item| item.kind != RenewKind::Lease)
            .map(|item| &item.key.name)
            .collect();
        names.sort_unstable();
        names.dedup();
        let read = names.into_iter().map(|name| async move {
            let line = self.read_line(session, &self.paths().lock(name)).await;
            (name.clone(), line)
        });
        join_all(read).await.into_iter().collect()
    }

    async fn asked(&self, session: &Arc<Session>, key: &LeaseKey, lines: &Lines) -> RenewOutcome {
        let named = |e: dlock_core::Error| RenewOutcome::Failed(e.with_name(&key.name));
        let Some(node) = session.requests.get(key).and_then(|r| r.node) else {
            return RenewOutcome::Gone;
        };
        let line = match lines.get(&key.name) {
            Some(Ok(line)) => line,
            Some(Err(e)) => return named(e.clone()),
            None => return RenewOutcome::Gone,
        };
        match line.place(&node.name) {
            Some(Place::Admitted) => match session.be_ample().await {
                Ok(()) => match session.grant(key, &node) {
                    Some(grant) => RenewOutcome::Granted(grant),
                    None => RenewOutcome::Gone,
                },
                Err(e) => named(e),
            },
            Some(Place::Behind { ahead, .. }) => RenewOutcome::Queued {
                recheck_in: None,
                ahead: Some(ahead),
            },
            // The attempt that follows says why.
            _ => RenewOutcome::Gone,
        }
    }
}
