//! Requests that go on while the caller does not poll them.
//!
//! A request has a connection, or the next place in the queue for one. Its future may not be polled for a
//! while: the other arm of a `select!` takes its time, a stream is read slowly. Then it would keep that
//! connection, and a row that it has locked, from all others.
//!
//! So the caller polls the request itself, which costs no change of tasks, and a request that was not polled
//! between two looks is moved to a task. (One that waits for the server is moved to a task as well. It takes
//! milliseconds anyway.)
//!
//! * *Both poll it*: they cannot. A request that is moved is replaced by a receiver for its result, under a
//!   mutex, and the caller is woken to wait for that.
//! * *The caller has gone*: so has the receiver, and the task ends.
//! * *The task is dropped with its runtime*: the caller gets an error.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dlock_core::Runtime;
use dlock_core::runtime::yield_now;
use futures::FutureExt as _;
use futures::channel::oneshot::{Canceled, Receiver, channel};
use futures::future::{BoxFuture, Either, select};

/// Who rests is noticed at the second look.
const LOOK: Duration = Duration::from_millis(5);

/// Looks after the requests of one client.
pub(in crate::lease) struct Background {
    runtime: Arc<dyn Runtime>,
    requests: Mutex<Requests>,
}

#[derive(Default)]
struct Requests {
    all: Vec<Weak<dyn Look>>,
    /// Exists as long as there is a task that looks.
    looker: Weak<()>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Background {
    pub(in crate::lease) fn new(runtime: Arc<dyn Runtime>) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            requests: Mutex::default(),
        })
    }

    /// Does that work, whether or not it is polled again after the first time. `Canceled`: its runtime has
    /// ended.
    ///
    /// # Cancel safety
    /// The work is dropped with it; by its task, if it has one.
    pub(in crate::lease) fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Running<T> {
        let request = Arc::new(Mutex::new(State {
            work: Some(Work::Own(work.boxed())),
            asker: None,
            was_polled: true,
        }));
        let one: Weak<Mutex<State<T>>> = Arc::downgrade(&request);
        let mut requests = lock(&self.requests);
        // Without that task, since the runtime has ended, nothing piles up either.
        if requests.all.len() == requests.all.capacity() {
            requests.all.retain(|one| one.strong_count() > 0);
        }
        requests.all.push(one);
        if requests.looker.strong_count() == 0 {
            let looker = Arc::new(());
            requests.looker = Arc::downgrade(&looker);
            drop(requests);
            let looking = look(Arc::downgrade(self), looker, self.runtime.clone());
            self.runtime.spawn(looking.boxed());
        }
        Running(request)
    }

    /// Whether there are requests. If not, the task ends.
    fn look(&self) -> bool {
        let mut requests = lock(&self.requests);
        let mut askers = Vec::new();
        requests.all.retain(|one| {
            let one = one.upgrade();
            one.map(|one| askers.extend(one.look(&*self.runtime))).is_some()
        });
        let goes_on = !requests.all.is_empty();
        if !goes_on {
            requests.looker = Weak::new();
        }
        // Outside the mutex: who is woken may run at once, and begin or drop a request.
        drop(requests);
        askers.into_iter().for_each(Waker::wake);
        goes_on
    }
}

/// Ends with the last request; dropped with the runtime, it lets the next one begin to look again.
async fn look(background: Weak<Background>, _looker: Arc<()>, runtime: Arc<dyn Runtime>) {
    loop {
        runtime.sleep(LOOK).await;
        yield_now().await;
        if background.upgrade().is_none_or(|background| !background.look()) {
            return;
        }
    }
}

struct State<T> {
    /// Until it is done, or its caller has gone.
    work: Option<Work<T>>,
    asker: Option<Waker>,
    /// Since the last look.
    was_polled: bool,
}

enum Work<T> {
    /// Polled by the caller.
    Own(BoxFuture<'static, T>),
    /// Given to a task.
    Given(Receiver<T>),
}

trait Look: Send + Sync {
    /// The task to wake.
    fn look(&self, runtime: &dyn Runtime) -> Option<Waker>;
}

impl<T: Send + 'static> Look for Mutex<State<T>> {
    fn look(&self, runtime: &dyn Runtime) -> Option<Waker> {
        // If it is locked it is polled just now.
        let Ok(mut state) = self.try_lock() else {
            return None;
        };
        if std::mem::replace(&mut state.was_polled, false) {
            return None;
        }
        let (mut send, done) = channel();
        let work = match state.work.take() {
            Some(Work::Own(work)) => work,
            other => {
                state.work = other;
                return None;
            }
        };
        state.work = Some(Work::Given(done));
        let asker = state.asker.take();
        drop(state);
        let task = async move {
            // First whether it is wanted: an unwanted request takes no further step.
            let done = match select(send.cancellation(), work).await {
                Either::Left(_) => return,
                Either::Right((done, _)) => done,
            };
            let _ = send.send(done);
        };
        runtime.spawn(task.boxed());
        asker
    }
}

/// The outcome of the work.
pub(in crate::lease) struct Running<T>(Arc<Mutex<State<T>>>);

impl<T> Future for Running<T> {
    type Output = Result<T, Canceled>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let state = &mut *lock(&self.0);
        state.was_polled = true;
        let polled = match &mut state.work {
            Some(Work::Own(work)) => work.as_mut().poll(cx).map(Ok),
            Some(Work::Given(done)) => done.poll_unpin(cx),
            None => Poll::Pending,
        };
        match polled.is_ready() {
            true => state.work = None,
            false => state.asker = Some(cx.waker().clone()),
        }
        polled
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        // It is dropped when nothing is locked any more: it may wake whatever waits for what it has.
        let work = lock(&self.0).work.take();
        drop(work);
    }
}

#[cfg(all(test, feature = "tokio"))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use dlock_core::runtime::Tokio;
    use futures::channel::oneshot;

    use super::*;

    fn background() -> Arc<Background> {
        Background::new(Tokio::current().expect("it is tokio"))
    }

    async fn soon<T>(what: impl Future<Output = T>) -> T {
        let limit = Duration::from_secs(10);
        tokio::time::timeout(limit, what).await.expect("it takes no time")
    }

    #[tokio::test]
    async fn a_polled_request_needs_no_task() {
        let background = background();
        let work = background.run(async {
            let here = tokio::task::id();
            for _ in 0..20 {
                tokio::time::sleep(LOOK / 5).await;
            }
            (here, tokio::task::id())
        });
        let asking = tokio::spawn(async move { (tokio::task::id(), work.await) });
        let (own, worked) = soon(asking).await.unwrap();
        assert_eq!(worked, Ok((own, own)));
    }

    #[tokio::test]
    async fn an_unpolled_request_goes_on() {
        let background = background();
        let (begin, begun) = oneshot::channel();
        let (end, ended) = oneshot::channel::<()>();
        let mut asking = Box::pin(background.run(async move {
            tokio::time::sleep(LOOK).await;
            begin.send(()).unwrap();
            ended.await.unwrap();
            7
        }));
        assert!(futures::poll!(&mut asking).is_pending());
        soon(begun).await.unwrap();
        let asking = tokio::spawn(asking);
        tokio::task::yield_now().await;
        end.send(()).unwrap();
        assert_eq!(soon(asking).await.unwrap(), Ok(7));
    }

    #[tokio::test]
    async fn dropped_it_takes_the_work_along() {
        for rests in [false, true] {
            let background = background();
            let (mark, dropped) = oneshot::channel::<()>();
            let gone_on = Arc::new(AtomicBool::new(false));
            let mut asking = Box::pin(background.run({
                let gone_on = gone_on.clone();
                async move {
                    let _mark = mark;
                    tokio::time::sleep(LOOK * 8).await;
                    gone_on.store(true, Ordering::SeqCst);
                }
            }));
            assert!(futures::poll!(&mut asking).is_pending());
            if rests {
                tokio::time::sleep(LOOK * 4).await;
            }
            drop(asking);
            assert_eq!(soon(dropped).await, Err(Canceled), "rests: {rests}");
            tokio::time::sleep(LOOK * 8).await;
            assert!(!gone_on.load(Ordering::SeqCst));
        }
    }

    #[test]
    fn where_the_runtime_ends_the_asker_is_told_so() {
        let tokio = tokio::runtime::Builder::new_current_thread();
        let tokio = { tokio }.enable_time().build().unwrap();
        let (background, asking) = tokio.block_on(async {
            let background = background();
            let (begin, begun) = oneshot::channel();
            let mut asking = Box::pin(background.run(async move {
                tokio::time::sleep(LOOK).await;
                begin.send(()).unwrap();
                std::future::pending::<()>().await;
            }));
            assert!(futures::poll!(&mut asking).is_pending());
            soon(begun).await.unwrap();
            (background, asking)
        });
        drop(tokio);
        assert_eq!(asking.now_or_never(), Some(Err(Canceled)));
        for n in 0..1000 {
            assert_eq!(background.run(async move { n }).now_or_never(), Some(Ok(n)));
        }
        let requests = lock(&background.requests);
        assert!(requests.all.len() < 64 && requests.looker.strong_count() == 0);
    }

    #[tokio::test]
    async fn nothing_is_looked_at_without_requests() {
        let background = background();
        let is_looked_at = || lock(&background.requests).looker.strong_count() > 0;
        for _ in 0..2 {
            let work = background.run(async { 7 });
            assert!(is_looked_at());
            assert_eq!(work.await, Ok(7));
            soon(async {
                while is_looked_at() {
                    tokio::time::sleep(LOOK).await;
                }
            })
            .await;
        }
    }
}
