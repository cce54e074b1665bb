//! Wake-ups of waiters: by a push of the grant, or by a look whether the holders have changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use async_trait::async_trait;
use futures::channel::mpsc::{self, UnboundedSender};
use futures::stream::{BoxStream, StreamExt};

use super::shared::{Shared, State};
use super::table::News;
use crate::error::Result;
use crate::name::LockName;
use crate::spi::{Grant, LeaseKey, News as Looked, Probe, Push, Wake};
use crate::timestamp::Timestamp;

/// A waiter for a push.
pub(super) struct Listener {
    pub(super) connection: u64,
    pub(super) sender: UnboundedSender<Push>,
    pub(super) anchor: Anchor,
}

/// How a pushed grant gets a time on the client's clock.
///
/// A push answers no request, so there is no send time to count from. With one clock the store's own time of
/// the grant is exact. With two, a pair of times is kept from the waiter's last request, read in this order:
/// client, store. The grant counts from that client time, for the store's time from the pair to the expiry. A
/// pause between the two readings makes the deadline earlier, never later. The drift of the clocks over the
/// wait is within the engine's margin, which is taken off the whole span.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    /// The client's clock is the store's.
    Same,
    /// The client's time, then the store's.
    Pair(Timestamp, Timestamp),
}

impl Anchor {
    /// Converts a grant from the store's time to the client's.
    fn grant(self, mut grant: Grant) -> Grant {
        if let Self::Pair(client, store) = self {
            grant.expires_in += store.until(grant.counted_from);
            grant.counted_from = client;
        }
        grant
    }
}

/// Messages that are sent after the mutex is unlocked: a wake-up may run code that calls the store.
#[derive(Default)]
pub(super) struct Outbox {
    pushes: Vec<(Listener, Grant)>,
    /// Waiters that must ask again.
    changed: Vec<UnboundedSender<Push>>,
    /// Ended without a grant; dropping the sender ends the stream.
    ended: Vec<Listener>,
    wakers: Vec<Waker>,
}

impl Outbox {
    pub(super) fn deliver(self) {
        for (listener, grant) in self.pushes {
            // Nobody receives it: the grant stands, and is abandoned or expires. Passing the waiter over here
            // would take the lock from one that is about to ask again.
            let _ = listener.sender.unbounded_send(Push::Granted(grant));
        }
        for sender in self.changed {
            let _ = sender.unbounded_send(Push::Changed);
        }
        drop(self.ended);
        self.wakers.into_iter().for_each(Waker::wake);
    }
}

impl State {
    /// Enters a listener before the answer leaves: no grant falls between the two.
    pub(super) fn listen(
        &mut self,
        key: &LeaseKey,
        connection: u64,
        anchor: Anchor,
    ) -> BoxStream<'static, Push> {
        let (sender, receiver) = mpsc::unbounded();
        let listeners = self.waiters.entry(key.clone()).or_default();
        // A copy of the request whose reply was lost must not end the stream of the one that was answered.
        listeners.retain(|l| !l.sender.is_closed());
        listeners.push(Listener {
            connection,
            sender,
            anchor,
        });
        receiver.boxed()
    }

    /// Whom those news concern.
    #[inline(never)]
    pub(super) fn dispatch(&mut self, news: News) -> Outbox {
        let mut outbox = Outbox::default();
        for grant in news.granted {
            for listener in self.waiters.remove(&grant.key).into_iter().flatten() {
                let grant = listener.anchor.grant(grant.clone());
                outbox.pushes.push((listener, grant));
            }
        }
        for key in news.dropped {
            outbox
                .ended
                .extend(self.waiters.remove(&key).into_iter().flatten());
        }
        for key in news.sooner {
            let listeners = self.waiters.get(&key).into_iter().flatten();
            outbox.changed.extend(listeners.map(|l| l.sender.clone()));
        }
        for (name, change) in news.changes {
            for watcher in self.watchers.get_mut(&name).into_iter().flatten() {
                watcher.note(change.clone());
                outbox.wakers.extend(watcher.waker.take());
            }
        }
        for name in news.nudged {
            for watcher in self.watchers.get_mut(&name).into_iter().flatten() {
                outbox.wakers.extend(watcher.waker.take());
            }
        }
        outbox
    }
}

/// Looks at a name whose holders were last seen to be those.
pub(super) fn looking(shared: &Arc<Shared>, name: &LockName, seen: u64) -> Wake {
    let probe = NameProbe {
        shared: shared.clone(),
        name: name.clone(),
        seen: AtomicU64::new(seen),
    };
    Wake::Poll {
        probe: Arc::new(probe),
        min: Duration::from_millis(1),
        max: Duration::from_secs(1),
    }
}

/// Whether the holders of a name have changed since it was last asked.
struct NameProbe {
    shared: Arc<Shared>,
    name: LockName,
    seen: AtomicU64,
}

#[async_trait]
impl Probe for NameProbe {
    async fn look(&self) -> Result<Looked> {
        let holders = self.shared.run(None, |state, effects| {
            state.table.fingerprint(&self.name, effects)
        });
        Ok(match holders {
            Some(holders) if self.seen.swap(holders, Ordering::AcqRel) == holders => Looked::Nothing,
            // A free name, for example: asking always pays.
            _ => Looked::Changed,
        })
    }
}
