//! Downgrade in place.
//!
//! The entry of the holder is rewritten unchanged. That raises its version, which marks it as a reader, and
//! wakes the readers that watch it, which it now admits. It keeps its place and its token.
//!
//! Why there is no upgrade: an upgrade needs a new token, and the writers that wait behind the reader already
//! have smaller ones, which they would be granted with later.

use async_trait::async_trait;
use dlock_core::spi::{Converted, InLine as _, LeaseKey, RwLock};
use dlock_core::{Error, LossReason, Mode, Result};
use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};

use crate::failure::{at_the_quota, unsupported};
use crate::lock::EtcdLock;
use crate::requests::{Request, State};
use crate::session::Session;

#[async_trait]
impl RwLock for EtcdLock {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let session = self.connection.session().await?;
        let _in_call = session.requests.call(lease)?;
        let lost = || Error::lost(LossReason::Refused);
        let request = session.requests.get(lease).filter(|r| r.granted);
        let request = request.ok_or_else(lost)?;
        let State::InLine(own) = request.state else {
            return Err(lost());
        };
        let is = match request.converted {
            true => Mode::READER,
            false => request.mode,
        };
        match (is, to) {
            _ if is == to => {}
            (Mode::Exclusive, Mode::READER) => self.mark(&session, &request, own).await?,
            (Mode::Exclusive, _) => return Err(unsupported("an etcd lock cannot be downgraded to a permit")),
            (_, Mode::Exclusive) => return Err(unsupported("an etcd reader cannot be upgraded")),
            _ => return Err(is.mismatch(to)),
        }
        // Nothing more is asked: an error would say that it was not converted.
        session.grant(lease, own).map(Converted::Done).ok_or_else(lost)
    }
}

impl EtcdLock {
    async fn mark(&self, session: &Session, request: &Request, own: i64) -> Result<()> {
        // All waiters of another class of sharing must be seen.
        let line = session.names(self.keys().line(&request.key.name)).await?;
        let mut others = line.entries.iter().filter(|e| e.revision != own);
        if let Some(other) = others.find(|e| !e.mode().is_exclusive() && e.mode() != Mode::READER) {
            return Err(other.mode().mismatch(Mode::READER));
        }
        let entry = &*request.entry;
        let as_it_is = PutOptions::new().with_ignore_value().with_ignore_lease();
        let txn = Txn::new()
            .when([Compare::create_revision(entry, CompareOp::Equal, own)])
            .and_then([TxnOp::put(entry, "", Some(as_it_is))]);
        // Asked again after an answer that was lost, it is written again.
        let answer = session.write(txn).await.map_err(at_the_quota)?;
        match answer.succeeded() {
            true => {
                session.requests.change(&request.key, |r| r.converted = true);
                Ok(())
            }
            false => {
                session.requests.forget(&request.key);
                Err(Error::lost(LossReason::Refused))
            }
        }
    }
}
