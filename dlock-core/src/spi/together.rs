//! Requests that travel together: see [`Together`].

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use futures::channel::oneshot;

/// So many on their way go alone: there is little to gain, and a hand-off is a release beside an acquire.
const FEW: usize = 4;

/// Requests to one store, of which those that come while others are on their way go out as one.
///
/// Nobody waits for company. A request that finds but a few others on their way goes [alone](Self::alone), at
/// once. Otherwise it takes a [seat](Self::seat), and whoever took the first one spawns a task that sends all
/// that [leave](Self::leave), as soon as it runs: which is when those tasks have run that were ready.
///
/// * *Whoever asked is dropped.* Before the task runs its seat is empty, and nothing is sent. After that the
///   request is carried out with the others, and its answer is nobody's; who owes what came of it is as if it
///   had been sent alone.
/// * *They overtake one another.* Requests of two kinds, and of two tasks, have no order: of one lease each
///   waits for the answer of the one before.
/// * *The runtime ends, and with it the task.* Then whoever has a seat is told that nobody answers.
///
/// That one of them fails alone, and that a lost answer is lost for each, is for the store to see to.
pub struct Together<Q, A> {
    under_way: AtomicUsize,
    seats: Mutex<Vec<Seat<Q, A>>>,
}

/// A request that has not been sent.
pub struct Seat<Q, A> {
    /// What is asked.
    pub request: Q,
    answer: oneshot::Sender<A>,
}

impl<Q, A> Seat<Q, A> {
    /// Completes when nobody waits for the answer any more.
    pub fn left(&mut self) -> impl Future<Output = ()> {
        self.answer.cancellation()
    }

    /// Tells whoever asked. One who has left meanwhile is told nothing.
    pub fn answer(self, answer: A) {
        drop(self.answer.send(answer));
    }
}

/// Requests on their way, until it is dropped.
#[derive(Debug)]
pub struct UnderWay<'a>(&'a AtomicUsize, usize);

impl<'a> UnderWay<'a> {
    fn new(all: &'a AtomicUsize, many: usize) -> Self {
        all.fetch_add(many, Ordering::Relaxed);
        Self(all, many)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl<Q, A> Together<Q, A> {
    /// For a request that goes alone: few are on their way.
    pub fn alone(&self) -> Option<UnderWay<'_>> {
        let is_alone = self.under_way.load(Ordering::Relaxed) < FEW;
        is_alone.then(|| UnderWay::new(&self.under_way, 1))
    }

    /// For another one: where its answer arrives, and whether whoever asks is the first, who has all sent
    /// that will have a seat by then.
    pub fn seat(&self, request: Q) -> (oneshot::Receiver<A>, bool) {
        let (answer, answered) = oneshot::channel();
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        seats.push(Seat { request, answer });
        (answered, seats.len() == 1)
    }

    /// Those that have a seat, but for whom nobody waits any more. They are on their way until the second is
    /// dropped.
    pub fn leave(&self) -> (Vec<Seat<Q, A>>, UnderWay<'_>) {
        let mut seats = std::mem::take(&mut *self.seats.lock().unwrap_or_else(PoisonError::into_inner));
        seats.retain(|seat| !seat.answer.is_canceled());
        let under_way = UnderWay::new(&self.under_way, seats.len());
        (seats, under_way)
    }
}

impl<Q, A> Default for Together<Q, A> {
    fn default() -> Self {
        Self {
            under_way: AtomicUsize::new(0),
            seats: Mutex::default(),
        }
    }
}

impl<Q, A> fmt::Debug for Together<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Together").finish_non_exhaustive()
    }
}

impl<Q, A> fmt::Debug for Seat<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_few_go_alone_and_those_who_gave_up_do_not_leave() {
        let all = Together::<u8, u8>::default();
        let few: Vec<_> = (0..FEW).map(|_| all.alone().unwrap()).collect();
        assert!(all.alone().is_none());
        let (mut first, is_first) = all.seat(1);
        let (gone, is_second) = all.seat(2);
        assert!(is_first && !is_second);
        drop(gone);
        drop(few);
        let (seats, under_way) = all.leave();
        assert_eq!(seats.iter().map(|s| s.request).collect::<Vec<_>>(), [1]);
        for seat in seats {
            seat.answer(7);
        }
        assert_eq!((&mut first).now_or_never(), Some(Ok(7)));
        let rest: Vec<_> = (1..FEW).map(|_| all.alone().unwrap()).collect();
        assert!(all.alone().is_none());
        drop((under_way, rest));
        assert!(all.alone().is_some() && all.seat(3).1);
    }
}
