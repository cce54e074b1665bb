//! Waiting for a lock.
//!
//! A waiting future is woken by whichever comes first: a push of the store (polled here, so that the grant
//! runs the waiting task at once), a delivery of the keeper (a re-ask that was granted, a change that its
//! poller saw), the wait limit, or the end of the client. A lost push costs at most the wait for the next
//! re-ask: the keeper renews the queue entry at a third of its life, and sooner if something is known to
//! expire.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt};

use super::acquire::Request;
use super::core::Phase;
use super::handle::Engine;
use super::losses::Heard;
use super::poller::Poller;
use super::timers::Entry;
use super::waiter::{Delivery, Waiter};
use crate::error::Error;
use crate::observe;
use crate::spi::{Grant, Push, Wait, Wake};
use crate::timestamp::Timestamp;

/// Why the wait ended.
pub(super) enum Woken {
    /// With `Core::heard` from before it was asked for, if that was after the attempt.
    Granted(Grant, Option<Heard>),
    AskAgain,
    /// The store's pushes ended.
    PushesEnded,
    Failed(Error),
    TimedOut,
    Closed,
}

/// Waits until there is something to do for the request.
pub(super) async fn wait(
    request: &Request<'_>,
    how: Wait,
    queue_ttl: Option<Duration>,
    until: Option<Timestamp>,
) -> Woken {
    let engine = request.engine;
    let waiter = Arc::new(Waiter::new(request.key().clone(), queue_ttl, how.ahead));
    let (mut pushes, poller) = match how.wake {
        Wake::Push(stream) => (Some(stream), None),
        Wake::Poll { probe, min, max } => (None, Some((probe, min, max))),
    };
    let seat = Seat::take(engine, &waiter, how.recheck_in, poller);
    let _waiting = observe::Waiting::new(&engine.caps);
    let closing = engine.closing.listen();
    if engine.phase() != Phase::Open {
        return Woken::Closed;
    }
    let mut closing = pin!(closing);
    let mut limit = until.map(|t| engine.runtime.sleep(engine.now().until(t)));
    let woken = std::future::poll_fn(|cx| {
        if let Poll::Ready(delivery) = waiter.poll_delivery(cx) {
            return Poll::Ready(match delivery {
                Delivery::Granted(grant, heard) => Woken::Granted(grant, Some(heard)),
                Delivery::AskAgain => Woken::AskAgain,
                Delivery::Failed(e) => Woken::Failed(e),
            });
        }
        if let Some(woken) = poll_pushes(&mut pushes, cx, engine, &waiter) {
            if let Woken::Granted(grant, ..) = &woken {
                observe::handed_over(&engine.caps, grant, || engine.now());
            }
            return Poll::Ready(woken);
        }
        if closing.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Woken::Closed);
        }
        if limit.as_mut().is_some_and(|l| l.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(Woken::TimedOut);
        }
        Poll::Pending
    })
    .await;
    drop(seat);
    woken
}

/// What the store pushed, if that ends the wait.
fn poll_pushes(
    pushes: &mut Option<BoxStream<'static, Push>>,
    cx: &mut Context<'_>,
    engine: &Arc<Engine>,
    waiter: &Arc<Waiter>,
) -> Option<Woken> {
    while let Some(stream) = pushes {
        match stream.poll_next_unpin(cx) {
            Poll::Pending => return None,
            Poll::Ready(Some(Push::Granted(grant))) => return Some(Woken::Granted(grant, None)),
            // The keeper asks for a queued request by renewing its entry, in its batches.
            Poll::Ready(Some(Push::Changed)) if waiter.queue_ttl.is_some() => engine.hasten(waiter),
            Poll::Ready(Some(Push::Changed)) => return Some(Woken::AskAgain),
            Poll::Ready(None) => {
                // The connection is gone. A new attempt with the same key finds the queue entry, and gets a
                // new stream.
                *pushes = None;
                return Some(Woken::PushesEnded);
            }
        }
    }
    None
}

/// A waiter's registration with the keeper, removed when dropped.
struct Seat<'a> {
    engine: &'a Arc<Engine>,
    waiter: &'a Arc<Waiter>,
    poller: Option<Arc<Poller>>,
}

impl<'a> Seat<'a> {
    fn take(
        engine: &'a Arc<Engine>,
        waiter: &'a Arc<Waiter>,
        recheck_in: Option<Duration>,
        poll: Option<(Arc<dyn crate::spi::Probe>, Duration, Duration)>,
    ) -> Self {
        let now = engine.now();
        let at = engine.next_ask(waiter, now, recheck_in);
        let mut state = engine.state();
        state.timers.set(at, Entry::Waiter(waiter.clone()));
        let mut earliest = at;
        let poller = poll.map(|(probe, min, max)| {
            let mut own = Some(probe);
            let name = waiter.key.name.clone();
            let poller = match state.pollers.get(&name) {
                Some(poller) => poller.clone(),
                None => {
                    engine.pollers.fetch_add(1, Ordering::Relaxed);
                    let poller = Arc::new(Poller::new(name.clone(), own.take()));
                    state.pollers.insert(name, poller.clone());
                    poller
                }
            };
            let is_first = own.is_none();
            poller.join(waiter.clone(), own, (min, max));
            let first = now + poller.next_interval();
            // Sooner for the new waiter, never later for the others. A poller that is not in the timers is
            // looking now.
            if is_first {
                state.timers.set(first, Entry::Poller(poller.clone()));
            } else {
                state.timers.hasten(first, &Entry::Poller(poller.clone()));
            }
            earliest = earliest.min(first);
            poller
        });
        let earlier = earliest < state.armed;
        drop(state);
        if earlier {
            engine.wake_keeper();
        }
        Self {
            engine,
            waiter,
            poller,
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut state = self.engine.state();
        // First marked, then removed: the keeper, which puts waiters back under this mutex, checks the mark
        // first.
        self.waiter.leave();
        state.timers.remove(&self.waiter.place);
        if let Some(poller) = &self.poller
            && poller.leave(self.waiter)
        {
            state.timers.remove(&poller.place);
            if state
                .pollers
                .get(&poller.name)
                .is_some_and(|p| Arc::ptr_eq(p, poller))
            {
                state.pollers.remove(&poller.name);
                self.engine.pollers.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}
