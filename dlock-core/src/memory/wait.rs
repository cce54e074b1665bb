//! Who is woken, and how: by a push of the grant, or by looking at whether the holders have changed.

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

/// Somebody who waits for a push.
pub(super) struct Listener {
    pub(super) connection: u64,
    pub(super) sender: UnboundedSender<Push>,
    pub(super) anchor: Anchor,
}

/// How the client's time of a pushed grant is found.
///
/// A push answers no request, so there is no send time to count from. With one clock the store's own time of
/// the grant is exact. With two, a pair read in this order, client then store, is kept from the last time
/// that the waiter asked: the grant then counts from that client time, as long as the store's time from the
/// pair to the expiry. Any pause between the two readings makes the deadline earlier, never later; what the
/// clocks drift apart over the wait is within the engine's margin, which it takes off the whole span.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    /// The client's clock is the store's.
    Same,
    /// The client's time, then the store's.
    Pair(Timestamp, Timestamp),
}

impl Anchor {
    /// A grant that counts from the store's time, for the client.
    fn grant(self, mut grant: Grant) -> Grant {
        if let Self::Pair(client, store) = self {
            grant.expires_in += store.until(grant.counted_from);
            grant.counted_from = client;
        }
        grant
    }
}

/// What is sent once the mutex is free again: waking somebody may run code that calls the store.
#[derive(Default)]
pub(super) struct Outbox {
    pushes: Vec<(Listener, Grant)>,
    /// Those who are to ask again.
    changed: Vec<UnboundedSender<Push>>,
    /// Ended without a grant; dropping the sender ends the stream.
    ended: Vec<Listener>,
    wakers: Vec<Waker>,
}

impl Outbox {
    pub(super) fn deliver(self) {
        for (listener, grant) in self.pushes {
            // Nobody there: the grant stands, and is abandoned or lapses. Passing over it here would take the
            // lock from a waiter that is about to ask again.
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
            // A free name, for one: there is always something to ask for.
            _ => Looked::Changed,
        })
    }
}
