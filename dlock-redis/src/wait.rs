//! The pushes of the server: grants for waiters, changes for watchers, and broken connections.
//!
//! All watches of a name share a subscription, which the last one ends as it is dropped: in a task, since a
//! drop does not wait. What could go wrong, and why it does not:
//!
//! * *A new watch begins before that task runs.* The task checks once more, in the channel's turn.
//! * *While it runs.* The new watch waits for the turn to subscribe, so its SUBSCRIBE goes out behind the
//!   UNSUBSCRIBE.
//! * *That watch is dropped too, at once or half-way.* Of two such tasks the first ends the subscription, and
//!   the other one finds nothing to be ended, or another turn than its own.
//! * *The connection broke, or a watch was too slow*, so it gets nothing until it begins anew. It counts as
//!   before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::Timestamp;
use dlock_core::spi::{self, Anchors, Grant, LeaseKey, Push, Signal};
use futures::channel::mpsc;
use futures::stream::BoxStream;
use redis::{PushInfo, PushKind, Value};

use crate::keys::read_id;
use crate::reply::token;

/// How many changes wait for a slow consumer.
const BACKLOG: usize = 1024;

struct State {
    pushes: spi::Pushes,
    watched: HashMap<Vec<u8>, Watched>,
    /// A push says whose turn it is, and grants nothing.
    only_tells: bool,
}

/// Held while a channel is subscribed to, or left.
pub(crate) type Turn = Arc<futures::lock::Mutex<()>>;

/// A channel for the changes of a name.
#[derive(Default)]
struct Watched {
    /// How many watches there are, whether or not they hear anything now.
    watches: usize,
    turn: Turn,
    heard_by: Vec<mpsc::Sender<Vec<u8>>>,
}

/// The waiters for the server's pushes.
pub(crate) struct Pushes(Mutex<State>);

impl Pushes {
    /// `only_tells`: a waiter that is told of a grant must ask for it. That is so where replicas must
    /// acknowledge it, and on a cluster, whose servers have a clock each: the answer of one says nothing
    /// about the time of another.
    pub(crate) fn new(only_tells: bool) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            pushes: spi::Pushes::new(Duration::from_millis(1)),
            watched: HashMap::new(),
            only_tells,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is pushed to that request from now on. Made before the request is sent: a push may overtake the
    /// answer.
    pub(crate) fn wait_for(&self, key: &LeaseKey) -> BoxStream<'static, Push> {
        self.state().pushes.wait_for(key)
    }

    pub(crate) fn signals(&self) -> mpsc::UnboundedReceiver<Signal> {
        self.state().pushes.signals()
    }

    /// There is one more watch of that channel. It subscribes in its turn, whether or not others have.
    pub(crate) fn begin_watch(&self, channel: &[u8]) -> Turn {
        let mut state = self.state();
        let watched = state.watched.entry(channel.to_vec()).or_default();
        watched.watches += 1;
        watched.turn.clone()
    }

    /// What is told on that channel from now on; the end of the stream means that something may have been
    /// missed.
    pub(crate) fn hear_changes(&self, channel: &[u8]) -> mpsc::Receiver<Vec<u8>> {
        let (send, receive) = mpsc::channel(BACKLOG);
        let mut state = self.state();
        let watched = state.watched.entry(channel.to_vec()).or_default();
        watched.heard_by.push(send);
        receive
    }

    /// There is one watch less, which has closed its stream. After the last one a task must unsubscribe, in
    /// that turn, if it [`is_over`](Self::is_over) then.
    pub(crate) fn end_watch(&self, channel: &[u8]) -> Option<Turn> {
        let mut state = self.state();
        let watched = state.watched.get_mut(channel)?;
        watched.heard_by.retain(|w| !w.is_closed());
        watched.watches = watched.watches.saturating_sub(1);
        (watched.watches == 0).then(|| watched.turn.clone())
    }

    /// Whether there is no watch and the channel is still subscribed. For the task that has the turn.
    pub(crate) fn is_over(&self, channel: &[u8], turn: &Turn) -> bool {
        let state = self.state();
        let watched = state.watched.get(channel);
        watched.is_some_and(|w| w.watches == 0 && Arc::ptr_eq(&w.turn, turn))
    }

    /// Unsubscribed. Watches that came meanwhile have the same turn, and come next.
    pub(crate) fn unsubscribed(&self, channel: &[u8]) {
        let mut state = self.state();
        if state.watched.get(channel).is_some_and(|w| w.watches == 0) {
            state.watched.remove(channel);
        }
    }

    /// Takes in the server's time of an answer to a request that was sent then.
    pub(crate) fn anchor(&self, sent: Timestamp, server: i64) {
        let Ok(server) = u64::try_from(server) else { return };
        self.state().pushes.heard(sent, Duration::from_millis(server));
    }

    /// A connection is gone, with everything that was in flight. Waiters ask again, watches begin anew.
    pub(crate) fn disconnected(&self) {
        let mut state = self.state();
        state.pushes.broke();
        state.end_streams();
    }

    /// A lost connection is back. For a node of a cluster the one for requests may be back before the one for
    /// pushes: each is reported separately.
    pub(crate) fn back(&self) {
        let mut state = self.state();
        state.pushes.back();
        state.end_streams();
    }

    /// Takes in what was pushed.
    pub(crate) fn take(&self, push: PushInfo) {
        if let PushKind::Message | PushKind::SMessage = push.kind
            && let [Value::BulkString(channel), Value::BulkString(message), ..] = &push.data[..]
        {
            self.state().hear(channel, message);
        }
    }

    /// Nothing more will come.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.pushes.close();
        state.end_streams();
    }
}

impl State {
    /// The watches begin anew.
    fn end_streams(&mut self) {
        for watched in self.watched.values_mut() {
            watched.heard_by.clear();
        }
    }

    fn hear(&mut self, channel: &[u8], message: &[u8]) {
        if let Some(watched) = self.watched.get_mut(channel) {
            // One that does not keep up is ended, and begins anew with a snapshot when it has read what it
            // has.
            watched
                .heard_by
                .retain_mut(|w| w.try_send(message.to_vec()).is_ok());
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
        self.pushes.deliver(id, |key, anchors| match self.only_tells {
            true => None,
            false => granted(key, rest, anchors),
        });
    }
}

/// The grant of a message: a token, the server's time as it was granted, and the end, by the same clock in
/// milliseconds. `None`: the waiter has to ask.
fn granted(key: &LeaseKey, message: &[u8], anchors: &Anchors) -> Option<Grant> {
    let mut parts = message.split(|b| *b == b':');
    let token = token(parts.next()?).ok()?;
    let time = |part: Option<&[u8]>| {
        let ms = std::str::from_utf8(part?).ok()?.parse().ok()?;
        Some(Duration::from_millis(ms))
    };
    anchors.grant(key, token, time(parts.next())?, time(parts.next())?)
}

#[cfg(test)]
mod tests {
    use dlock_core::{LockName, RequestId};
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;

    fn key() -> LeaseKey {
        LeaseKey::new(LockName::new("a").unwrap(), RequestId::new(1, 1))
    }

    #[test]
    fn a_message_is_a_grant_only_if_the_servers_clock_is_known() {
        let message = b"7:52000:53000";
        let mut anchors = Anchors::new(Duration::from_millis(1));
        assert!(granted(&key(), message, &anchors).is_none());
        anchors.heard(Timestamp::now(), Duration::from_millis(52_000));
        let grant = granted(&key(), message, &anchors).unwrap();
        assert!(grant.provisional && grant.token.unwrap().get() == 7);
        assert_eq!(grant.expires_in, Duration::from_millis(999));
        assert!(granted(&key(), b"7:52000", &anchors).is_none());
    }

    #[test]
    fn to_be_asked_whether_one_is_there_is_no_change() {
        let pushes = Pushes::new(false);
        let mut waiting = pushes.wait_for(&key());
        let id = crate::keys::id_bytes(key().id);
        pushes.state().hear(b"c", &[&id[..], b"?"].concat());
        assert!(waiting.next().now_or_never().is_none());
        pushes.state().hear(b"c", &id);
        assert!(matches!(waiting.next().now_or_never(), Some(Some(Push::Changed))));
    }

    #[test]
    fn the_last_watch_ends_it_unless_another_one_has_come() {
        let all = Pushes::new(false);
        let first = all.begin_watch(b"x");
        assert!(Arc::ptr_eq(&first, &all.begin_watch(b"x")));
        assert!(all.end_watch(b"x").is_none());
        let turn = all.end_watch(b"x").unwrap();
        assert!(all.is_over(b"x", &turn));
        // One comes before the task has run, and goes before it has run as well: there are two tasks, and one
        // has nothing to do.
        let again = all.begin_watch(b"x");
        assert!(Arc::ptr_eq(&turn, &again) && !all.is_over(b"x", &turn));
        let second = all.end_watch(b"x").unwrap();
        assert!(all.is_over(b"x", &turn));
        all.unsubscribed(b"x");
        assert!(!all.is_over(b"x", &second) && all.state().watched.is_empty());
        // One that comes after that has another turn than a task that is late.
        all.begin_watch(b"x");
        let third = all.end_watch(b"x").unwrap();
        assert!(!all.is_over(b"x", &second) && all.is_over(b"x", &third));
        // One that comes while it is ended keeps the turn.
        let new = all.begin_watch(b"x");
        all.unsubscribed(b"x");
        assert!(Arc::ptr_eq(&third, &new) && !all.is_over(b"x", &third));
        assert!(Arc::ptr_eq(&new, &all.end_watch(b"x").unwrap()));
    }
}
