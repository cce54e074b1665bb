//! Places for a few connections, given away in the order in which they were asked for.
//!
//! A mutex or a semaphore that lets newcomers pass would do until more is asked than the connections carry:
//! then whoever waits is passed again and again, and an operation that takes a millisecond runs into its time
//! limit.
//!
//! *Who waits is dropped while it is given a place*: the place comes back by its own `Drop`, and goes on to
//! the next.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::oneshot;

pub(in crate::lease) struct Places<C> {
    state: Mutex<State<C>>,
}

struct State<C> {
    /// Places that nobody has.
    free: usize,
    /// Connections that nobody uses: no more than there are free places. The last one that was used is used
    /// next.
    idle: Vec<C>,
    waiting: VecDeque<oneshot::Sender<Place<C>>>,
}

/// The right to use one connection at a time.
pub(in crate::lease) struct Place<C> {
    places: Arc<Places<C>>,
    /// One that is there already.
    pub(in crate::lease) connection: Option<C>,
    /// Whether it is somebody's, and not on its way to somebody.
    counts: bool,
}

impl<C> Places<C> {
    pub(in crate::lease) fn new(many: usize, first: C) -> Arc<Self> {
        let state = State {
            free: many.max(1),
            idle: vec![first],
            waiting: VecDeque::new(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(self: &Arc<Self>, connection: Option<C>) -> Place<C> {
        Place {
            places: self.clone(),
            connection,
            counts: true,
        }
    }

    /// Waits for a place.
    ///
    /// # Cancel safety
    /// Whoever does not wait any more has no place.
    pub(in crate::lease) async fn take(self: &Arc<Self>) -> Place<C> {
        loop {
            let given = {
                let mut state = self.state();
                if state.free > 0 {
                    state.free -= 1;
                    let connection = state.idle.pop();
                    drop(state);
                    return self.place(connection);
                }
                let (send, given) = oneshot::channel();
                state.waiting.push_back(send);
                given
            };
            // A sender is dropped only with these places.
            if let Ok(place) = given.await {
                return place;
            }
        }
    }

    /// Waits for a place with a connection that nobody uses any more, for somebody whose own is being made.
    /// (It may come without one, where that broke.)
    ///
    /// # Cancel safety
    /// As [`take`](Self::take).
    pub(in crate::lease) async fn next(self: &Arc<Self>) -> Place<C> {
        let given = {
            let mut state = self.state();
            if let Some(connection) = state.idle.pop() {
                state.free = state.free.saturating_sub(1);
                drop(state);
                return self.place(Some(connection));
            }
            let (send, given) = oneshot::channel();
            state.waiting.push_back(send);
            given
        };
        match given.await {
            Ok(place) => place,
            // A sender is dropped only with these places.
            Err(_) => self.take().await,
        }
    }

    /// Leaves a connection to whoever comes next, if there is a place for it; otherwise it comes back.
    pub(in crate::lease) fn offer(&self, connection: C) -> Option<C> {
        let mut state = self.state();
        if state.idle.len() >= state.free {
            return Some(connection);
        }
        state.idle.push(connection);
        None
    }

    /// The connections that nobody uses, to be closed: where one broke the others are not trusted.
    pub(in crate::lease) fn clear(&self) -> Vec<C> {
        std::mem::take(&mut self.state().idle)
    }
}

impl<C> Place<C> {
    /// Those it is one of.
    pub(in crate::lease) fn of(&self) -> Arc<Places<C>> {
        self.places.clone()
    }

    /// Leaves the connection to the next one.
    pub(in crate::lease) fn give_back(mut self, connection: C) {
        self.connection = Some(connection);
    }
}

impl<C> Drop for Place<C> {
    fn drop(&mut self) {
        if !self.counts {
            return;
        }
        let mut connection = self.connection.take();
        loop {
            let next = {
                let mut state = self.places.state();
                match state.waiting.pop_front() {
                    Some(next) => next,
                    None => {
                        state.free += 1;
                        state.idle.extend(connection);
                        return;
                    }
                }
            };
            match next.send(self.places.place(connection.take())) {
                Ok(()) => return,
                // It does not wait any more.
                Err(mut back) => {
                    back.counts = false;
                    connection = back.connection.take();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn taken(places: &Arc<Places<char>>) -> Place<char> {
        places.take().now_or_never().expect("there is a place")
    }

    #[test]
    fn places_are_given_in_the_order_of_asking_and_newcomers_do_not_pass() {
        let places = Places::new(1, 'a');
        let mut held = taken(&places);
        assert_eq!(held.connection, Some('a'));
        let (mut second, mut third) = (Box::pin(places.take()), Box::pin(places.take()));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        held.connection.take();
        held.give_back('b');
        let newcomer = places.take().now_or_never();
        assert!(newcomer.is_none(), "it has passed those who wait");
        assert!(third.as_mut().now_or_never().is_none());
        let held = second.as_mut().now_or_never().expect("it is the next");
        assert_eq!(held.connection, Some('b'));
        drop(held);
        assert_eq!(
            third
                .as_mut()
                .now_or_never()
                .and_then(|mut p| p.connection.take()),
            Some('b')
        );
    }

    #[test]
    fn a_place_that_nobody_waits_for_any_more_goes_on_with_its_connection() {
        let places = Places::new(1, 'a');
        let held = taken(&places);
        let (mut gone, mut next) = (Box::pin(places.take()), Box::pin(places.take()));
        assert!(gone.as_mut().now_or_never().is_none() && next.as_mut().now_or_never().is_none());
        // Given a place, and dropped before it looks.
        drop(held);
        drop(gone);
        let held = next.as_mut().now_or_never().expect("it is the next");
        assert_eq!(held.connection, Some('a'));
        // Dropped while it waits.
        let mut gone = Box::pin(places.take());
        assert!(gone.as_mut().now_or_never().is_none());
        drop(gone);
        drop(held);
        assert_eq!(taken(&places).connection, Some('a'));
    }

    #[test]
    fn who_has_one_made_takes_one_that_is_given_back_sooner() {
        let places = Places::new(2, 'a');
        let (mut used, made) = (taken(&places), taken(&places));
        assert_eq!(
            (used.connection.take(), made.connection.as_ref()),
            (Some('a'), None)
        );
        let mut waits = Box::pin(places.next());
        assert!(waits.as_mut().now_or_never().is_none());
        used.give_back('a');
        let mut has = waits.now_or_never().expect("it was given back");
        assert_eq!(has.connection.take(), Some('a'));
        // The other one is for whoever comes next.
        made.give_back('b');
        let next = places.next().now_or_never().expect("it is idle");
        assert_eq!(next.connection, Some('b'));
        // And there are not more of them than were there.
        assert_eq!(places.offer('c'), Some('c'));
        assert!(places.take().now_or_never().is_none());
        drop(has);
        assert_eq!(places.offer('d'), None);
        assert_eq!(places.offer('e'), Some('e'));
        assert_eq!(taken(&places).connection, Some('d'));
    }

    #[test]
    fn there_are_as_many_as_was_said_and_no_more() {
        let places = Places::new(2, 'a');
        let (one, two) = (taken(&places), taken(&places));
        assert_eq!(
            (one.connection.as_ref(), two.connection.as_ref()),
            (Some(&'a'), None)
        );
        assert!(places.take().now_or_never().is_none());
        assert!(places.clear().is_empty());
        drop(two);
        assert!(places.take().now_or_never().is_some());
    }
}
