//! All leases of a client live with its one lease in etcd, so one renewal of that renews them all. With many
//! leases a recent answer is enough.
//!
//! The same round trip checks their entries: one that was force-released, or deleted by another, is gone.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use dlock_core::spi::{LeaseKey, Place, Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
use dlock_core::{Error, LockName, RequestId, Result};
use etcd_client::{GetOptions, Txn, TxnOp, TxnOpResponse};
use futures::future::{join, join_all, try_join_all};

use crate::line::Line;
use crate::lock::EtcdLock;
use crate::requests::State;
use crate::session::Session;

/// How many keys are asked for in one transaction; a member takes 128 operations unless it was set up
/// otherwise.
const AT_ONCE: usize = 100;

#[async_trait]
impl Renew for EtcdLock {
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

impl EtcdLock {
    async fn renew_in(&self, session: &Arc<Session>, items: &[RenewItem]) -> Vec<Result<RenewOutcome>> {
        let mut entries = Vec::new();
        for item in items.iter().filter(|item| item.kind == RenewKind::Lease) {
            if let Some(request) = session.requests.get(&item.key)
                && let State::InLine(own) = request.state
            {
                entries.push((item.key.id, own, request.entry));
            }
        }
        let heard = async {
            match entries.len() {
                0 => Ok(()),
                1 => session.be_heard().await,
                _ => session.be_heard_recently().await,
            }
        };
        let removed = self.removed(session, &entries);
        let ((heard, removed), lines) = join(join(heard, removed), self.lines(session, items)).await;
        let mut outcomes = Vec::with_capacity(items.len());
        for item in items {
            outcomes.push(match item.kind {
                RenewKind::Lease => {
                    let own = removed.as_ref().map(|removed| removed.get(&item.key.id).copied());
                    renewed(session, &item.key, heard.clone(), own.map_err(Error::clone))
                }
                RenewKind::Queued => self.asked(session, &item.key, &lines).await,
                _ => Ok(RenewOutcome::Gone),
            });
        }
        outcomes
    }

    /// Of which of these requests the entry was removed, and in which revision it had been made.
    async fn removed(
        &self,
        session: &Session,
        entries: &[(RequestId, i64, Arc<str>)],
    ) -> Result<HashMap<RequestId, i64>> {
        let asked = entries.chunks(AT_ONCE).map(|chunk| async move {
            let count = || Some(GetOptions::new().with_count_only());
            let gets = chunk.iter().map(|(.., key)| TxnOp::get(&**key, count()));
            let gets = Txn::new().and_then(gets.collect::<Vec<_>>());
            let answer = session.read(gets).await?;
            let is_there = |op: &TxnOpResponse| matches!(op, TxnOpResponse::Get(got) if got.count() > 0);
            let there = answer.op_responses();
            let removed = chunk.iter().zip(there).filter(|(_, op)| !is_there(op));
            Ok::<Vec<_>, Error>(removed.map(|((id, own, _), _)| (*id, *own)).collect())
        });
        Ok(try_join_all(asked).await?.into_iter().flatten().collect())
    }

    async fn lines(&self, session: &Arc<Session>, items: &[RenewItem]) -> Lines {
        let queued = items.iter().filter(|item| item.kind == RenewKind::Queued);
        let names: BTreeSet<&LockName> = queued.map(|item| &item.key.name).collect();
        let read = names
            .into_iter()
            .map(|name| async move { (name.clone(), session.names(self.keys().line(name)).await) });
        join_all(read).await.into_iter().collect()
    }

    async fn asked(&self, session: &Arc<Session>, key: &LeaseKey, lines: &Lines) -> Result<RenewOutcome> {
        let state = session.requests.get(key).map(|r| r.state);
        let (Some(State::InLine(own)), Some(line)) = (state, lines.get(&key.name)) else {
            return Ok(RenewOutcome::Gone);
        };
        let line = line.as_ref().map_err(Error::clone)?;
        let Some(i) = line.entries.iter().position(|e| e.revision == own) else {
            return Ok(RenewOutcome::Gone);
        };
        Ok(match line.place(i) {
            Place::Admitted => {
                session.be_ample().await?;
                let grant = session.grant(key, own);
                grant.map_or(RenewOutcome::Gone, RenewOutcome::Granted)
            }
            Place::Behind { ahead, .. } => RenewOutcome::Queued {
                recheck_in: None,
                ahead: Some(ahead),
            },
            // The attempt that follows says why.
            Place::Mismatch(_) => RenewOutcome::Gone,
        })
    }
}

fn renewed(
    session: &Session,
    key: &LeaseKey,
    heard: Result<()>,
    removed: Result<Option<i64>>,
) -> Result<RenewOutcome> {
    let held = session.requests.get(key);
    // Of an earlier lease, or ended meanwhile.
    if !held.is_some_and(|r| matches!(r.state, State::InLine(_))) {
        return Ok(RenewOutcome::Gone);
    }
    if let Some(own) = removed? {
        session.requests.removed(key, own);
        return Ok(RenewOutcome::Gone);
    }
    heard?;
    let (from, span) = (session.deadline.confirmed(), session.deadline.span());
    Ok(RenewOutcome::Renewed(Renewal::new(from, span)))
}
