//! Permits for a few connections, given away in the order in which they were asked for.
//!
//! A mutex or a semaphore that lets newcomers pass would do until more is asked than the connections carry:
//! then whoever waits is passed again and again, and an operation that takes a millisecond runs into its time
//! limit.
//!
//! *Who waits is dropped while it is given a permit*: the permit comes back by its own `Drop`, and goes on to
//! the next.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::oneshot;

pub(in crate::lease) struct Permits<C> {
    state: Mutex<State<C>>,
}

struct State<C> {
    /// Permits that nobody has.
    free: usize,
    /// Connections that nobody uses: no more than there are free permits. The last one that was used is used
    /// next.
    idle: Vec<C>,
    waiting: VecDeque<oneshot::Sender<Permit<C>>>,
}

/// The right to use one connection at a time.
pub(in crate::lease) struct Permit<C> {
    permits: Arc<Permits<C>>,
    /// One that is there already.
    pub(in crate::lease) connection: Option<C>,
    /// Whether it is somebody's, and not on its way to somebody.
    counts: bool,
}

impl<C> Permits<C> {
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

    fn permit(self: &Arc<Self>, connection: Option<C>) -> Permit<C> {
        Permit {
            permits: self.clone(),
            connection,
            counts: true,
        }
    }

    /// Waits for a permit.
    ///
    /// # Cancel safety
    /// Whoever does not wait any more has no permit.
    pub(in crate::lease) async fn take(self: &Arc<Self>) -> Permit<C> {
        loop {
            let given = {
                let mut state = self.state();
                if state.free > 0 {
                    state.free -= 1;
                    let connection = state.idle.pop();
                    drop(state);
                    return self.permit(connection);
                }
                let (send, given) = oneshot::channel();
                state.waiting.push_back(send);
                given
            };
            // A sender is dropped only with these permits.
            if let Ok(permit) = given.await {
                return permit;
            }
        }
    }

    /// Waits for a permit with a connection that nobody uses any more, for somebody whose own is being made.
    /// (It may come without one, where that broke.)
    ///
    /// # Cancel safety
    /// As [`take`](Self::take).
    pub(in crate::lease) async fn next(self: &Arc<Self>) -> Permit<C> {
        let given = {
            let mut state = self.state();
            if let Some(connection) = state.idle.pop() {
                state.free = state.free.saturating_sub(1);
                drop(state);
                return self.permit(Some(connection));
            }
            let (send, given) = oneshot::channel();
            state.waiting.push_back(send);
            given
        };
        match given.await {
            Ok(permit) => permit,
            // A sender is dropped only with these permits.
            Err(_) => self.take().await,
        }
    }

    /// Leaves a connection to whoever comes next, if there is a permit for it; otherwise it comes back.
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

impl<C> Permit<C> {
    /// Those it is one of.
    pub(in crate::lease) fn of(&self) -> Arc<Permits<C>> {
        self.permits.clone()
    }

    /// Leaves the connection to the next one.
    pub(in crate::lease) fn give_back(mut self, connection: C) {
        self.connection = Some(connection);
    }
}

impl<C> Drop for Permit<C> {
    fn drop(&mut self) {
        if !self.counts {
            return;
        }
        let mut connection = self.connection.take();
        loop {
            let next = {
                let mut state = self.permits.state();
                match state.waiting.pop_front() {
                    Some(next) => next,
                    None => {
                        state.free += 1;
                        state.idle.extend(connection);
                        return;
                    }
                }
            };
            match next.send(self.permits.permit(connection.take())) {
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

    fn taken(permits: &Arc<Permits<char>>) -> Permit<char> {
        permits.take().now_or_never().expect("there is a permit")
    }

    #[test]
    fn places_are_given_in_the_order_of_asking_and_newcomers_do_not_pass() {
        let permits = Permits::new(1, 'a');
        let mut held = taken(&permits);
        assert_eq!(held.connection, Some('a'));
        let (mut second, mut third) = (Box::pin(permits.take()), Box::pin(permits.take()));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        held.connection.take();
        held.give_back('b');
        let newcomer = permits.take().now_or_never();
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
        let permits = Permits::new(1, 'a');
        let held = taken(&permits);
        let (mut gone, mut next) = (Box::pin(permits.take()), Box::pin(permits.take()));
        assert!(gone.as_mut().now_or_never().is_none() && next.as_mut().now_or_never().is_none());
        // Given a permit, and dropped before it looks.
        drop(held);
        drop(gone);
        let held = next.as_mut().now_or_never().expect("it is the next");
        assert_eq!(held.connection, Some('a'));
        // Dropped while it waits.
        let mut gone = Box::pin(permits.take());
        assert!(gone.as_mut().now_or_never().is_none());
        drop(gone);
        drop(held);
        assert_eq!(taken(&permits).connection, Some('a'));
    }

    #[test]
    fn who_has_one_made_takes_one_that_is_given_back_sooner() {
        let permits = Permits::new(2, 'a');
        let (mut used, made) = (taken(&permits), taken(&permits));
        assert_eq!(
            (used.connection.take(), made.connection.as_ref()),
            (Some('a'), None)
        );
        let mut waits = Box::pin(permits.next());
        assert!(waits.as_mut().now_or_never().is_none());
        used.give_back('a');
        let mut has = waits.now_or_never().expect("it was given back");
        assert_eq!(has.connection.take(), Some('a'));
        // The other one is for whoever comes next.
        made.give_back('b');
        let next = permits.next().now_or_never().expect("it is idle");
        assert_eq!(next.connection, Some('b'));
        // And there are not more of them than were there.
        assert_eq!(permits.offer('c'), Some('c'));
        assert!(permits.take().now_or_never().is_none());
        drop(has);
        assert_eq!(permits.offer('d'), None);
        assert_eq!(permits.offer('e'), Some('e'));
        assert_eq!(taken(&permits).connection, Some('d'));
    }

    #[test]
    fn there_are_as_many_as_was_said_and_no_more() {
        let permits = Permits::new(2, 'a');
        let (one, two) = (taken(&permits), taken(&permits));
        assert_eq!(
            (one.connection.as_ref(), two.connection.as_ref()),
            (Some(&'a'), None)
        );
        assert!(permits.take().now_or_never().is_none());
        assert!(permits.clear().is_empty());
        drop(two);
        assert!(permits.take().now_or_never().is_some());
    }
}
