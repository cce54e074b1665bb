//! Requests that travel together: see [`Together`].

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::oneshot;

/// Up to this number of requests in transit go alone: there is little to gain, and a hand-off is a release
/// beside an acquire.
const FEW: usize = 4;

/// Batches requests to one store: those that come while others are in transit are sent as one.
///
/// No request waits for company. If few others are in transit, a request goes [alone](Self::alone), at once.
/// Otherwise it takes a [seat](Self::seat). The caller that is given the [`Departure`] spawns a task that
/// lets all seats [leave](Departure::leave) until none is taken. If the store answers one request after the
/// other, that task may wait in between, so that more travel together.
///
/// * *The caller is dropped.* Before its seat leaves, nothing is sent. After that the request is executed
///   with the others and its answer is discarded; the engine owes an abandon as if the request had been sent
///   alone.
/// * *Requests overtake one another.* Requests of two kinds, and of two tasks, have no order. Of one lease,
///   each request waits for the answer to the one before.
/// * *The runtime ends, and the task with it.* All taken seats are told that there is no answer, and the next
///   caller starts another task.
///
/// The store must see to it that each request fails alone, and that a lost answer is lost for each.
#[derive(Debug)]
pub struct Together<Q, A> {
    under_way: AtomicUsize,
    seats: Mutex<Seats<Q, A>>,
}

#[derive(Debug)]
struct Seats<Q, A> {
    taken: Vec<Seat<Q, A>>,
    /// Whether there is a [`Departure`].
    depart: bool,
}

/// A request that is sent with others. It is in transit from when it leaves until it is answered or dropped.
#[derive(Debug)]
pub struct Seat<Q, A> {
    /// The request.
    pub request: Q,
    answer: oneshot::Sender<A>,
    under_way: Option<UnderWay<Q, A>>,
}

impl<Q, A> Seat<Q, A> {
    /// Completes when nobody waits for the answer any more.
    pub fn left(&mut self) -> impl Future<Output = ()> {
        self.answer.cancellation()
    }

    /// Delivers the answer, unless the caller has left.
    pub fn answer(self, answer: A) {
        drop(self.answer.send(answer));
    }
}

/// A request in transit, until this is dropped.
#[derive(Debug)]
pub struct UnderWay<Q, A>(Arc<Together<Q, A>>);

impl<Q, A> UnderWay<Q, A> {
    fn new(all: Arc<Together<Q, A>>) -> Self {
        all.under_way.fetch_add(1, Ordering::Relaxed);
        Self(all)
    }
}

impl<Q, A> Drop for UnderWay<Q, A> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// For the task that sends the seated requests. Dropped before all have left, it tells the rest that there is
/// no answer.
#[derive(Debug)]
pub struct Departure<Q, A>(Option<Arc<Together<Q, A>>>);

impl<Q, A> Departure<Q, A> {
    /// Takes at most `most` seated requests, in order of arrival, without those whose caller has left. `None`
    /// if there are none; the next caller then starts another task.
    pub fn leave(&mut self, most: usize) -> Option<Vec<Seat<Q, A>>> {
        let all = self.0.take()?;
        let mut seats = all.seats();
        seats.taken.retain(|seat| !seat.answer.is_canceled());
        seats.depart = !seats.taken.is_empty();
        if !seats.depart {
            return None;
        }
        let many = seats.taken.len().min(most);
        let mut leaving: Vec<_> = seats.taken.drain(..many).collect();
        drop(seats);
        for seat in &mut leaving {
            seat.under_way = Some(UnderWay::new(all.clone()));
        }
        self.0 = Some(all);
        Some(leaving)
    }
}

impl<Q, A> Drop for Departure<Q, A> {
    fn drop(&mut self) {
        if let Some(all) = &self.0 {
            let untold = std::mem::take(&mut *all.seats());
            drop(untold);
        }
    }
}

impl<Q, A> Together<Q, A> {
    /// Registers a request that goes alone, if few are in transit. `None` if it should take a seat.
    pub fn alone(self: &Arc<Self>) -> Option<UnderWay<Q, A>> {
        let is_alone = self.under_way.load(Ordering::Relaxed) < FEW;
        is_alone.then(|| UnderWay::new(self.clone()))
    }

    /// Takes a seat. Returns the receiver of the answer, which is closed if there will be none, and the
    /// [`Departure`] to start a task with, unless a task is running.
    pub fn seat(self: &Arc<Self>, request: Q) -> (oneshot::Receiver<A>, Option<Departure<Q, A>>) {
        let (answer, answered) = oneshot::channel();
        let mut seats = self.seats();
        seats.taken.push(Seat {
            request,
            answer,
            under_way: None,
        });
        let is_first = !std::mem::replace(&mut seats.depart, true);
        drop(seats);
        (answered, is_first.then(|| Departure(Some(self.clone()))))
    }

    fn seats(&self) -> MutexGuard<'_, Seats<Q, A>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
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

impl<Q, A> Default for Seats<Q, A> {
    fn default() -> Self {
        Self {
            taken: Vec::new(),
            depart: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    type Few = Together<u8, u8>;

    fn asked(left: Option<Vec<Seat<u8, u8>>>) -> Option<Vec<u8>> {
        left.map(|seats| seats.into_iter().map(|seat| seat.request).collect())
    }

    #[test]
    fn few_requests_go_alone_and_dropped_ones_do_not_leave() {
        let all = Arc::<Few>::default();
        let few: Vec<_> = (0..FEW).map(|_| all.alone().unwrap()).collect();
        assert!(all.alone().is_none());
        let (mut first, departure) = all.seat(1);
        let (gone, second) = all.seat(2);
        assert!(second.is_none());
        drop((gone, few));
        let mut seats = departure.unwrap().leave(64).unwrap();
        let rest: Vec<_> = (1..FEW).map(|_| all.alone().unwrap()).collect();
        assert!(all.alone().is_none());
        let seat = seats.pop().unwrap();
        assert!(seat.request == 1 && seats.is_empty());
        seat.answer(7);
        assert_eq!((&mut first).now_or_never(), Some(Ok(7)));
        assert!(all.alone().is_some());
        drop(rest);
    }

    #[test]
    fn one_task_sends_until_no_seat_is_taken() {
        let all = Arc::<Few>::default();
        let (_first, departure) = all.seat(1);
        let mut departure = departure.unwrap();
        let mut rest: Vec<_> = (2..5).map(|n| all.seat(n)).collect();
        assert_eq!(asked(departure.leave(2)), Some(vec![1, 2]));
        rest.push(all.seat(5));
        assert!(rest.iter().all(|(_, departure)| departure.is_none()));
        assert_eq!(asked(departure.leave(64)), Some(vec![3, 4, 5]));
        assert_eq!(asked(departure.leave(64)), None);
        let (mut next, another) = all.seat(6);
        drop(departure);
        assert!((&mut next).now_or_never().is_none());
        assert_eq!(asked(another.unwrap().leave(64)), Some(vec![6]));
    }

    #[test]
    fn dropped_task_fails_all_seats() {
        let all = Arc::<Few>::default();
        let (first, departure) = all.seat(1);
        let (second, none) = all.seat(2);
        assert!(none.is_none());
        drop(departure);
        assert!(first.now_or_never().unwrap().is_err() && second.now_or_never().unwrap().is_err());
        assert!(all.seat(3).1.is_some());
    }
}
