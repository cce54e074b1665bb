//! What a server says unasked, handed to whom it concerns.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use futures::StreamExt as _;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::stream::BoxStream;

use super::{Anchors, Grant, LeaseKey, Push, Signal};
use crate::Timestamp;
use crate::request_id::RequestId;

/// For a backend whose server pushes: who waits for what it says, who wants to know of its connection, and
/// [what its clock showed](Anchors).
///
/// It belongs under one mutex with whatever else says whether pushes come: then a request is entered before
/// a connection breaks, and told of that, or after, and not entered at all.
pub struct Pushes {
    waiters: HashMap<RequestId, (LeaseKey, UnboundedSender<Push>)>,
    observers: Vec<UnboundedSender<Signal>>,
    anchors: Anchors,
    closed: bool,
}

impl Pushes {
    /// For a server that tells times in whole steps of `grain`, rounded down.
    pub fn new(grain: Duration) -> Self {
        Self {
            waiters: HashMap::new(),
            observers: Vec::new(),
            anchors: Anchors::new(grain),
            closed: false,
        }
    }

    /// What is pushed to that request from now on, in the place of an earlier one of its id. Entered before
    /// the request is sent: a push may overtake the answer.
    pub fn wait_for(&mut self, key: &LeaseKey) -> BoxStream<'static, Push> {
        // Whoever has gone is found here. There is room then for as many again: it costs little on average.
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

    /// What [`Lock::signals`](super::Lock::signals) answers, but that it ends when this is closed.
    pub fn signals(&mut self) -> UnboundedReceiver<Signal> {
        let (send, receive) = unbounded();
        self.observers.retain(|o| !o.is_closed());
        if !self.closed {
            self.observers.push(send);
        }
        receive
    }

    /// Takes in the server's time of an answer to a request that was sent at `sent`.
    pub fn heard(&mut self, sent: Timestamp, server: Duration) {
        self.anchors.heard(sent, server);
    }

    /// That request was spoken of. `None` for its grant: it has to ask.
    pub fn told(&self, id: RequestId, grant: impl FnOnce(&LeaseKey, &Anchors) -> Option<Grant>) {
        if let Some((key, send)) = self.waiters.get(&id) {
            let push = grant(key, &self.anchors).map_or(Push::Changed, Push::Granted);
            let _ = send.unbounded_send(push);
        }
    }

    /// A connection is gone, and with it whatever was on its way: who waits asks again.
    pub fn broke(&mut self) {
        self.waiters.clear();
        self.anchors.broke();
        self.signal(&Signal::Doubt);
    }

    /// There is a connection again. Who asked before it could be heard may have been passed over, and asks
    /// again.
    pub fn back(&mut self) {
        for (_, send) in self.waiters.values() {
            let _ = send.unbounded_send(Push::Changed);
        }
        self.signal(&Signal::Back);
    }

    /// Nothing more will come.
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
    fn a_request_hears_of_itself_alone_and_is_forgotten_if_dropped() {
        let mut pushes = Pushes::new(Duration::from_millis(1));
        let mut waiting = pushes.wait_for(&key(1));
        pushes.told(key(2).id, |_, _| None);
        assert!(waiting.next().now_or_never().is_none());
        pushes.told(key(1).id, |_, _| None);
        assert!(matches!(waiting.next().now_or_never(), Some(Some(Push::Changed))));
        // A later request of the same id takes the place.
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
