//! Which channels are watched, and who begins and ends to listen to them.
//!
//! All watches of a name share a subscription, which the last one ends as it is dropped: in a task, since a
//! drop does not wait. What could go wrong, and why it does not:
//!
//! * *Somebody watches again before that task runs.* It looks once more, in the channel's turn.
//! * *While it runs.* The new watch waits for the turn to subscribe, so its SUBSCRIBE goes out behind the
//!   UNSUBSCRIBE.
//! * *That watch is dropped too, at once or half-way.* Then there are two such tasks. Whichever has the turn
//!   first ends the subscription, and the other one finds nothing to be ended, or another turn than its own.
//! * *The connection broke, or a watch was too slow*, and nothing is told to it until it begins anew. It
//!   counts as before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Held by whoever subscribes to a channel, or ends that.
pub(crate) type Turn = Arc<futures::lock::Mutex<()>>;

#[derive(Default)]
pub(crate) struct Subscriptions(Mutex<HashMap<Vec<u8>, Channel>>);

#[derive(Default)]
struct Channel {
    watches: usize,
    turn: Turn,
}

impl Subscriptions {
    fn channels(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Channel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is one more watch. It subscribes in its turn, whether or not others have.
    pub(crate) fn begin(&self, channel: &[u8]) -> Turn {
        let mut channels = self.channels();
        let entry = channels.entry(channel.to_vec()).or_default();
        entry.watches += 1;
        entry.turn.clone()
    }

    /// There is one less. After the last one somebody has to unsubscribe, in that turn, if it
    /// [`is_over`](Self::is_over) then.
    pub(crate) fn end(&self, channel: &[u8]) -> Option<Turn> {
        let mut channels = self.channels();
        let entry = channels.get_mut(channel)?;
        entry.watches = entry.watches.saturating_sub(1);
        (entry.watches == 0).then(|| entry.turn.clone())
    }

    /// Whether there is no watch and nobody has unsubscribed yet. For whoever has the turn.
    pub(crate) fn is_over(&self, channel: &[u8], turn: &Turn) -> bool {
        let channels = self.channels();
        let entry = channels.get(channel);
        entry.is_some_and(|entry| entry.watches == 0 && Arc::ptr_eq(&entry.turn, turn))
    }

    /// Unsubscribed. Whoever has come meanwhile has the same turn, and comes next.
    pub(crate) fn ended(&self, channel: &[u8]) {
        let mut channels = self.channels();
        if channels.get(channel).is_some_and(|entry| entry.watches == 0) {
            channels.remove(channel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_ends_it_unless_another_one_has_come() {
        let all = Subscriptions::default();
        let first = all.begin(b"x");
        assert!(Arc::ptr_eq(&first, &all.begin(b"x")));
        assert!(all.end(b"x").is_none());
        let turn = all.end(b"x").unwrap();
        assert!(all.is_over(b"x", &turn));
        // One comes before the task has run, and goes before it has run as well: there are two tasks, and one
        // has nothing to do.
        let again = all.begin(b"x");
        assert!(Arc::ptr_eq(&turn, &again) && !all.is_over(b"x", &turn));
        let second = all.end(b"x").unwrap();
        assert!(all.is_over(b"x", &turn));
        all.ended(b"x");
        assert!(!all.is_over(b"x", &second) && all.channels().is_empty());
        // And one that comes after that has another turn than a task that is late.
        all.begin(b"x");
        let third = all.end(b"x").unwrap();
        assert!(!all.is_over(b"x", &second) && all.is_over(b"x", &third));
    }

    #[test]
    fn who_comes_while_it_is_ended_keeps_the_turn() {
        let all = Subscriptions::default();
        all.begin(b"x");
        let turn = all.end(b"x").unwrap();
        assert!(all.is_over(b"x", &turn));
        let new = all.begin(b"x");
        all.ended(b"x");
        assert!(Arc::ptr_eq(&turn, &new) && !all.is_over(b"x", &turn));
        assert!(Arc::ptr_eq(&new, &all.end(b"x").unwrap()));
    }
}
