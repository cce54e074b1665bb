//! What happens to a held lock, as a stream.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::Stream;
use futures::channel::mpsc;

use crate::engine::{End, Lease};
use crate::error::{Error, LossReason};

/// What happens to a held lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum GuardEvent {
    /// A renewal was confirmed; the deadline has moved.
    Renewed,
    /// A renewal failed; it is tried again until the deadline.
    RenewalFailed(Error),
    /// It has been held for as long as [`LockOptions::warn_after`](crate::LockOptions::warn_after) says, or a multiple.
    HeldLong,
    /// It is lost. The last event.
    Lost(LossReason),
    /// It was released. The last event.
    Released,
    /// The stream was read too slowly; that many events are missing here. The last event is never missing.
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
    skipped: u64,
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

    fn subscribe(&self) -> mpsc::Receiver<GuardEvent> {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        self.list().push(Subscriber { sender, skipped: 0 });
        receiver
    }
}

impl Subscriber {
    /// `false` once nobody reads.
    fn send(&mut self, event: &GuardEvent) -> bool {
        if self.skipped > 0 {
            match self.sender.try_send(GuardEvent::Skipped(self.skipped)) {
                Ok(()) => self.skipped = 0,
                Err(e) if e.is_disconnected() => return false,
                Err(_) => {
                    self.skipped += 1;
                    return true;
                }
            }
        }
        match self.sender.try_send(event.clone()) {
            Ok(()) => true,
            Err(e) if e.is_disconnected() => false,
            Err(_) => {
                self.skipped += 1;
                true
            }
        }
    }
}

/// The events of one guard: see [`Guard::events`](crate::Guard::events).
#[derive(Debug)]
pub struct GuardEvents {
    lease: Arc<Lease>,
    receiver: mpsc::Receiver<GuardEvent>,
    done: bool,
}

impl GuardEvents {
    pub(crate) fn new(lease: Arc<Lease>) -> Self {
        let receiver = lease.subscribers().subscribe();
        // It may have ended between the two; then nobody is left to close the new stream.
        if matches!(lease.end(), End::Lost(_) | End::Released) {
            lease.subscribers().close();
        }
        Self {
            lease,
            receiver,
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
                self.done = true;
                Poll::Ready(match self.lease.end() {
                    End::Lost(reason) => Some(GuardEvent::Lost(reason)),
                    End::Released => Some(GuardEvent::Released),
                    End::Held | End::Releasing => None,
                })
            }
            other => other,
        }
    }
}
