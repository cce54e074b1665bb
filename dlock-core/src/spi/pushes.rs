//! Dispatches what a server pushes to the requests that wait for it.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use futures::StreamExt as _;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::stream::BoxStream;

use super::{Anchors, Grant, LeaseKey, Push, Signal};
use crate::Timestamp;
use crate::request_id::RequestId;

/// For a backend whose server pushes: the requests that wait for a push, the streams that report on the
/// connection, and [the server's clock](Anchors).
///
/// It belongs under the same mutex as the state that says whether pushes arrive. Then a request is registered
/// either before a connection breaks, and is told of that, or after, and is not registered at all.
pub struct Pushes {
    waiters: HashMap<RequestId, (LeaseKey, UnboundedSender<Push>)>,
    observers: Vec<UnboundedSender<Signal>>,
    anchors: Anchors,
    closed: bool,
}

impl Pushes {
    /// Creates it for a server that reports times in whole steps of `grain`, rounded down.
    pub fn new(grain: Duration) -> Self {
        Self {
            waiters: HashMap::new(),
            observers: Vec::new(),
            anchors: Anchors::new(grain),
            closed: false,
        }
    }

    /// Returns the pushes to this request from now on, replacing an earlier stream of the same id. Register
    /// before the request is sent: a push may overtake the answer.
    pub fn wait_for(&mut self, key: &LeaseKey) -> BoxStream<'static, Push> {
        // Removes streams that were dropped. After that there is room for as many again, so it costs little
        // on average.
        if self.waiters.len() == self.waiters.capacity() {
            self.waiters.retain(|_, (_, send)| !send.is_closed());
            self.waiters.reserve(self.waiters.len() + 1);
        }
        let (send, receive) = unbounded();
        if !self.closed {
            self.waiters.insert(key.id, (key.clone(), send));
        }
        receive.boxed()
    }

    /// Returns the stream for [`Lock::signals`](super::Lock::signals). It ends when this is closed.
    pub fn signals(&mut self) -> UnboundedReceiver<Signal> {
        let (send, receive) = unbounded();
        self.observers.retain(|o| !o.is_closed());
        if !self.closed {
            self.observers.push(send);
        }
        receive
    }

    /// Records the server's time in the answer to a request that was sent at `sent`.
    pub fn heard(&mut self, sent: Timestamp, server: Duration) {
        self.anchors.heard(sent, server);
    }

    /// Delivers a push to the request `id`. If `grant` returns `None`, the request has to ask.
    pub fn deliver(&self, id: RequestId, grant: impl FnOnce(&LeaseKey, &Anchors) -> Option<Grant>) {
        if let Some((key, send)) = self.waiters.get(&id) {
            let push = grant(key, &self.anchors).map_or(Push::Changed, Push::Granted);
            let _ = send.unbounded_send(push);
        }
    }

    /// Records that the connection broke, and that pushes may be lost with it. All waiting requests ask
    /// again.
    pub fn broke(&mut self) {
        self.waiters.clear();
        self.anchors.broke();
        self.signal(&Signal::Doubt);
    }

    /// Records that there is a connection again. Requests that were sent before it could receive pushes may
    /// have been passed over, and ask again.
    pub fn back(&mut self) {
        for (_, send) in self.waiters.values() {
            let _ = send.unbounded_send(Push::Changed);
        }
        self.signal(&Signal::Back);
    }

    /// Ends all streams.
    pub fn close(&mut self) {
        self.closed = true;
        self.waiters.clear();
        self.observers.clear();
    }

    fn signal(&mut self, signal: &Signal) {
        self.observers
            .retain(|o| o.unbounded_send(signal.clone()).is_ok());
    }
}

impl fmt::Debug for Pushes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pushes")
            .field("anchors", &self.anchors)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::LockName;

    fn key(n: u64) -> LeaseKey {
        LeaseKey::new(LockName::new("a").unwrap(), RequestId::new(1, n))
    }

    #[test]
    fn request_gets_only_its_own_pushes() {
        let mut pushes = Pushes::new(Duration::from_millis(1));
        let mut waiting = pushes.wait_for(&key(1));
        pushes.deliver(key(2).id, |_, _| None);
        assert!(waiting.next().now_or_never().is_none());
        pushes.deliver(key(1).id, |_, _| None);
        assert!(matches!(waiting.next().now_or_never(), Some(Some(Push::Changed))));
        // A later request with the same id replaces it.
        let again = pushes.wait_for(&key(1));
        assert!(waiting.next().now_or_never().unwrap().is_none());
        for n in 2..10_000 {
            drop(pushes.wait_for(&key(n)));
        }
        assert!(pushes.waiters.len() < 64 && pushes.waiters.contains_key(&key(1).id));
        pushes.close();
        assert!(again.collect::<Vec<_>>().now_or_never().unwrap().is_empty());
        assert!(pushes.wait_for(&key(1)).next().now_or_never().unwrap().is_none());
    }
}
