//! What the server says unasked: grants for those who wait, changes for those who watch, and that the connection broke.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use dlock_core::RequestId;
use dlock_core::Timestamp;
use dlock_core::spi::{Grant, LeaseKey, Push, Signal};
use futures::Stream;
use futures::channel::mpsc;
use redis::{PushInfo, PushKind, Value};

use crate::keys::read_id;
use crate::reply::token;

/// How long the clocks of client and server may go apart unseen before a grant that was pushed has to be asked for.
const ANCHOR_LIFE: Duration = Duration::from_secs(10);

/// The same, in claim windows: the margin for drift is taken of all the time since the clocks were compared, and has to leave something of
/// the window.
const ANCHOR_WINDOWS: u32 = 10;

/// How many changes wait for a slow consumer.
const BACKLOG: usize = 1024;

/// The time of the server in an answer, and when it was asked for.
#[derive(Clone, Copy)]
struct Anchor {
    sent: Timestamp,
    server: u64,
}

struct State {
    waiters: HashMap<RequestId, (LeaseKey, mpsc::UnboundedSender<Push>)>,
    watchers: HashMap<Vec<u8>, Vec<mpsc::Sender<Vec<u8>>>>,
    observers: Vec<mpsc::UnboundedSender<Signal>>,
    anchor: Option<Anchor>,
    /// When the connection broke last. What was sent before is of another connection, perhaps of another server.
    broke: Timestamp,
    /// A push says whose turn it is, and grants nothing.
    only_tells: bool,
}

/// Who waits for what the server says.
pub(crate) struct Pushes(Mutex<State>);

impl Pushes {
    /// `only_tells`: whoever is told of a grant has to ask for it. So it is where replicas have to acknowledge it, and on a cluster, whose
    /// servers have a clock each: what one of them answers says nothing of the time at another.
    pub(crate) fn new(only_tells: bool) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            waiters: HashMap::new(),
            watchers: HashMap::new(),
            observers: Vec::new(),
            anchor: None,
            broke: Timestamp::ZERO,
            only_tells,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is pushed to that request from now on. Made before the request is sent: a push may overtake the answer.
    pub(crate) fn wait_for(self: &Arc<Self>, key: &LeaseKey) -> Waiting {
        let (send, receive) = mpsc::unbounded();
        self.state().waiters.insert(key.id, (key.clone(), send));
        Waiting {
            id: key.id,
            pushes: Arc::clone(self),
            receive,
        }
    }

    pub(crate) fn signals(&self) -> mpsc::UnboundedReceiver<Signal> {
        let (send, receive) = mpsc::unbounded();
        self.state().observers.push(send);
        receive
    }

    /// What is told on that channel from now on; the end of the stream means that something may have been missed.
    pub(crate) fn watch(&self, channel: &[u8]) -> mpsc::Receiver<Vec<u8>> {
        let (send, receive) = mpsc::channel(BACKLOG);
        self.state()
            .watchers
            .entry(channel.to_vec())
            .or_default()
            .push(send);
        receive
    }

    /// Somebody has stopped to hear that channel.
    pub(crate) fn unwatch(&self, channel: &[u8]) {
        let mut state = self.state();
        if let Some(watchers) = state.watchers.get_mut(channel) {
            watchers.retain(|w| !w.is_closed());
            if watchers.is_empty() {
                state.watchers.remove(channel);
            }
        }
    }

    /// Takes in the server's time of an answer to a request that was sent then.
    pub(crate) fn anchor(&self, sent: Timestamp, server: i64) {
        let Ok(server) = u64::try_from(server) else { return };
        let mut state = self.state();
        if sent > state.broke {
            state.anchor = Some(Anchor { sent, server });
        }
    }

    /// A connection is gone: whatever was on its way is lost.
    pub(crate) fn disconnected(&self) {
        self.state().disconnected();
    }

    /// There is a connection again, of which it was told that it was gone: each of them is told by itself. Of a cluster's node the one that is
    /// asked on may be there long before the one that is listened on; who asked in between, and was passed over, is told by the second.
    pub(crate) fn back(&self) {
        let mut state = self.state();
        // Who asked before it could be heard again may have been passed over.
        for (_, send) in state.waiters.values() {
            let _ = send.unbounded_send(Push::Changed);
        }
        state.watchers.clear();
        state.tell(&Signal::Back);
    }

    /// Takes in what was pushed.
    pub(crate) fn take(&self, push: PushInfo) {
        match push.kind {
            PushKind::Message | PushKind::SMessage => {
                let mut data = push.data.into_iter();
                if let (Some(Value::BulkString(channel)), Some(Value::BulkString(message))) =
                    (data.next(), data.next())
                {
                    self.state().hear(&channel, message);
                }
            }
            _ => {}
        }
    }

    /// Nothing more will come.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.waiters.clear();
        state.watchers.clear();
        state.observers.clear();
    }
}

impl State {
    fn tell(&mut self, signal: &Signal) {
        self.observers
            .retain(|o| o.unbounded_send(signal.clone()).is_ok());
    }

    /// Whatever was on its way is lost: who waits asks again, who watches begins anew.
    fn disconnected(&mut self) {
        self.waiters.clear();
        self.watchers.clear();
        self.anchor = None;
        self.broke = Timestamp::now();
        self.tell(&Signal::Doubt);
    }

    fn hear(&mut self, channel: &[u8], message: Vec<u8>) {
        if let Some(watchers) = self.watchers.get_mut(channel) {
            // One that does not keep up is ended, and begins anew with a snapshot when it has read what it has.
            watchers.retain_mut(|w| w.try_send(message.clone()).is_ok());
            return;
        }
        let Some((id, rest)) = message
            .split_at_checked(24)
            .and_then(|(id, rest)| Some((read_id(id)?, rest)))
        else {
            return;
        };
        // Whether anybody is there was asked, and the server has seen that by now.
        if rest == b"?" {
            return;
        }
        if let Some((key, send)) = self.waiters.get(&id) {
            let push = self
                .anchor
                .filter(|_| !self.only_tells)
                .and_then(|anchor| granted(key, rest, anchor, Timestamp::now()))
                .map_or(Push::Changed, Push::Granted);
            let _ = send.unbounded_send(push);
        }
    }
}

/// The grant of a message: a token, the server's time as it was granted, and the end, by the same clock. Where that clock was looked at too
/// long ago it is `None`, and the waiter has to ask.
///
/// *The message is late.* Its end is counted from the anchor: a request that was sent before the server told its time. How long the message was on its
/// way makes no difference.
///
/// *The server's clock was set forward* since then, so that the end looks far away. The server counts no more than the window, and the
/// message came after it began to: so the end is not later than a window from now either.
fn granted(key: &LeaseKey, message: &[u8], anchor: Anchor, now: Timestamp) -> Option<Grant> {
    let mut parts = message.split(|b| *b == b':');
    let token = token(parts.next()?).ok()?;
    let number = |part: Option<&[u8]>| std::str::from_utf8(part?).ok()?.parse::<u64>().ok();
    let (began, end) = (number(parts.next())?, number(parts.next())?);
    let window = Duration::from_millis(end.checked_sub(began)?);
    let age = now.since(anchor.sent);
    if age > ANCHOR_LIFE.min(window * ANCHOR_WINDOWS) {
        return None;
    }
    // Both are whole milliseconds, rounded down: one of them may be missing.
    let life = Duration::from_millis(end.checked_sub(anchor.server)?.saturating_sub(1));
    let grant = Grant::new(key.clone(), Some(token), anchor.sent, life.min(age + window));
    Some(grant.provisional())
}

/// The pushes for one request. Dropped, nobody listens any more.
pub(crate) struct Waiting {
    id: RequestId,
    pushes: Arc<Pushes>,
    receive: mpsc::UnboundedReceiver<Push>,
}

impl Stream for Waiting {
    type Item = Push;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Push>> {
        Pin::new(&mut self.receive).poll_next(cx)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.pushes.state();
        // A later request of the same id may have taken the place.
        if state
            .waiters
            .get(&self.id)
            .is_some_and(|(_, send)| send.is_connected_to(&self.receive))
        {
            state.waiters.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::LockName;

    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(ms)
    }

    fn key() -> LeaseKey {
        LeaseKey::new(LockName::new("a").unwrap(), RequestId::new(1, 1))
    }

    /// Asked at 1 s, when the server had 50 s.
    const ANCHOR: Anchor = Anchor {
        sent: Timestamp::from_nanos(1_000_000_000),
        server: 50_000,
    };

    fn end(message: &str, now: u64) -> Option<Timestamp> {
        let grant = granted(&key(), message.as_bytes(), ANCHOR, at(now))?;
        assert!(grant.provisional);
        Some(grant.counted_from + grant.expires_in)
    }

    #[test]
    fn a_push_that_is_late_ends_no_later() {
        assert_eq!(end("7:52000:53000", 3_000), Some(at(3_999)));
        assert_eq!(end("7:52000:53000", 3_900), Some(at(3_999)));
    }

    #[test]
    fn a_servers_clock_that_was_set_forward_lengthens_no_window() {
        let hour = 3_600_000;
        let message = format!("7:{}:{}", 52_000 + hour, 53_000 + hour);
        assert_eq!(end(&message, 3_000), Some(at(4_000)));
    }

    #[test]
    fn the_time_of_the_server_is_good_for_ten_windows_and_ten_seconds() {
        assert!(end("7:61000:62000", 11_000).is_some());
        assert!(end("7:61000:62000", 11_001).is_none());
        assert!(end("7:51000:51050", 1_500).is_some());
        assert!(end("7:51000:51050", 1_501).is_none());
    }

    #[test]
    fn an_answer_of_a_connection_that_broke_says_nothing_of_the_next_one() {
        let pushes = Pushes::new(false);
        let sent = Timestamp::now();
        pushes.disconnected();
        pushes.anchor(sent, 50_000);
        assert!(pushes.state().anchor.is_none());
        while Timestamp::now() == sent {}
        pushes.anchor(Timestamp::now(), 50_000);
        assert!(pushes.state().anchor.is_some());
    }

    #[test]
    fn to_be_asked_whether_one_is_there_is_no_change() {
        let pushes = Pushes::new(false);
        let mut waiting = pushes.wait_for(&key());
        let id = crate::keys::id_bytes(key().id);
        pushes.state().hear(b"c", [&id[..], b"?"].concat());
        assert!(waiting.receive.try_recv().is_err());
        pushes.state().hear(b"c", id.to_vec());
        assert!(matches!(waiting.receive.try_recv(), Ok(Push::Changed)));
    }
}
