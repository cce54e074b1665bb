//! A few connections, lent in the order of the requests.
//!
//! If newcomers could pass, waiters would be passed again and again under overload, and a request of a
//! millisecond would run into its time limit.
//!
//! *A waiter is dropped while it is given a slot*: the slot's own `Drop` passes it on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::oneshot;

pub(in crate::lease) struct Pool<C>(Mutex<State<C>>);

struct State<C> {
    /// Free slots.
    free: usize,
    /// Idle connections, no more than there are free slots. The last one used is used next.
    idle: Vec<C>,
    waiting: VecDeque<oneshot::Sender<Slot<C>>>,
}

/// The right to use one connection.
pub(in crate::lease) struct Slot<C> {
    pool: Arc<Pool<C>>,
    /// One that is there already. What is in here is left to the next one.
    pub(in crate::lease) connection: Option<C>,
}

impl<C> Pool<C> {
    pub(in crate::lease) fn new(slots: usize, first: C) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            free: slots.max(1),
            idle: vec![first],
            waiting: VecDeque::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a slot, perhaps without a connection.
    ///
    /// # Cancel safety
    /// Cancelled, no slot is taken.
    pub(in crate::lease) async fn take(self: &Arc<Self>) -> Slot<C> {
        self.wait(|state| state.free > 0).await
    }

    /// Waits for a slot with a returned connection, while its own is made. (It may come without one, where
    /// that broke.)
    ///
    /// # Cancel safety
    /// Cancelled, no slot is taken.
    pub(in crate::lease) async fn next(self: &Arc<Self>) -> Slot<C> {
        self.wait(|state| !state.idle.is_empty()).await
    }

    async fn wait(self: &Arc<Self>, is_there: fn(&State<C>) -> bool) -> Slot<C> {
        loop {
            let given = {
                let mut state = self.state();
                if is_there(&state) {
                    state.free -= 1;
                    let connection = state.idle.pop();
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

    /// Leaves a connection to the next request, if there is a slot for it.
    pub(in crate::lease) fn offer(&self, connection: C) {
        let mut state = self.state();
        if state.idle.len() < state.free {
            state.idle.push(connection);
        }
    }

    /// The idle connections, to be closed.
    pub(in crate::lease) fn clear(&self) -> Vec<C> {
        std::mem::take(&mut self.state().idle)
    }
}

impl<C> Slot<C> {
    pub(in crate::lease) fn pool(&self) -> Arc<Pool<C>> {
        self.pool.clone()
    }

    /// Leaves the connection to the next one.
    pub(in crate::lease) fn give_back(mut self, connection: C) {
        self.connection = Some(connection);
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
        state.free += 1;
        state.idle.extend(connection);
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
        held.give_back('b');
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
    fn a_slot_of_a_gone_request_passes_on_its_connection() {
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
    fn a_returned_connection_beats_one_being_made() {
        let pool = Pool::new(2, 'a');
        let (mut used, made) = (taken(&pool), taken(&pool));
        assert_eq!((used.connection.take(), made.connection), (Some('a'), None));
        let mut waits = Box::pin(pool.next());
        assert!(waits.as_mut().now_or_never().is_none());
        used.give_back('a');
        let mut has = waits.now_or_never().expect("it was given back");
        assert_eq!(has.connection.take(), Some('a'));
        made.give_back('b');
        let next = pool.next().now_or_never().expect("it is idle");
        assert_eq!(next.connection, Some('b'));
        // No more are kept than there are free slots.
        pool.offer('c');
        assert!(pool.take().now_or_never().is_none());
        drop(has);
        pool.offer('d');
        pool.offer('e');
        assert_eq!(pool.clear(), ['d']);
    }
}
