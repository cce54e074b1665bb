//! The connection to one member, and the requests on it.
//!
//! A client uses one member at a time. If that one fails it moves to the next, with the same lease, which
//! belongs to the cluster. The driver could spread requests over several members: then a paused one would
//! delay every n-th request, and one member may not know yet what another has reported.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use etcd_client::{Client, DeleteResponse, Error as Etcd, GetOptions, GetResponse, Txn, TxnResponse};
use event_listener::Event;
use futures::future::{Either, select};

use crate::failure::is_login_old;

/// The most that an answer may have, in bytes: of gRPC it is 4 MiB, which a long line of long names exceeds.
pub(crate) const LARGEST_ANSWER: usize = 64 << 20;

/// A connection to one member.
pub(crate) struct Link {
    pub(crate) client: Client,
    /// Which member, for messages.
    pub(crate) at: Arc<str>,
    broken: AtomicBool,
    changed: Event,
}

impl Link {
    pub(crate) fn new(client: Client, at: Arc<str>) -> Self {
        Self {
            client,
            at,
            broken: AtomicBool::new(false),
            changed: Event::new(),
        }
    }

    /// Nothing is waited for any more that is on its way.
    pub(crate) fn break_off(&self) {
        self.broken.store(true, Ordering::Release);
        self.changed.notify(usize::MAX);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Completes when it is broken.
    pub(crate) async fn is_gone(&self) {
        while !self.is_broken() {
            let changed = self.changed.listen();
            if !self.is_broken() {
                changed.await;
            }
        }
    }

    /// The answer to a request, unless the connection breaks before.
    pub(crate) async fn answer<T>(
        &self,
        asking: impl Future<Output = Result<T, Etcd>> + Send + Unpin,
    ) -> Result<T, Etcd> {
        // Pinned by the caller: each layer would hold its 2 kB twice. Only what connects needs tokio around
        // it, since a request is handed to the task of its connection.
        match select(asking, pin!(self.is_gone())).await {
            Either::Left((answer, _)) => answer.inspect_err(|e| {
                if is_login_old(e) {
                    // The next connection has another login.
                    self.break_off();
                }
            }),
            Either::Right(_) => Err(Etcd::IoError(std::io::ErrorKind::ConnectionAborted.into())),
        }
    }

    pub(crate) async fn txn(&self, txn: Txn) -> Result<TxnResponse, Etcd> {
        let mut kv = self.client.kv_client().max_decoding_message_size(LARGEST_ANSWER);
        self.answer(pin!(kv.txn(txn))).await
    }

    pub(crate) async fn delete(&self, key: &str) -> Result<DeleteResponse, Etcd> {
        let mut kv = self.client.kv_client();
        self.answer(pin!(kv.delete(key, None))).await
    }

    pub(crate) async fn get(&self, key: impl Into<Vec<u8>>, how: GetOptions) -> Result<GetResponse, Etcd> {
        let mut kv = self.client.kv_client().max_decoding_message_size(LARGEST_ANSWER);
        self.answer(pin!(kv.get(key.into(), Some(how)))).await
    }
}

/// The revision of an answer's header.
macro_rules! revision {
    ($answer:expr) => {
        $answer.header().map_or(0, etcd_client::ResponseHeader::revision)
    };
}
pub(crate) use revision;
