//! The events of a held lock, as a stream.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::Stream;
use futures::channel::mpsc;

use crate::engine::{Lease, LeaseState};
use crate::error::{Error, LossReason};

/// An event of a held lock. From the stream [`Guard::events`](crate::Guard::events).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum GuardEvent {
    /// A renewal was confirmed, and the deadline has moved.
    Renewed,
    /// A renewal failed. The lock is held until its deadline; automatic renewals are retried until then.
    RenewalFailed(Error),
    /// The lock has been held for as long as [`LockOptions::warn_after`](crate::LockOptions::warn_after)
    /// says, or for a multiple of that.
    HeldLong,
    /// The lock is lost. The last event.
    Lost(LossReason),
    /// The lock was released. The last event.
    Released,
    /// The stream was read too slowly, and this many events are missing here. It precedes the next event
    /// after the gap. The last event is never missing.
    Skipped(u64),
}

/// How many events wait for a slow reader.
const BACKLOG: usize = 32;

/// The streams of one lease. Allocated when the first is asked for.
#[derive(Debug, Default)]
pub(crate) struct Subscribers(Mutex<Vec<Subscriber>>);

#[derive(Debug)]
struct Subscriber {
    sender: mpsc::Sender<GuardEvent>,
    skipped: Arc<AtomicU64>,
}

impl Subscribers {
    fn list(&self) -> std::sync::MutexGuard<'_, Vec<Subscriber>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn emit(&self, event: GuardEvent) {
        self.list().retain_mut(|s| s.send(&event));
    }

    /// Ends the streams; each tells the last event from the lease itself, so that it is never missing.
    pub(crate) fn close(&self) {
        self.list().clear();
    }

    fn subscribe(&self) -> (mpsc::Receiver<GuardEvent>, Arc<AtomicU64>) {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let skipped = Arc::new(AtomicU64::new(0));
        let mut list = self.list();
        // Otherwise a lease without events would keep every stream that was ever dropped.
        list.retain(|s| !s.sender.is_closed());
        list.push(Subscriber {
            sender,
            skipped: skipped.clone(),
        });
        (receiver, skipped)
    }
}

impl Subscriber {
    /// `false` once nobody reads. Under the mutex of the list: the counter has one writer until the stream
    /// ends.
    fn send(&mut self, event: &GuardEvent) -> bool {
        let skipped = self.skipped.load(Ordering::Relaxed);
        let told = match skipped {
            0 => Ok(()),
            n => self.sender.try_send(GuardEvent::Skipped(n)),
        };
        match told.and_then(|()| {
            self.skipped.store(0, Ordering::Relaxed);
            self.sender.try_send(event.clone())
        }) {
            Ok(()) => true,
            Err(e) if e.is_disconnected() => false,
            Err(_) => {
                self.skipped.fetch_add(1, Ordering::Relaxed);
                true
            }
        }
    }
}

/// The stream of the events of one guard. From [`Guard::events`](crate::Guard::events).
///
/// It buffers a limited number of events. If it is read too slowly, further ones are dropped and counted in
/// [`GuardEvent::Skipped`].
#[derive(Debug)]
pub struct GuardEvents {
    lease: Arc<Lease>,
    receiver: mpsc::Receiver<GuardEvent>,
    /// How many found no room since the last that did; what is left of it at the end is told before the last
    /// event.
    skipped: Arc<AtomicU64>,
    done: bool,
}

impl GuardEvents {
    pub(crate) fn new(lease: Arc<Lease>) -> Self {
        let (receiver, skipped) = lease.subscribers().subscribe();
        // The lease may have ended between the two; then nothing else closes the new stream.
        if matches!(lease.state(), LeaseState::Lost(_) | LeaseState::Released) {
            lease.subscribers().close();
        }
        Self {
            lease,
            receiver,
            skipped,
            done: false,
        }
    }
}

impl Stream for GuardEvents {
    type Item = GuardEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<GuardEvent>> {
        if self.done {
            return Poll::Ready(None);
        }
        match Pin::new(&mut self.receiver).poll_next(cx) {
            Poll::Ready(None) => {
                let skipped = self.skipped.swap(0, Ordering::Relaxed);
                if skipped > 0 {
                    return Poll::Ready(Some(GuardEvent::Skipped(skipped)));
                }
                self.done = true;
                Poll::Ready(match self.lease.state() {
                    LeaseState::Lost(reason) => Some(GuardEvent::Lost(reason)),
                    LeaseState::Released => Some(GuardEvent::Released),
                    LeaseState::Held | LeaseState::Releasing => None,
                })
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_stream_is_forgotten_even_if_nothing_happens() {
        let subscribers = Subscribers::default();
        let kept = subscribers.subscribe();
        for _ in 0..100 {
            drop(subscribers.subscribe());
        }
        assert!(subscribers.list().len() <= 2);
        drop(kept);
    }
}
