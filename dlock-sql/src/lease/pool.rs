//! A few connections, lent in the order of asking.
//!
//! If newcomers could pass, whoever waits would be passed again and again once more is asked than the
//! connections carry, and a request of a millisecond would run into its time limit.
//!
//! *A waiter is dropped while it is given a slot*: the slot's own `Drop` passes it on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::oneshot;

pub(in crate::lease) struct Pool<C>(Mutex<State<C>>);

struct State<C> {
    /// Slots that nobody has, those without a connection first. The last one used is used next.
    free: Vec<Option<C>>,
    waiting: VecDeque<oneshot::Sender<Slot<C>>>,
}

/// The right to use one connection.
pub(in crate::lease) struct Slot<C> {
    pub(in crate::lease) pool: Arc<Pool<C>>,
    /// One that is there already. What is in here is left to the next one.
    pub(in crate::lease) connection: Option<C>,
}

impl<C> Pool<C> {
    pub(in crate::lease) fn new(slots: usize, first: C) -> Arc<Self> {
        let mut free: Vec<_> = (1..slots).map(|_| None).collect();
        free.push(Some(first));
        let waiting = VecDeque::new();
        Arc::new(Self(Mutex::new(State { free, waiting })))
    }

    fn state(&self) -> MutexGuard<'_, State<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a slot, perhaps without a connection.
    ///
    /// # Cancel safety
    /// Cancelled, no slot is taken.
    pub(in crate::lease) async fn take(self: &Arc<Self>) -> Slot<C> {
        loop {
            let given = {
                let mut state = self.state();
                if let Some(connection) = state.free.pop() {
                    let pool = self.clone();
                    return Slot { pool, connection };
                }
                let (send, given) = oneshot::channel();
                state.waiting.push_back(send);
                given
            };
            // A sender is dropped only with the pool.
            if let Ok(slot) = given.await {
                return slot;
            }
        }
    }

    /// The connections that nobody uses, to be closed.
    pub(in crate::lease) fn clear(&self) -> Vec<C> {
        self.state().free.iter_mut().filter_map(Option::take).collect()
    }
}

impl<C> Drop for Slot<C> {
    fn drop(&mut self) {
        let connection = self.connection.take();
        let mut state = self.pool.state();
        while let Some(next) = state.waiting.pop_front() {
            if !next.is_canceled() {
                drop(state);
                let pool = self.pool.clone();
                // To one that has gone since: dropped there, it goes on to the next.
                let _ = next.send(Self { pool, connection });
                return;
            }
        }
        let at = if connection.is_some() { state.free.len() } else { 0 };
        state.free.insert(at, connection);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn taken(pool: &Arc<Pool<char>>) -> Slot<char> {
        pool.take().now_or_never().expect("there is a slot")
    }

    #[test]
    fn slots_are_given_in_the_order_of_asking() {
        let pool = Pool::new(1, 'a');
        let mut held = taken(&pool);
        assert_eq!(held.connection.take(), Some('a'));
        let (mut second, mut third) = (Box::pin(pool.take()), Box::pin(pool.take()));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        held.connection = Some('b');
        drop(held);
        assert!(
            pool.take().now_or_never().is_none(),
            "it has passed those who wait"
        );
        assert!(third.as_mut().now_or_never().is_none());
        let held = second.as_mut().now_or_never().expect("it is the next");
        assert_eq!(held.connection, Some('b'));
        drop(held);
        let held = third.as_mut().now_or_never().expect("it is the next");
        assert_eq!(held.connection, Some('b'));
    }

    #[test]
    fn a_slot_given_to_nobody_goes_on_with_its_connection() {
        let pool = Pool::new(1, 'a');
        let held = taken(&pool);
        let mut waiting = [(); 3].map(|()| Box::pin(pool.take()));
        for one in &mut waiting {
            assert!(one.as_mut().now_or_never().is_none());
        }
        let [given, gone, mut next] = waiting;
        drop(gone);
        drop(held);
        drop(given);
        let held = next.as_mut().now_or_never().expect("it is the next");
        assert_eq!(held.connection, Some('a'));
    }

    #[test]
    fn what_was_used_last_is_used_next_and_what_has_no_connection_last() {
        let pool = Pool::new(2, 'a');
        let (used, made) = (taken(&pool), taken(&pool));
        assert_eq!((used.connection, made.connection), (Some('a'), None));
        assert!(pool.take().now_or_never().is_none());
        drop(used);
        drop(made);
        assert_eq!(taken(&pool).connection, Some('a'));
        assert_eq!(pool.clear(), ['a']);
        assert_eq!(taken(&pool).connection, None);
    }
}
