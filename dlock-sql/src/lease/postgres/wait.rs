//! What the server says unasked: grants for waiters, that there are changes for those who watch, and that the
//! connection which listens broke.
//!
//! A message is text, in one channel per client:
//!
//! | | |
//! |---|---|
//! | `G<id>:<token>:<now>:<end>` | granted; the server's time and the end of the lease, in microseconds since 1970 |
//! | `K<id>:<number>` | something changed: ask again |
//! | `W<watch>` | a name that is watched has changed |

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::spi::{self, Anchors, Grant, LeaseKey, Push, Signal};
use dlock_core::{RequestId, Timestamp};
use futures::channel::mpsc;
use futures::stream::BoxStream;

use crate::lease::keys::{read_id_digits, read_token};

struct State {
    pushes: spi::Pushes,
    watchers: HashMap<RequestId, mpsc::Sender<()>>,
    listens: bool,
}

/// The waiters for the server's notifications.
pub(super) struct Pushes(Mutex<State>);

impl Pushes {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            pushes: spi::Pushes::new(Duration::from_micros(1)),
            watchers: HashMap::new(),
            listens: false,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is pushed to that request from now on, if there is a listener; otherwise the waiter polls. Made
    /// before the request is sent: a push may overtake the answer.
    pub(super) fn wait_for(&self, key: &LeaseKey) -> Option<BoxStream<'static, Push>> {
        let mut state = self.state();
        state.listens.then(|| state.pushes.wait_for(key))
    }

    /// Whether messages come now.
    pub(super) fn listens(&self) -> bool {
        self.state().listens
    }

    pub(super) fn signals(&self) -> mpsc::UnboundedReceiver<Signal> {
        self.state().pushes.signals()
    }

    /// Wakes that watch when there are changes, and when some may have been missed.
    pub(super) fn watch(&self, watch: RequestId) -> mpsc::Receiver<()> {
        let (send, receive) = mpsc::channel(0);
        self.state().watchers.insert(watch, send);
        receive
    }

    pub(super) fn unwatch(&self, watch: RequestId) {
        self.state().watchers.remove(&watch);
    }

    /// Takes in the server's time of an answer to a request that was sent then.
    pub(super) fn anchor(&self, sent: Timestamp, server: Option<i64>) {
        if let Some(server) = server.and_then(|at| u64::try_from(at).ok()) {
            let server = Duration::from_micros(server);
            self.state().pushes.heard(sent, server);
        }
    }

    /// The connection is gone, with everything that was in flight. Waiters ask again.
    pub(super) fn disconnected(&self) {
        let mut state = self.state();
        state.listens = false;
        state.pushes.broke();
    }

    /// There is a connection that listens. After an earlier one, waiters that polled in between are told to
    /// ask again.
    pub(super) fn connected(&self) {
        let mut state = self.state();
        state.listens = true;
        state.pushes.back();
        for watcher in state.watchers.values_mut() {
            wake(watcher);
        }
    }

    /// Takes in a message.
    pub(super) fn hear(&self, message: &str) {
        let (head, rest) = message.split_once(':').unwrap_or((message, ""));
        let Some((kind, digits)) = head.split_at_checked(1) else {
            return;
        };
        let Some(id) = read_id_digits(digits) else { return };
        let state = &mut *self.state();
        if kind == "W" {
            if let Some(watcher) = state.watchers.get_mut(&id) {
                wake(watcher);
            }
        } else {
            state.pushes.deliver(id, |key, anchors| match kind {
                "G" => granted(key, rest, anchors),
                _ => None,
            });
        }
    }

    /// Nothing more will come.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.listens = false;
        state.pushes.close();
        state.watchers.clear();
    }
}

/// Once is enough, so it does not matter where it was woken already.
fn wake(watcher: &mut mpsc::Sender<()>) {
    let _ = watcher.try_send(());
}

/// The grant of a message, provisional: a token, the server's time as it was granted, and the end. `None`:
/// the waiter has to ask.
fn granted(key: &LeaseKey, message: &str, anchors: &Anchors) -> Option<Grant> {
    let mut parts = message.split(':');
    let token = read_token(parts.next()?.parse().ok()?).ok()?;
    let mut time = || Some(Duration::from_micros(parts.next()?.parse().ok()?));
    anchors.grant(key, token, time()?, time()?)
}

#[cfg(test)]
mod tests {
    use dlock_core::LockName;
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;
    use crate::lease::keys::digits;

    #[test]
    fn a_request_is_told_what_is_said_of_it_and_no_other() {
        let key = |n| LeaseKey::new(LockName::new("a").unwrap(), RequestId::new(1, n));
        let digits = |n| digits(key(n).id);
        let pushes = Pushes::new();
        assert!(pushes.wait_for(&key(1)).is_none(), "nobody listens yet");
        pushes.connected();
        let mut waiting = pushes.wait_for(&key(1)).unwrap();
        let mut told = || waiting.next().now_or_never().flatten();
        for strange in [&format!("K{}:1", digits(2)), "", "G", "é", "Gzz:1", "K:"] {
            pushes.hear(strange);
        }
        assert!(told().is_none());
        pushes.hear(&format!("K{}:1", digits(1)));
        assert!(matches!(told(), Some(Push::Changed)));
        // A grant counts from when the server's time was asked for; without one it has to be asked for.
        let message = format!("G{}:7:52000000:53000000", digits(1));
        pushes.hear(&message);
        assert!(matches!(told(), Some(Push::Changed)));
        let sent = Timestamp::now();
        pushes.anchor(sent, Some(51_500_000));
        pushes.hear(&message);
        let Some(Push::Granted(grant)) = told() else {
            panic!("it was granted")
        };
        assert!(grant.provisional && grant.token.unwrap().get() == 7 && grant.counted_from == sent);
        let second = Duration::from_secs(1);
        assert!(grant.expires_in >= second && grant.expires_in < second * 3 / 2);
    }
}
