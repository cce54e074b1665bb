//! Requests that go on while whoever asked does not poll them.
//!
//! A request has a connection, or the next place in the line for one. Its future may rest: the other arm of a
//! `select!` takes its time, a stream is read slowly. Then it would keep that connection, and a row that it
//! has locked, from all others.
//!
//! So whoever asked polls the request itself, which costs no change of tasks, and a request that was not
//! polled between two looks is given to a task. (One that waits for the server is given to a task as well. It
//! takes milliseconds anyway.)
//!
//! * *Both poll it*: it is under a mutex, and only one of them is in charge.
//! * *It is given to the task just as whoever asked comes back*: the task wakes the asker at the end.
//! * *The task is dropped with its runtime*: whoever asked is woken, and goes on with it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dlock_core::Runtime;
use dlock_core::runtime::yield_now;
use futures::FutureExt as _;
use futures::future::BoxFuture;

/// Who rests is noticed at the second look.
const LOOK: Duration = Duration::from_millis(5);

/// After so many looks at nothing nobody looks until something is asked for.
const NOTHING: u32 = 20;

/// Looks after the requests of one client.
pub(in crate::lease) struct Background {
    runtime: Arc<dyn Runtime>,
    requests: Mutex<Requests>,
}

#[derive(Default)]
struct Requests {
    all: Vec<Weak<dyn Look>>,
    is_looked_at: bool,
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

    /// Does that work, whether or not it is polled again after the first time.
    ///
    /// # Cancel safety
    /// The work is dropped with it, at once.
    pub(in crate::lease) fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Running<T> {
        let request = Arc::new(Request(Mutex::new(State {
            work: Some(work.boxed()),
            done: None,
            asker: None,
            task: None,
            has_task: false,
            was_polled: true,
        })));
        let begin = {
            let mut requests = lock(&self.requests);
            // Where nobody looks, since the runtime has ended, nothing piles up either.
            if requests.all.len() == requests.all.capacity() {
                requests.all.retain(|one| one.strong_count() > 0);
            }
            let one: Weak<Request<T>> = Arc::downgrade(&request);
            requests.all.push(one);
            !std::mem::replace(&mut requests.is_looked_at, true)
        };
        if begin {
            let looker = Looker(Arc::downgrade(self));
            self.runtime.spawn(look(looker, self.runtime.clone()).boxed());
        }
        Running(request)
    }

    /// Whether there are requests.
    fn look(&self) -> bool {
        let mut requests = lock(&self.requests);
        requests.all.retain(|one| {
            let one = one.upgrade();
            one.map(|one| one.look(&*self.runtime)).is_some()
        });
        !requests.all.is_empty()
    }

    /// Nobody looks any more, unless something was asked for meanwhile.
    fn stop(&self) -> bool {
        let mut requests = lock(&self.requests);
        requests.is_looked_at = !requests.all.is_empty();
        !requests.is_looked_at
    }
}

/// Dropped with the runtime, it lets the next request begin to look again.
struct Looker(Weak<Background>);

impl Drop for Looker {
    fn drop(&mut self) {
        if let Some(background) = self.0.upgrade() {
            lock(&background.requests).is_looked_at = false;
        }
    }
}

async fn look(mut looker: Looker, runtime: Arc<dyn Runtime>) {
    let mut nothing = 0;
    loop {
        runtime.sleep(LOOK).await;
        yield_now().await;
        let Some(background) = looker.0.upgrade() else {
            return;
        };
        nothing = if background.look() { 0 } else { nothing + 1 };
        if nothing >= NOTHING && background.stop() {
            // Another one may look already.
            looker.0 = Weak::new();
            return;
        }
    }
}

trait Look: Send + Sync {
    fn look(self: Arc<Self>, runtime: &dyn Runtime);
}

struct Request<T>(Mutex<State<T>>);

struct State<T> {
    /// Until it is done, or nobody wants it any more.
    work: Option<BoxFuture<'static, T>>,
    /// What it came to in the task.
    done: Option<T>,
    asker: Option<Waker>,
    task: Option<Waker>,
    has_task: bool,
    /// Since the last look.
    was_polled: bool,
}

impl<T: Send + 'static> Look for Request<T> {
    fn look(self: Arc<Self>, runtime: &dyn Runtime) {
        // If it is locked it is polled just now.
        let Ok(mut state) = self.0.try_lock() else { return };
        let rests = !std::mem::replace(&mut state.was_polled, false);
        if rests && !state.has_task && state.work.is_some() {
            state.has_task = true;
            drop(state);
            runtime.spawn(Taken(self).boxed());
        }
    }
}

/// The rest of a request, in a task.
struct Taken<T: Send + 'static>(Arc<Request<T>>);

impl<T: Send + 'static> Future for Taken<T> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.0.0);
        let Some(work) = &mut state.work else {
            return Poll::Ready(());
        };
        match work.as_mut().poll(cx) {
            Poll::Ready(done) => {
                (state.work, state.done) = (None, Some(done));
                Poll::Ready(())
            }
            Poll::Pending => {
                state.task = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T: Send + 'static> Drop for Taken<T> {
    fn drop(&mut self) {
        let asker = {
            let mut state = lock(&self.0.0);
            state.has_task = false;
            state.asker.take()
        };
        if let Some(asker) = asker {
            asker.wake();
        }
    }
}

/// The outcome of the work.
pub(in crate::lease) struct Running<T: Send + 'static>(Arc<Request<T>>);

impl<T: Send + 'static> Future for Running<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let state = &mut *lock(&self.0.0);
        if let Some(done) = state.done.take() {
            return Poll::Ready(done);
        }
        if let (false, Some(work)) = (state.has_task, &mut state.work) {
            state.was_polled = true;
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                state.work = None;
                return Poll::Ready(done);
            }
        }
        state.asker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T: Send + 'static> Drop for Running<T> {
    fn drop(&mut self) {
        let (work, task) = {
            let mut state = lock(&self.0.0);
            (state.work.take(), state.task.take())
        };
        // Not while it is locked: it may wake whatever waits for what it has.
        drop(work);
        if let Some(task) = task {
            task.wake();
        }
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
    async fn who_polls_does_the_work_and_no_task_does() {
        let background = background();
        let work = background.run(async {
            let here = tokio::task::id();
            for _ in 0..20 {
                tokio::time::sleep(LOOK / 5).await;
            }
            (here, tokio::task::id())
        });
        let asking = tokio::spawn(async move { (tokio::task::id(), work.await) });
        let (own, (began, ended)) = soon(asking).await.unwrap();
        assert_eq!((began, ended), (own, own));
    }

    #[tokio::test]
    async fn work_of_one_who_rests_goes_on() {
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
        assert_eq!(soon(asking).await.unwrap(), 7);
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
            assert_eq!(
                dropped.now_or_never(),
                Some(Err(oneshot::Canceled)),
                "rests: {rests}"
            );
            tokio::time::sleep(LOOK * 8).await;
            assert!(!gone_on.load(Ordering::SeqCst));
        }
    }

    #[test]
    fn where_the_runtime_ends_the_asker_goes_on() {
        let tokio = tokio::runtime::Builder::new_current_thread();
        let tokio = { tokio }.enable_time().build().unwrap();
        let (end, ended) = oneshot::channel::<()>();
        let (background, mut asking) = tokio.block_on(async {
            let background = background();
            let (begin, begun) = oneshot::channel();
            let mut asking = Box::pin(background.run(async move {
                tokio::time::sleep(LOOK).await;
                begin.send(()).unwrap();
                ended.await.unwrap();
                7
            }));
            assert!(futures::poll!(&mut asking).is_pending());
            soon(begun).await.unwrap();
            (background, asking)
        });
        drop(tokio);
        assert!(asking.as_mut().now_or_never().is_none());
        end.send(()).unwrap();
        assert_eq!(asking.now_or_never(), Some(7));
        for n in 0..1000 {
            assert_eq!(background.run(async move { n }).now_or_never(), Some(n));
        }
        let requests = lock(&background.requests);
        assert!(requests.all.len() < 64 && !requests.is_looked_at);
    }

    #[tokio::test]
    async fn nobody_looks_at_nothing() {
        let background = background();
        let is_looked_at = || lock(&background.requests).is_looked_at;
        for _ in 0..2 {
            let work = background.run(async { 7 });
            assert!(is_looked_at());
            assert_eq!(work.await, 7);
            soon(async {
                while is_looked_at() {
                    tokio::time::sleep(LOOK).await;
                }
            })
            .await;
        }
    }
}
