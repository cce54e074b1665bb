//! Leases live with their session, so one write that confirms the session renews them all.
//!
//! With many leases a recent answer is enough: they last from when its write was sent.
//!
//! A lease that is renewed alone is also looked up, in the same round trip: it is gone if its node was
//! deleted, or if it was force-released before the renewal was sent. Other nodes of its queue do not matter:
//! a foreign one blocks newcomers, and ends no hold. For many leases that would be a look for each.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use dlock_core::spi::{LeaseKey, Place, Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
use dlock_core::{Error, LockName, Result};
use futures::future::{join, join_all};

use crate::line::{Line, place_of};
use crate::lock::ZkLock;
use crate::session::Session;

#[async_trait]
impl Renew for ZkLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let renewed = match self.connection.session().await {
            Ok(session) => self.renew_in(&session, items).await,
            Err(e) => vec![Err(e); items.len()],
        };
        let named = |(item, renewed): (&RenewItem, Result<RenewOutcome>)| {
            renewed.unwrap_or_else(|e| RenewOutcome::Failed(e.with_name(&item.key.name)))
        };
        items.iter().zip(renewed).map(named).collect()
    }
}

/// One list for each name that is waited for.
type Lines = HashMap<LockName, Result<Line>>;

fn renewed(session: &Session, key: &LeaseKey, heard: Result<()>) -> Result<RenewOutcome> {
    // Of an earlier session, or ended by an operator.
    if session.requests.get(key).is_none() {
        return Ok(RenewOutcome::Gone);
    }
    heard?;
    let (from, span) = (session.deadline.confirmed(), session.deadline.span());
    Ok(RenewOutcome::Renewed(Renewal::new(from, span)))
}

impl ZkLock {
    async fn renew_in(&self, session: &Arc<Session>, items: &[RenewItem]) -> Vec<Result<RenewOutcome>> {
        if let [item] = items
            && item.kind == RenewKind::Lease
        {
            return vec![self.renewed_alone(session, &item.key).await];
        }
        let has_leases = items.iter().any(|item| item.kind == RenewKind::Lease);
        let heard = async {
            match has_leases {
                true => session.be_heard_recently().await,
                false => Ok(()),
            }
        };
        let (heard, lines) = join(heard, self.lines(session, items)).await;
        let mut outcomes = Vec::with_capacity(items.len());
        for item in items {
            outcomes.push(match item.kind {
                // It was found to have gone, and what is left of it is to be deleted.
                RenewKind::Lease if session.requests.get(&item.key).is_some_and(|r| r.leaving) => {
                    self.renewed_alone(session, &item.key).await
                }
                RenewKind::Lease => renewed(session, &item.key, heard.clone()),
                _ => self.asked(session, &item.key, &lines).await,
            });
        }
        outcomes
    }

    async fn renewed_alone(&self, session: &Session, key: &LeaseKey) -> Result<RenewOutcome> {
        let Some(request) = session.requests.get(key) else {
            return Ok(RenewOutcome::Gone);
        };
        let Some(node) = &request.node else {
            return Ok(RenewOutcome::Gone);
        };
        let client = session.client()?;
        // The node that is there as long as it holds, and has its token.
        let lock = self.paths().lock(&key.name);
        let path = match self.paths().unfair {
            true => lock,
            false => format!("{lock}/{}", node.name),
        };
        let (heard, stat) = join(session.be_heard(), client.check_stat(&path)).await;
        let stat = stat.map_err(|e| session.failed(e))?;
        heard?;
        if stat.is_some_and(|stat| stat.czxid == node.czxid) {
            return renewed(session, key, Ok(()));
        }
        self.forget_hold(session, &request).await?;
        Ok(RenewOutcome::Gone)
    }

    async fn lines(&self, session: &Arc<Session>, items: &[RenewItem]) -> Lines {
        let queued = items.iter().filter(|item| item.kind != RenewKind::Lease);
        let names: BTreeSet<&LockName> = queued.map(|item| &item.key.name).collect();
        let read = names.into_iter().map(|name| async move {
            let line = self.read_line(session, &self.paths().lock(name)).await;
            (name.clone(), line)
        });
        join_all(read).await.into_iter().collect()
    }

    async fn asked(&self, session: &Arc<Session>, key: &LeaseKey, lines: &Lines) -> Result<RenewOutcome> {
        let node = session.requests.get(key).and_then(|r| r.node);
        let (Some(node), Some(line)) = (node, lines.get(&key.name)) else {
            return Ok(RenewOutcome::Gone);
        };
        Ok(match place_of(line.as_ref().map_err(Error::clone)?, &node.name) {
            Some(Place::Admitted) => {
                session.be_ample().await?;
                let grant = session.grant(key, &node);
                grant.map_or(RenewOutcome::Gone, RenewOutcome::Granted)
            }
            Some(Place::Behind { ahead, .. }) => RenewOutcome::Queued {
                recheck_in: None,
                ahead: Some(ahead),
            },
            // The attempt that follows says why.
            _ => RenewOutcome::Gone,
        })
    }
}
