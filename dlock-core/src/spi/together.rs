//! Requests that travel together: see [`Together`].

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::oneshot;

/// So many on their way go alone: there is little to gain, and a hand-off is a release beside an acquire.
const FEW: usize = 4;

/// Requests to one store, of which those that come while others are on their way go out as one.
///
/// Nobody waits for company. A request that finds but a few others on their way goes [alone](Self::alone), at
/// once. Otherwise it takes a [seat](Self::seat). Whoever is given the [`Departure`] spawns a task that has
/// all [leave](Departure::leave) until nobody has a seat: a store that answers one after the other may be
/// waited for in between, by which more travel together.
///
/// * *Whoever asked is dropped.* Before its seat leaves, nothing is sent. After that the request is carried
///   out with the others, and its answer is nobody's; who owes what came of it is as if it had been sent
///   alone.
/// * *They overtake one another.* Requests of two kinds, and of two tasks, have no order: of one lease each
///   waits for the answer of the one before.
/// * *The runtime ends, and with it the task.* Then whoever has a seat is told that nobody answers, and the
///   next one has another task do it.
///
/// That one of them fails alone, and that a lost answer is lost for each, is for the store to see to.
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

/// A request that is sent with others. It is on its way from when it leaves until it is answered or dropped.
#[derive(Debug)]
pub struct Seat<Q, A> {
    /// What is asked.
    pub request: Q,
    answer: oneshot::Sender<A>,
    under_way: Option<UnderWay<Q, A>>,
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

/// A request on its way, until it is dropped.
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

/// For the task that sends those who have a seat. Dropped before all have left, it tells the rest that nobody
/// answers.
#[derive(Debug)]
pub struct Departure<Q, A>(Option<Arc<Together<Q, A>>>);

impl<Q, A> Departure<Q, A> {
    /// At most so many of those who have a seat, in the order of asking; not those for whom nobody waits any
    /// more. `None` if nobody has one: whoever comes next has another task do it.
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
    /// For a request that goes alone: few are on their way.
    pub fn alone(self: &Arc<Self>) -> Option<UnderWay<Q, A>> {
        let is_alone = self.under_way.load(Ordering::Relaxed) < FEW;
        is_alone.then(|| UnderWay::new(self.clone()))
    }

    /// For another one: where its answer arrives, unless nobody answers; and what a task has to be spawned
    /// with, unless there is one.
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
    fn a_few_go_alone_and_those_who_gave_up_do_not_leave() {
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
    fn one_task_has_them_leave_until_nobody_has_a_seat() {
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
    fn where_the_task_is_dropped_all_are_told_and_the_next_is_first() {
        let all = Arc::<Few>::default();
        let (first, departure) = all.seat(1);
        let (second, none) = all.seat(2);
        assert!(none.is_none());
        drop(departure);
        assert!(first.now_or_never().unwrap().is_err() && second.now_or_never().unwrap().is_err());
        assert!(all.seat(3).1.is_some());
    }
}
