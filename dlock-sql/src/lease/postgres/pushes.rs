//! What the server says unasked: grants for those who wait, changes for those who watch, and that the
//! connection which listens broke.
//!
//! A message is text, in one channel per client:
//!
//! | | |
//! |---|---|
//! | `G<id>:<token>:<now>:<end>` | granted; the server's time and the end of the lease, in microseconds since 1970 |
//! | `K<id>:<number>` | something changed: ask again |
//! | `W<watch>:<number>:<what><id>…` | a change of a name that is watched |

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

use super::reply::{read_id_digits, read_token};

/// How long the clocks of client and server may go apart unseen before a grant that was pushed has to be
/// asked for.
const ANCHOR_LIFE: Duration = Duration::from_secs(10);

/// The same, in claim windows: the margin for drift is taken of all the time since the clocks were compared,
/// and has to leave something of the window.
const ANCHOR_WINDOWS: u32 = 10;

/// How many changes wait for a slow consumer.
const BACKLOG: usize = 1024;

/// The time of the server in an answer, and when it was asked for.
#[derive(Clone, Copy)]
struct Anchor {
    sent: Timestamp,
    server: u64,
}

#[derive(Default)]
struct State {
    waiters: HashMap<RequestId, (LeaseKey, mpsc::UnboundedSender<Push>)>,
    watchers: HashMap<RequestId, mpsc::Sender<String>>,
    observers: Vec<mpsc::UnboundedSender<Signal>>,
    anchor: Option<Anchor>,
    /// When the connection broke last. What was sent before is of another connection, perhaps of another
    /// server.
    broke: Option<Timestamp>,
    listens: bool,
    closed: bool,
}

/// Who waits for what the server says.
#[derive(Default)]
pub(super) struct Pushes(Mutex<State>);

impl Pushes {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is pushed to that request from now on, if anybody listens; otherwise whoever waits has to look.
    /// Made before the request is sent: a push may overtake the answer.
    pub(super) fn wait_for(self: &Arc<Self>, key: &LeaseKey) -> Option<Waiting> {
        let (send, receive) = mpsc::unbounded();
        let mut state = self.state();
        if !state.listens {
            return None;
        }
        state.waiters.insert(key.id, (key.clone(), send));
        Some(Waiting {
            id: key.id,
            pushes: Arc::clone(self),
            receive,
        })
    }

    /// Whether messages come now.
    pub(super) fn listens(&self) -> bool {
        self.state().listens
    }

    pub(super) fn signals(&self) -> mpsc::UnboundedReceiver<Signal> {
        let (send, receive) = mpsc::unbounded();
        let mut state = self.state();
        if !state.closed {
            state.observers.push(send);
        }
        receive
    }

    /// What that watch is told from now on; the end of the stream means that something may have been missed.
    pub(super) fn watch(&self, watch: RequestId) -> mpsc::Receiver<String> {
        let (send, receive) = mpsc::channel(BACKLOG);
        let mut state = self.state();
        if state.listens {
            state.watchers.insert(watch, send);
        }
        receive
    }

    pub(super) fn unwatch(&self, watch: RequestId) {
        self.state().watchers.remove(&watch);
    }

    /// Takes in the server's time of an answer to a request that was sent then.
    pub(super) fn anchor(&self, sent: Timestamp, server: Option<i64>) {
        let Some(server) = server.and_then(|at| u64::try_from(at).ok()) else {
            return;
        };
        let mut state = self.state();
        if state.broke.is_none_or(|broke| sent > broke) {
            state.anchor = Some(Anchor { sent, server });
        }
    }

    /// The connection is gone: whatever was on its way is lost. Who waits asks again, who watches begins
    /// anew.
    pub(super) fn disconnected(&self) {
        let mut state = self.state();
        state.listens = false;
        state.waiters.clear();
        state.watchers.clear();
        state.anchor = None;
        state.broke = Some(Timestamp::now());
        state.tell(&Signal::Doubt);
    }

    /// There is a connection that listens. If there was one before, whoever asked in between has looked since
    /// then, and is told to ask again.
    pub(super) fn connected(&self) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        state.listens = true;
        if state.broke.is_some() {
            state.tell(&Signal::Back);
        }
    }

    /// Takes in a message.
    pub(super) fn hear(&self, message: &str) {
        let Some((kind, rest)) = message.split_at_checked(1) else {
            return;
        };
        let Some((digits, rest)) = rest.split_once(':') else {
            return;
        };
        let Some(id) = read_id_digits(digits) else { return };
        let mut state = self.state();
        if kind == "W" {
            // One that does not keep up is ended, and begins anew with a snapshot when it has read what it
            // has.
            let full = |w: &mut mpsc::Sender<String>| w.try_send(rest.to_owned()).is_err();
            if state.watchers.get_mut(&id).is_some_and(full) {
                state.watchers.remove(&id);
            }
            return;
        }
        let anchor = state.anchor;
        if let Some((key, send)) = state.waiters.get(&id) {
            let granted = (kind == "G").then_some(anchor).flatten();
            let granted = granted.and_then(|anchor| granted_by(key, rest, anchor, Timestamp::now()));
            let _ = send.unbounded_send(granted.map_or(Push::Changed, Push::Granted));
        }
    }

    /// Nothing more will come.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.listens = false;
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
}

/// The grant of a message. Where the server's clock was looked at too long ago it is `None`, and the waiter
/// has to ask.
///
/// *The message is late.* Its end is counted from the anchor: a request that was sent before the server told
/// its time. How long the message was on its way makes no difference.
///
/// *The server's clock was set forward* since then, so that the end looks far away. The server counts no more
/// than the window, and the message came after it began to: so the end is not later than a window from now
/// either.
///
/// *It is of another server*, a standby that was promoted: the anchor goes with the connection that listens,
/// and is taken anew from an answer after that.
fn granted_by(key: &LeaseKey, message: &str, anchor: Anchor, now: Timestamp) -> Option<Grant> {
    let mut parts = message.split(':');
    let token = read_token(parts.next()?.parse().ok()?)?;
    let began: u64 = parts.next()?.parse().ok()?;
    let end: u64 = parts.next()?.parse().ok()?;
    let window = Duration::from_micros(end.checked_sub(began)?);
    let age = now.since(anchor.sent);
    if age > ANCHOR_LIFE.min(window.saturating_mul(ANCHOR_WINDOWS)) {
        return None;
    }
    // Both are whole microseconds: one may be missing.
    let life = Duration::from_micros(end.checked_sub(anchor.server)?.saturating_sub(1));
    let grant = Grant::new(key.clone(), Some(token), anchor.sent, life.min(age + window));
    Some(grant.provisional())
}

/// The pushes for one request. Dropped, nobody listens any more.
pub(super) struct Waiting {
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
    use crate::lease::postgres::reply::id_digits;

    fn at(ms: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(ms)
    }

    fn key() -> LeaseKey {
        LeaseKey::new(LockName::new("a").unwrap(), RequestId::new(1, 1))
    }

    /// Asked at 1 s, when the server had 50 s.
    const ANCHOR: Anchor = Anchor {
        sent: Timestamp::from_nanos(1_000_000_000),
        server: 50_000_000,
    };

    fn end(message: &str, now: u64) -> Option<Timestamp> {
        let grant = granted_by(&key(), message, ANCHOR, at(now))?;
        assert!(grant.provisional);
        Some(grant.counted_from + grant.expires_in)
    }

    #[test]
    fn a_push_that_is_late_ends_no_later() {
        let expected = Some(at(4_000).saturating_sub(Duration::from_micros(1)));
        assert_eq!(end("7:52000000:53000000", 3_000), expected);
        assert_eq!(end("7:52000000:53000000", 3_900), expected);
    }

    #[test]
    fn a_servers_clock_that_was_set_forward_lengthens_no_window() {
        let hour = 3_600_000_000;
        let message = format!("7:{}:{}", 52_000_000_u64 + hour, 53_000_000_u64 + hour);
        assert_eq!(end(&message, 3_000), Some(at(4_000)));
    }

    #[test]
    fn the_time_of_the_server_is_good_for_ten_windows_and_ten_seconds() {
        assert!(end("7:61000000:62000000", 11_000).is_some());
        assert!(end("7:61000000:62000000", 11_001).is_none());
        assert!(end("7:51000000:51050000", 1_500).is_some());
        assert!(end("7:51000000:51050000", 1_501).is_none());
    }

    #[test]
    fn a_request_is_told_what_is_said_of_it_and_no_other() {
        let pushes = Pushes::new();
        assert!(pushes.wait_for(&key()).is_none(), "nobody listens yet");
        pushes.connected();
        let mut waiting = pushes.wait_for(&key()).unwrap();
        pushes.hear(&format!("K{}:1", id_digits(RequestId::new(1, 2))));
        assert!(waiting.receive.try_recv().is_err());
        pushes.hear(&format!("K{}:1", id_digits(key().id)));
        assert!(matches!(waiting.receive.try_recv(), Ok(Push::Changed)));
        for strange in ["", "G", "é", "Gzz:1", "K:"] {
            pushes.hear(strange);
        }
        assert!(waiting.receive.try_recv().is_err());
    }
}
