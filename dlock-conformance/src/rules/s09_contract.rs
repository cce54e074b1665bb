//! §9 Cancellation and async contract: closing, threads, wakers.

use std::future::poll_fn;
use std::panic::resume_unwind;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::task::AtomicWaker;

use super::prelude::*;

rules! {
    close_ends_everything, futures_may_change_threads, blocked_acquire_is_quiet,
}

rule! { "9.07" Must phase 1 [Lock, Try, Wait, LossSignal] Engine A D close_ends_everything,
    evidence ["waiting_when_closed" >= 3, "guards_told" >= 3], bug "close_hangs"
    "Closing a client ends its operations in flight with Closed, marks its guards as lost, and frees its \
        locks."
    why "A shutdown that hangs on a waiting acquire is killed. Its locks are then held until they expire."
    check "Does close wake a waiting operation?"
}
async fn close_ends_everything(cx: Cx) -> Verdict {
    let b = cx.connect().await?;
    let bound = cx.prompt();
    let ask = cx.ask();
    for round in 0..cx.rounds(3, 30) {
        let a = cx.connect().await?;
        let [theirs, own] = ["theirs", "own"].map(|whose| cx.name(format_args!("{whose}-{round}")));
        let blocking = b.acquire(&theirs, &ask).await.seen("B acquires")?;
        let held = a.takes(&own, &ask.clone().auto_renew(), "A acquires").await?;
        let (lost, waiting) = (held.lost(), cx.waits(&a, &theirs, &ask));
        cx.sleep(ms(8)).await;
        let closing = cx.spawn({
            let a = a.clone();
            async move { a.close().await }
        });
        let what = "an acquire that waits while its client is closed";
        let ended = cx.within(bound, what, waiting).await?;
        refused(ended, ErrorKind::Closed, what)?;
        cx.evidence("waiting_when_closed");
        cx.within(bound, "the loss signal of a guard whose client is closed", lost)
            .await?;
        ensure!(!held.is_valid(), "a guard is valid after its client was closed");
        cx.evidence("guards_told");
        cx.done(bound, "close", closing).await?;
        let answer = a.try_acquire(&own, &ask).await;
        refused(answer, ErrorKind::Closed, "an operation of a closed client")?;
        let by = cx.now() + cx.claims().cancel_prompt + cx.slack();
        let what = "a name that a closed client held";
        cx.passes_by(&*b, &own, &ask, by, what).await?;
        blocking.release().await.seen("B releases")?;
        let what = "a name that a closed client waited for";
        cx.passes_by(&*b, &theirs, &ask, by, what).await?;
    }
    Ok(())
}

/// Refuses at compile time what cannot move between threads or outlive its scope.
fn may_move<T: Send + 'static>(_: &T) {}

rule! { "9.09" Must phase 1 [Lock, Wait, DropFrees, AnyExecutor] Both A K futures_may_change_threads,
    evidence ["polls_elsewhere" >= 4], bug "thread_affine_state"
    "Futures and guards are Send, and an operation continues on whichever thread polls it next."
    why "Executors move tasks between threads. State that stays on the first thread is lost."
    check "Is there a thread-local, or a lock guard held across an await?"
}
async fn futures_may_change_threads(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    for (round, name) in cx.names(4, 40).enumerate() {
        let blocking: Box<dyn Held> = b.acquire(&name, &ask).await.seen("B acquires")?;
        may_move(&blocking);
        may_move(&blocking.lost());
        let waiting: BoxFuture<'static, _> = {
            let (a, name, ask) = (a.clone(), name.clone(), ask.clone());
            async move { Subject::acquire(&*a, &name, &ask).await }.boxed()
        };
        may_move(&waiting);
        let task = cx.clone();
        let releasing = cx.spawn(async move {
            task.sleep(ms(8)).await;
            blocking.release().await
        });
        let what = format!("round {round}: an acquire that is polled by another thread each time");
        let held = cx.done(cx.prompt(), what, moved(&cx, waiting)).await?;
        releasing.await.seen("B releases")?;
        // A guard is dropped on the thread that it was moved to.
        thread::spawn(move || drop(held))
            .join()
            .unwrap_or_else(|panic| resume_unwind(panic));
        let by = cx.now() + cx.claims().cancel_prompt + cx.slack();
        let when = "after the guard was dropped on another thread";
        cx.passes_by(&*b, &name, &ask, by, when).await?;
    }
    Ok(())
}

/// Polls by another thread each time, as far as that is possible.
pub(super) async fn moved<T: Send + 'static>(cx: &Cx, future: BoxFuture<'static, T>) -> T {
    match cx.is_virtual() {
        true => on_changing_threads(cx, future).await,
        false => through_tasks(cx, future).await,
    }
}

/// Polls each time on a thread of its own; in a simulation, where nothing asks for a runtime's threads.
pub(super) async fn on_changing_threads<T: Send>(cx: &Cx, mut future: BoxFuture<'static, T>) -> T {
    poll_fn(|task| {
        cx.evidence("polls_elsewhere");
        let (waker, future) = (task.waker().clone(), &mut future);
        thread::scope(|s| {
            s.spawn(move || future.as_mut().poll(&mut Context::from_waker(&waker)))
                .join()
                .unwrap_or_else(|panic| resume_unwind(panic))
        })
    })
    .await
}

/// Hands the future from task to task, once for each poll: several threads of a runtime share them.
async fn through_tasks<T: Send + 'static>(cx: &Cx, mut future: BoxFuture<'static, T>) -> T {
    let mut threads = std::collections::HashSet::new();
    loop {
        let polled = cx.spawn(async move {
            let done = poll_fn(|task| Poll::Ready(future.as_mut().poll(task))).await;
            (done, future, thread::current().id())
        });
        let (done, back, thread) = polled.await;
        cx.evidence("polls_elsewhere");
        threads.insert(thread);
        if let Poll::Ready(value) = done {
            cx.note(format_args!(
                "polled by tasks on {} different threads",
                threads.len()
            ));
            return value;
        }
        future = back;
        // The task of its waker is over. It is polled without being woken, which a future must tolerate.
        cx.sleep(ms(1)).await;
    }
}

/// Wakes the task, but not while a spurious poll replaces it: async-io wakes a waker that is replaced. No
/// wake-up is lost, as the poll that follows sees what there is.
#[derive(Default)]
struct Latest {
    task: AtomicWaker,
    replaced: AtomicBool,
}

impl Wake for Latest {
    fn wake(self: Arc<Self>) {
        if !self.replaced.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

rule! { "9.10" Must phase 1 [Lock, Wait] Both A T blocked_acquire_is_quiet, evidence ["blocked" >= 3],
    bug "stale_waker"
    "A blocked acquire is polled only with a reason, tolerates spurious polls, and wakes the latest waker."
    why "If the waker of the first poll is kept, it wakes a task that is gone. The acquire never continues, \
        although it has the lock."
    check "Is the stored waker replaced at each poll?"
}
async fn blocked_acquire_is_quiet(cx: Cx) -> Verdict {
    const MOST_PER_SECOND: f64 = 200.0;
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    for (round, name) in cx.names(3, 30).enumerate() {
        let held = b.acquire(&name, &ask).await.seen("B acquires")?;
        let polls = AtomicUsize::new(0);
        let mut waiting = a.acquire(&name, &ask);
        let latest = Arc::new(Latest::default());
        let counted = poll_fn(|task| {
            polls.fetch_add(1, Ordering::Relaxed);
            latest.task.register(task.waker());
            // A spurious poll, whose waker wakes nothing: only the latest waker counts.
            latest.replaced.store(true, Ordering::SeqCst);
            if let Poll::Ready(done) = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return Poll::Ready(done);
            }
            latest.replaced.store(false, Ordering::SeqCst);
            waiting
                .as_mut()
                .poll(&mut Context::from_waker(&Waker::from(Arc::clone(&latest))))
        });
        let blocked = ms(200);
        let task = cx.clone();
        let releasing = cx.spawn(async move {
            task.sleep(blocked).await;
            let at = task.now();
            held.release().await.map(|()| at)
        });
        // A look at the end of a time limit is a poll as well, so the limit is longer than the bound.
        let bound = cx.claims().wake_p99 + cx.slack() * 2;
        let what = format!("round {round}: a waiter whose waker has changed since its first poll");
        let granted = cx.done(blocked + bound * 2, &what, counted).await?;
        let (granted_at, released_at) = (cx.now(), releasing.await.seen("B releases")?);
        ensure!(released_at <= granted_at, "{what}: granted before the release");
        ensure!(
            released_at.until(granted_at) <= bound,
            "{what}: granted only {:?} after the release",
            released_at.until(granted_at)
        );
        // The polls for the begin and the grant do not count. Each member of a quorum adds to them.
        let members = cx.claims().members.unwrap_or(1);
        let most = 20 * members + (blocked.as_secs_f64() * MOST_PER_SECOND) as usize;
        let polled = polls.load(Ordering::Relaxed);
        ensure!(
            polled <= most,
            "a blocked acquire was woken {polled} times in {blocked:?}"
        );
        cx.evidence("blocked");
        granted.release().await.seen("A releases")?;
    }
    Ok(())
}
