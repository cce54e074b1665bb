//! Work that goes on whether or not whoever asked for it polls.
//!
//! A connection is lent to one request at a time. A future that has one, or is the next to be given one, and
//! rests (the arm of a `select!` whose other arm takes its time, a stream that is read slowly) would keep it
//! from all others: four of these, and no lease is renewed in time; on a name's row that is locked, one.
//!
//! So somebody looks after all that is on its way. Who polls does the work itself, which costs nothing more.
//! What could go on and has not been polled since the look before is given to a task, which does the rest of
//! it. (A task for each request would do as well, and costs a tenth of one: two changes of tasks.)
//!
//! * *It is polled by both.* It is locked meanwhile, and a poll is short.
//! * *It is given to the task at the moment when whoever asked comes back.* It goes on in the task, which
//!   wakes whoever waits for its end.
//! * *The task is dropped, with its runtime.* Whoever asked is woken, and goes on with it.
//! * *Two looks fall into one poll.* That is taken for a rest, and costs a task.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use dlock_core::Runtime;
use dlock_core::runtime::yield_now;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::task::AtomicWaker;

/// How often it is looked whether somebody rests: one who does is noticed after the second look.
const LOOK: Duration = Duration::from_millis(5);

/// After so many looks that found nothing there is no look any more until something is asked for.
const NOTHING: u32 = 20;

/// Looks after what is on its way.
pub(in crate::lease) struct Background {
    runtime: Arc<dyn Runtime>,
    on_its_way: Mutex<OnItsWay>,
}

#[derive(Default)]
struct OnItsWay {
    all: Vec<Weak<dyn Help>>,
    /// How many there may be before it is looked for those that are over; for when nobody looks, since the
    /// runtime has ended.
    room: usize,
    is_looked_at: bool,
}

/// So many at the least.
const ROOM: usize = 64;

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Background {
    pub(in crate::lease) fn new(runtime: Arc<dyn Runtime>) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            on_its_way: Mutex::default(),
        })
    }

    /// Does that work, once it has been polled for the first time, even if it is not polled any more.
    ///
    /// # Cancel safety
    /// The work is dropped as well, at once.
    pub(in crate::lease) fn help<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Running<T> {
        let shared = Arc::new(Shared {
            work: Mutex::new(Work::Going(work.boxed())),
            asker: AtomicWaker::new(),
            task: AtomicWaker::new(),
            could_go_on: AtomicBool::new(false),
            rested: AtomicBool::new(false),
            has_task: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let waker = Waker::from(shared.clone());
        self.look_after(&shared);
        Running { shared, waker }
    }

    fn look_after<T: Send + 'static>(self: &Arc<Self>, shared: &Arc<Shared<T>>) {
        let one: Weak<Shared<T>> = Arc::downgrade(shared);
        let begin = {
            let mut on_its_way = lock(&self.on_its_way);
            if on_its_way.all.len() >= on_its_way.room {
                on_its_way.all.retain(|one| one.strong_count() > 0);
                on_its_way.room = ROOM.max(on_its_way.all.len() * 2);
            }
            on_its_way.all.push(one);
            !std::mem::replace(&mut on_its_way.is_looked_at, true)
        };
        if begin {
            let looks = Looks(Arc::downgrade(self));
            self.runtime.spawn(looking(looks, self.runtime.clone()).boxed());
        }
    }

    /// Whether anything is on its way.
    fn look(&self) -> bool {
        let mut on_its_way = lock(&self.on_its_way);
        on_its_way.all.retain(|one| match one.upgrade() {
            Some(one) => one.look(&*self.runtime),
            None => false,
        });
        !on_its_way.all.is_empty()
    }

    /// Nobody looks any more until something is asked for, unless something was meanwhile.
    fn stop(&self) -> bool {
        let mut on_its_way = lock(&self.on_its_way);
        on_its_way.is_looked_at = !on_its_way.all.is_empty();
        !on_its_way.is_looked_at
    }
}

/// Whoever looks. Dropped with the runtime, nobody does any more; the next request has it begun again, if
/// there is a runtime.
struct Looks(Weak<Background>);

impl Drop for Looks {
    fn drop(&mut self) {
        if let Some(helper) = self.0.upgrade() {
            lock(&helper.on_its_way).is_looked_at = false;
        }
    }
}

/// Ends with the helper, or when there is nothing to do.
async fn looking(mut looks: Looks, runtime: Arc<dyn Runtime>) {
    let mut nothing = 0;
    loop {
        runtime.sleep(LOOK).await;
        yield_now().await;
        let Some(helper) = looks.0.upgrade() else { return };
        nothing = if helper.look() { 0 } else { nothing + 1 };
        if nothing >= NOTHING && helper.stop() {
            // The next one may look already.
            looks.0 = Weak::new();
            return;
        }
    }
}

trait Help: Send + Sync {
    /// Has a task go on with it if nobody has polled it since the last look, though it could go on then.
    /// Whether it is not at its end.
    fn look(self: Arc<Self>, runtime: &dyn Runtime) -> bool;
}

struct Shared<T> {
    work: Mutex<Work<T>>,
    asker: AtomicWaker,
    task: AtomicWaker,
    /// It was woken, and not polled since.
    could_go_on: AtomicBool,
    /// That was so at the last look.
    rested: AtomicBool,
    has_task: AtomicBool,
    /// There is no more work. A waker may be kept somewhere for long after that.
    is_over: AtomicBool,
}

enum Work<T> {
    Going(BoxFuture<'static, T>),
    Done(T),
    /// Whoever asked has the outcome, or does not want it.
    Over,
}

impl<T: Send + 'static> Shared<T> {
    /// A step of the work. Whether it is at its end.
    fn go_on(&self, work: &mut Work<T>, waker: &Waker) -> bool {
        let Work::Going(going) = work else { return true };
        self.could_go_on.store(false, Ordering::SeqCst);
        self.rested.store(false, Ordering::SeqCst);
        match going.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(out) => {
                *work = Work::Done(out);
                self.is_over.store(true, Ordering::SeqCst);
                true
            }
            Poll::Pending => false,
        }
    }
}

impl<T: Send + 'static> Wake for Shared<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.could_go_on.store(true, Ordering::SeqCst);
        match self.has_task.load(Ordering::SeqCst) {
            true => self.task.wake(),
            false => self.asker.wake(),
        }
    }
}

impl<T: Send + 'static> Help for Shared<T> {
    fn look(self: Arc<Self>, runtime: &dyn Runtime) -> bool {
        if self.is_over.load(Ordering::SeqCst) {
            return false;
        }
        if self.has_task.load(Ordering::SeqCst) || !self.could_go_on.load(Ordering::SeqCst) {
            return true;
        }
        if self.rested.swap(true, Ordering::SeqCst) {
            self.has_task.store(true, Ordering::SeqCst);
            let waker = Waker::from(self.clone());
            runtime.spawn(Taken { shared: self, waker }.boxed());
        }
        true
    }
}

/// The rest of it, in a task.
struct Taken<T: Send + 'static> {
    shared: Arc<Shared<T>>,
    waker: Waker,
}

impl<T: Send + 'static> Future for Taken<T> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.task.register(cx.waker());
        match self.shared.go_on(&mut lock(&self.shared.work), &self.waker) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl<T: Send + 'static> Drop for Taken<T> {
    /// It is at its end, or whoever asked has to go on with it.
    fn drop(&mut self) {
        self.shared.has_task.store(false, Ordering::SeqCst);
        self.shared.asker.wake();
    }
}

/// The outcome of the work.
pub(in crate::lease) struct Running<T: Send + 'static> {
    shared: Arc<Shared<T>>,
    waker: Waker,
}

impl<T: Send + 'static> Future for Running<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let shared = &self.shared;
        shared.asker.register(cx.waker());
        let mut work = lock(&shared.work);
        let done = match shared.has_task.load(Ordering::SeqCst) {
            true => !matches!(*work, Work::Going(_)),
            false => shared.go_on(&mut work, &self.waker),
        };
        if !done {
            return Poll::Pending;
        }
        match std::mem::replace(&mut *work, Work::Over) {
            Work::Done(out) => Poll::Ready(out),
            // Polled once more after that.
            _ => Poll::Pending,
        }
    }
}

impl<T: Send + 'static> Drop for Running<T> {
    fn drop(&mut self) {
        let work = std::mem::replace(&mut *lock(&self.shared.work), Work::Over);
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Not while it is locked: it may wake whatever waits for what it has.
        drop(work);
        self.shared.asker.take();
        self.shared.task.wake();
    }
}

#[cfg(all(test, feature = "tokio"))]
mod tests {
    use dlock_core::runtime::Tokio;
    use futures::channel::oneshot;

    use super::*;

    /// Says so when it is dropped.
    struct Mark(Arc<AtomicBool>);

    impl Drop for Mark {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn helper() -> Arc<Background> {
        Background::new(Tokio::current().expect("it is tokio"))
    }

    async fn soon<T>(what: impl Future<Output = T>) -> T {
        let limit = Duration::from_secs(10);
        tokio::time::timeout(limit, what).await.expect("it takes no time")
    }

    #[tokio::test]
    async fn who_polls_does_it_and_no_task_does() {
        let helper = helper();
        let work = helper.help(async {
            let here = tokio::task::id();
            tokio::time::sleep(LOOK * 4).await;
            (here, tokio::task::id())
        });
        let asking = tokio::spawn(async move { (tokio::task::id(), work.await) });
        let (own, (began, ended)) = soon(asking).await.unwrap();
        assert_eq!((began, ended), (own, own));
    }

    #[tokio::test]
    async fn who_rests_does_not_keep_the_work_from_going_on() {
        let helper = helper();
        let (go_on, goes_on) = oneshot::channel::<()>();
        let (begin, begun) = oneshot::channel();
        let (end, ended) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        let mut asking = Box::pin(helper.help(async move {
            goes_on.await.unwrap();
            begin.send(()).unwrap();
            ended.await.unwrap();
            tell.send(()).unwrap();
            7
        }));
        assert!(futures::poll!(&mut asking).is_pending());
        go_on.send(()).unwrap();
        soon(begun).await.unwrap();
        // It is woken at the end, which it is not the one to bring about.
        let asking = tokio::spawn(asking);
        tokio::task::yield_now().await;
        end.send(()).unwrap();
        soon(told).await.unwrap();
        assert_eq!(soon(asking).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn who_goes_away_takes_the_work_along() {
        for rests in [false, true] {
            let helper = helper();
            let dropped = Arc::new(AtomicBool::new(false));
            let mark = Mark(dropped.clone());
            let (go_on, goes_on) = oneshot::channel::<()>();
            let (begin, begun) = oneshot::channel();
            let mut asking = Box::pin(helper.help(async move {
                let _mark = mark;
                goes_on.await.unwrap();
                begin.send(()).unwrap();
                futures::future::pending::<()>().await;
            }));
            assert!(futures::poll!(&mut asking).is_pending());
            if rests {
                go_on.send(()).unwrap();
                soon(begun).await.unwrap();
            }
            assert!(!dropped.load(Ordering::SeqCst));
            drop(asking);
            assert!(dropped.load(Ordering::SeqCst), "rests: {rests}");
        }
    }

    /// Both have happened: what it waited for is there, and nobody wants it any more.
    #[tokio::test]
    async fn who_goes_away_first_has_nothing_begun() {
        let helper = helper();
        let (go_on, goes_on) = oneshot::channel::<()>();
        let begun = Arc::new(AtomicBool::new(false));
        let mark = begun.clone();
        let mut asking = Box::pin(helper.help(async move {
            let _ = goes_on.await;
            mark.store(true, Ordering::SeqCst);
        }));
        assert!(futures::poll!(&mut asking).is_pending());
        go_on.send(()).unwrap();
        drop(asking);
        tokio::time::sleep(LOOK * 4).await;
        assert!(!begun.load(Ordering::SeqCst));
    }

    /// What it had begun in a task it ends by itself.
    #[test]
    fn where_the_runtime_ends_whoever_asked_goes_on_with_it() {
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let (end, ended) = oneshot::channel::<()>();
        let asking = tokio.block_on(async {
            let (go_on, goes_on) = oneshot::channel::<()>();
            let (begin, begun) = oneshot::channel();
            let helper = helper();
            let mut asking = Box::pin(helper.help(async move {
                goes_on.await.unwrap();
                begin.send(()).unwrap();
                ended.await.unwrap();
                7
            }));
            assert!(futures::poll!(&mut asking).is_pending());
            go_on.send(()).unwrap();
            soon(begun).await.unwrap();
            [asking]
        });
        let [mut asking] = asking;
        assert!(asking.as_mut().now_or_never().is_none());
        drop(tokio);
        assert!(asking.as_mut().now_or_never().is_none());
        end.send(()).unwrap();
        assert_eq!(asking.now_or_never(), Some(7));
    }

    #[test]
    fn where_there_is_no_runtime_any_more_nothing_piles_up() {
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let helper = tokio.block_on(async { helper() });
        drop(tokio);
        for n in 0..ROOM * 4 {
            assert_eq!(helper.help(async move { n }).now_or_never(), Some(n));
        }
        let on_its_way = lock(&helper.on_its_way);
        assert!(on_its_way.all.len() <= ROOM && !on_its_way.is_looked_at);
    }

    /// It is not looked for ever, and again when there is something.
    #[tokio::test]
    async fn where_nothing_is_on_its_way_nobody_looks() {
        let helper = helper();
        let is_looked_at = || lock(&helper.on_its_way).is_looked_at;
        for _ in 0..2 {
            let work = helper.help(async { 7 });
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
