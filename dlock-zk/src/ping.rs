//! Checks that the session is alive: one ping at a time, shared by all callers.
//!
//! Callers that come while a ping is in flight all wait for it. Its answer is enough for them if it was sent
//! recently; otherwise one more ping is sent for all of them. A slow server is not asked twice.
//!
//! What could break it, and why it does not:
//!
//! * *A user's future has sent the ping, and is not polled any more.* A shared future wakes all its waiters,
//!   and any of them takes the answer.
//! * *It is dropped.* The ping stays here, and the next caller takes its answer first.
//! * *The session ends meanwhile.* A ping that stays would keep the driver's client alive, and so the
//!   session. It is [forgotten](Pings::forget).
//! * *An answer came long ago, and was not taken.* Then a later answer counts, or it is too old: it is not
//!   enough.
//! * *A ping is joined just when it is sent.* It is marked as begun before it is.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use zookeeper_client::Error as Zk;

/// What becomes of a ping, for all who wait for it.
type Answer = Shared<BoxFuture<'static, Result<(), Zk>>>;

struct Ping {
    answer: Answer,
    /// Nobody joins it any more.
    begun: Arc<AtomicBool>,
}

/// The last ping of a session.
#[derive(Default)]
pub(crate) struct Pings(Mutex<Option<Ping>>);

impl Pings {
    /// The answer to a ping that is sent after this call, or to one that is on its way now and `is_enough`
    /// when it is answered. `ask` makes a future that sends it when it is polled first.
    pub(crate) fn next<F>(
        &self,
        is_enough: impl FnOnce() -> bool + Send + 'static,
        ask: impl FnOnce() -> F,
    ) -> Answer
    where
        F: Future<Output = Result<(), Zk>> + Send + 'static,
    {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ping) = &*last
            && !ping.begun.load(Ordering::SeqCst)
        {
            return ping.answer.clone();
        }
        let before = last.take().map(|ping| ping.answer);
        let begun = Arc::new(AtomicBool::new(false));
        let (has_begun, asking) = (begun.clone(), ask());
        let answer = async move {
            let is_served = match before {
                Some(before) => before.await.is_ok() && is_enough(),
                None => false,
            };
            has_begun.store(true, Ordering::SeqCst);
            match is_served {
                true => Ok(()),
                false => asking.await,
            }
        };
        let answer = answer.boxed().shared();
        *last = Some(Ping {
            answer: answer.clone(),
            begun,
        });
        answer
    }

    /// Drops the last ping. Callers that wait for its answer still get it.
    pub(crate) fn forget(&self) {
        // Dropped outside the mutex: with it may go the driver's client.
        let _last = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures::channel::oneshot;

    use super::*;

    #[test]
    fn one_ping_is_on_its_way_and_later_callers_share_the_next() {
        let (pings, asked) = (Pings::default(), Arc::new(AtomicUsize::new(0)));
        let ask = |answered: oneshot::Receiver<Result<(), Zk>>| {
            let asked = asked.clone();
            move || async move {
                asked.fetch_add(1, Ordering::SeqCst);
                answered.await.unwrap()
            }
        };
        let (answer_first, first) = oneshot::channel();
        let (answer_second, second) = oneshot::channel();
        let mut a = pings.next(|| false, ask(first));
        assert!((&mut a).now_or_never().is_none());
        let mut b = pings.next(|| unreachable!("it failed"), ask(second));
        let c = pings.next(|| true, || async { unreachable!("it joins the one before") });
        assert!((&mut b).now_or_never().is_none());
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        // Nobody polls the first any more; the others go on.
        answer_first.send(Err(Zk::ConnectionLoss)).unwrap();
        assert!((&mut b).now_or_never().is_none());
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        answer_second.send(Ok(())).unwrap();
        assert_eq!(c.now_or_never(), Some(Ok(())));
        assert_eq!(b.now_or_never(), Some(Ok(())));
        assert_eq!(a.now_or_never(), Some(Err(Zk::ConnectionLoss)));
    }

    #[test]
    fn waiters_share_a_recent_answer() {
        let pings = Pings::default();
        let (answer, answered) = oneshot::channel();
        let mut first = pings.next(|| true, || async { answered.await.unwrap() });
        assert!((&mut first).now_or_never().is_none());
        let second = pings.next(|| true, || async { unreachable!("it is enough") });
        answer.send(Ok(())).unwrap();
        assert_eq!(second.now_or_never(), Some(Ok(())));
        // Which nobody joins who comes later.
        let third = pings.next(|| false, || async { Err(Zk::ConnectionLoss) });
        assert_eq!(third.now_or_never(), Some(Err(Zk::ConnectionLoss)));
    }

    #[test]
    fn a_ping_that_was_forgotten_keeps_nothing() {
        let (pings, kept) = (Pings::default(), Arc::new(()));
        let keeps = kept.clone();
        let ask = || async move {
            std::future::pending::<()>().await;
            drop(keeps);
            Ok(())
        };
        let mut asked = pings.next(|| true, ask);
        assert!((&mut asked).now_or_never().is_none());
        drop(asked);
        assert_eq!(Arc::strong_count(&kept), 2);
        pings.forget();
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
