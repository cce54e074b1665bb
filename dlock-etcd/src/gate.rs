//! The resource side of fencing: one key for each resource, with the tokens seen and the value.
//!
//! The key is read, judged, and written on condition that it has not changed. What could break it, and why it
//! does not:
//!
//! * *Another client writes in between.* The revision has changed, and the key is read again.
//! * *The key is deleted and made anew.* dlock never does that. An operator who does removes the fence.
//! * *The answer is lost.* It is `Unknown`: a late copy is written only if the key has not changed since.

use std::sync::Arc;

use async_trait::async_trait;
use dlock_core::{Access, Admission, Error, ErrorKind, FenceGate, FencedValue, LockName, Result, Token};
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp};
use futures::FutureExt as _;

use crate::failure::{at_the_quota, invalid};
use crate::join::read_in;
use crate::lock::EtcdLock;
use crate::session::Session;

/// A member takes requests of 1.5 MiB, unless it was set up otherwise.
const LARGEST: usize = 1_000_000;

/// How often another writer may be faster.
const TRIES: usize = 100;

/// What a key has, and in which revision it was written.
fn found(kv: Option<&KeyValue>) -> Result<(Option<FencedValue>, i64)> {
    let Some(kv) = kv else { return Ok((None, 0)) };
    let fenced = FencedValue::from_record(kv.value())?;
    Ok((Some(fenced), kv.mod_revision()))
}

impl EtcdLock {
    async fn fenced(&self, key: &str) -> Result<Option<KeyValue>> {
        let read = |session: Arc<Session>| {
            let key = key.to_owned();
            async move { Ok(session.get(key, GetOptions::new()).await?.take_kvs().pop()) }.boxed()
        };
        self.reading(read).await
    }

    async fn ask_gate(
        &self,
        name: &LockName,
        token: Token,
        access: Access,
        value: Option<&[u8]>,
    ) -> Result<Admission> {
        self.check_name(name)?;
        if value.is_some_and(|v| v.len() > LARGEST) {
            let message = format!("a value behind the gate of etcd has {LARGEST} bytes at most");
            return Err(invalid(message));
        }
        let key = self.keys().fence(name);
        let mut kv = self.fenced(&key).await?;
        for _ in 0..TRIES {
            let (fenced, revision) = found(kv.as_ref())?;
            let mut fenced = fenced.unwrap_or_else(|| FencedValue::new(Vec::new(), None, None));
            let before = fenced.clone();
            let admission = fenced.admit(token, access);
            if !admission.is_admitted() {
                return Ok(admission);
            }
            match value {
                Some(value) => fenced.value = value.to_vec(),
                // It was read by way of a majority, and stands.
                None if fenced == before => return Ok(admission),
                None => {}
            }
            let txn = Txn::new()
                .when([Compare::mod_revision(key.clone(), CompareOp::Equal, revision)])
                .and_then([TxnOp::put(key.clone(), fenced.to_record(), None)])
                .or_else([TxnOp::get(key.clone(), None)]);
            let session = self.connection.session().await?;
            let answer = session.write(txn).await.map_err(at_the_quota)?;
            if answer.succeeded() {
                return Ok(admission);
            }
            kv = read_in(&answer)?.take_kvs().pop();
        }
        let message = format!("another writer changed the value before each of {TRIES} tries: try again");
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}

#[async_trait]
impl FenceGate for EtcdLock {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.ask_gate(resource, token, access, None).await
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        let exclusive = Access::Exclusive;
        self.ask_gate(resource, token, exclusive, Some(value)).await
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        self.check_name(resource)?;
        let kv = self.fenced(&self.keys().fence(resource)).await?;
        Ok(found(kv.as_ref())?.0)
    }
}
