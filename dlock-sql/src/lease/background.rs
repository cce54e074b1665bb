//! Requests that go on while whoever asked does not poll them.
//!
//! A request has a connection, or the next place in the line for one. Its future may rest: the other arm of a
//! `select!` takes its time, a stream is read slowly. Then it would keep that connection, and a locked row.
//!
//! So whoever asked polls the request itself, which costs no change of tasks, and one that is still there at
//! the second look is polled by a task from then on.
//!
//! * *Both poll it*: the mutex is between them, and whoever asked waits for what the task sends.
//! * *Whoever asked has gone*: the work is dropped, and the task is woken to end.
//! * *The task is dropped with its runtime*: so is the work, and whoever asked is told so.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dlock_core::Runtime;
use dlock_core::runtime::yield_now;
use futures::FutureExt as _;
use futures::channel::oneshot::{Canceled, Receiver, channel};
use futures::future::BoxFuture;

/// What lasts for two looks is polled by a task.
const LOOK: Duration = Duration::from_millis(5);

/// Looks after the requests of one client.
pub(in crate::lease) struct Background {
    runtime: Arc<dyn Runtime>,
    requests: Mutex<Requests>,
}

#[derive(Default)]
struct Requests {
    /// Since the last look.
    young: Vec<Weak<Mutex<Request>>>,
    /// There as long as somebody looks at them.
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

    /// Does that work, whether or not it is polled again. `Canceled`: its runtime has ended.
    ///
    /// # Cancel safety
    /// The work is dropped with it.
    pub(in crate::lease) fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Running<T> {
        let (send, done) = channel();
        let request = Arc::new(Mutex::new(Request {
            work: Some(work.map(|done| drop(send.send(done))).boxed()),
            task: None,
        }));
        let mut requests = lock(&self.requests);
        if requests.looker.strong_count() == 0 {
            // Where nobody looks, since the runtime has ended, nothing piles up either.
            requests.young.clear();
            let looker = Arc::new(());
            requests.looker = Arc::downgrade(&looker);
            let looking = look(Arc::downgrade(self), looker, self.runtime.clone());
            self.runtime.spawn(looking.boxed());
        }
        requests.young.push(Arc::downgrade(&request));
        drop(requests);
        Running { request, done }
    }
}

/// Ends with the last request; dropped with the runtime, it lets the next one begin to look again.
async fn look(background: Weak<Background>, _looker: Arc<()>, runtime: Arc<dyn Runtime>) {
    let mut old: Vec<Weak<Mutex<Request>>> = Vec::new();
    loop {
        runtime.sleep(LOOK).await;
        yield_now().await;
        for request in old.drain(..) {
            if let Some(request) = request.upgrade() {
                runtime.spawn(Task(request).boxed());
            }
        }
        let Some(background) = background.upgrade() else {
            return;
        };
        let mut requests = lock(&background.requests);
        std::mem::swap(&mut requests.young, &mut old);
        if old.is_empty() {
            requests.looker = Weak::new();
            return;
        }
    }
}

struct Request {
    /// Until it is done, or nobody wants it any more.
    work: Option<BoxFuture<'static, ()>>,
    /// There if a task polls it.
    task: Option<Waker>,
}

impl Request {
    fn step(&mut self, cx: &mut Context<'_>) {
        if self
            .work
            .as_mut()
            .is_some_and(|work| work.as_mut().poll(cx).is_ready())
        {
            self.work = None;
        }
    }

    /// Nobody goes on with it. (Outside the mutex: what is dropped and woken may begin or drop a request.)
    fn end(request: &Mutex<Self>) {
        let mut state = lock(request);
        let (work, task) = (state.work.take(), state.task.take());
        drop(state);
        drop(work);
        if let Some(task) = task {
            task.wake();
        }
    }
}

struct Task(Arc<Mutex<Request>>);

impl Future for Task {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut request = lock(&self.0);
        request.task = Some(cx.waker().clone());
        request.step(cx);
        match request.work {
            Some(_) => Poll::Pending,
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        Request::end(&self.0);
    }
}

/// The outcome of the work.
pub(in crate::lease) struct Running<T> {
    request: Arc<Mutex<Request>>,
    done: Receiver<T>,
}

impl<T> Future for Running<T> {
    type Output = Result<T, Canceled>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        {
            let mut request = lock(&self.request);
            if request.task.is_none() {
                request.step(cx);
            }
        }
        self.done.poll_unpin(cx)
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        Request::end(&self.request);
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
    async fn who_polls_does_the_work_of_a_moment_and_no_task_does() {
        let background = background();
        let asking = tokio::spawn(async move {
            let work = background.run(async {
                let here = tokio::task::id();
                tokio::task::yield_now().await;
                (here, tokio::task::id())
            });
            (tokio::task::id(), work.await)
        });
        let (own, worked) = soon(asking).await.unwrap();
        assert_eq!(worked, Ok((own, own)));
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
        assert!(requests.young.len() < 64 && requests.looker.strong_count() == 0);
    }

    #[tokio::test]
    async fn nobody_looks_at_nothing() {
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
