//! §9 Cancellation and async contract: what is left behind, a runtime that ends, and no runtime at all.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use futures::channel::oneshot;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};

use super::prelude::*;
use super::s07_fencing::footprint;
use super::s09_contract::on_changing_threads;
use super::watching::observer;
use crate::executor::Executor;

rules! {
    watching_leaks_nothing, shutdown_ends_everything, any_executor_will_do,
}

/// How many there are of each kind; `None` where they cannot be counted.
type Count = [(&'static str, Option<u64>); 3];

async fn count(cx: &Cx, executor: Option<&Executor>) -> Verdict<Count> {
    let records = match footprint(cx).await {
        Err(Failure::NotRun(_)) => None,
        counted => Some(counted?),
    };
    // In a simulation, they are of other runs.
    let descriptors = (!cx.is_virtual()).then(|| std::fs::read_dir("/dev/fd").ok());
    let descriptors = descriptors.flatten().map(|all| all.count() as u64);
    let tasks = executor.map(|e| e.tasks() as u64);
    Ok([
        ("tasks", tasks),
        ("descriptors", descriptors),
        ("records at the store", records),
    ])
}

/// What there is more of now, by more than that.
fn grown(before: Count, now: Count, room: u64) -> Vec<String> {
    let pairs = before.into_iter().zip(now);
    let more = pairs.filter_map(|((kind, before), (_, after))| {
        let (before, after) = (before?, after?);
        (after > before + room).then(|| format!("{after} {kind} after {before}"))
    });
    more.collect()
}

rule! { "9.06" Must phase 2 [Watch] Both A T watching_leaks_nothing,
    evidence ["subscriptions_dropped" >= 400, "ways_of_counting" >= 1], bug "watch_leak"
    "After 10,000 rounds of opening and dropping a watch (500 in a quick run) there are no more tasks, \
        descriptors and registrations at the store than before."
    why "A page that shows the holder of a lock subscribes once for each visitor. If subscriptions leak, the \
        process dies after a few days."
    check "Does dropping the stream end its task and its registration at the store?"
}
async fn watching_leaks_nothing(cx: Cx) -> Verdict {
    let rounds = cx.rounds(500, 10_000);
    let executor = Executor::new(&cx);
    let (w, executor) = match cx.connect_on(&executor).await? {
        Some(client) => (client, Some(executor)),
        None => (cx.connect().await?, None),
    };
    let a = cx.connect().await?;
    let (name, ask) = (cx.name("watched"), cx.ask());
    let observe = observer(&*w)?;
    let mut before = None;
    for round in 0..rounds + 20 {
        // The first ones make the client and its store set things up, which is not a leftover of each.
        if round == 20 {
            before = Some(count(&cx, executor.as_deref()).await?);
        }
        let name = match round % 2 {
            0 => name.clone(),
            _ => cx.name(format_args!("of {round}")),
        };
        match round % 4 {
            // Dropped while it subscribes.
            1 => drop(cx.timeout(Duration::ZERO, observe.watch(&name)).await),
            // Dropped unread.
            2 => drop(observe.watch(&name).await.seen("watching")?),
            // Dropped while it waits for a change.
            _ => {
                let mut changes = observe.watch(&name).await.seen("watching")?;
                match changes.next().await {
                    Some(first) => drop(first.seen("the first item of a stream")?),
                    None => fail!("round {round}: a stream ended before its first item"),
                }
                let _ = changes.next().now_or_never();
            }
        }
        if round % 50 == 49 {
            // There are changes for the dropped streams.
            a.passes(&name, &ask, "a watched name").await?;
        }
        cx.evidence("subscriptions_dropped");
    }
    let Some(before) = before else {
        return Err(Failure::Kit("there are more than twenty rounds".to_owned()));
    };
    for (kind, counted) in before {
        if counted.is_some() {
            cx.evidence("ways_of_counting");
            cx.note(format_args!("counted: {kind}"));
        }
    }
    // A few may be on their way out, and other parts of the process come and go.
    let (by, room) = (cx.now() + cx.claims().op_bound, 16);
    loop {
        let now = count(&cx, executor.as_deref()).await?;
        let grown = grown(before, now, room);
        if grown.is_empty() {
            break;
        }
        ensure!(
            cx.now() < by,
            "after {rounds} streams that were dropped there are {}",
            grown.join(", ")
        );
        cx.sleep(ms(5)).await;
    }
    // And a current watcher sees changes.
    let held = a.is_granted(&name, &ask, "after all streams").await?;
    let mut changes = observe.watch(&name).await.seen("watching at last")?;
    let what = "the first item of one more stream";
    match cx.within(cx.claims().op_bound, what, changes.next()).await? {
        Some(first) => drop(first.seen(what)?),
        None => fail!("one more stream ended at once"),
    }
    held.release().await.seen("releasing")
}

rule! { "9.08" Must phase 2 [Lock, Try, Wait, Lease, PerGrantTtl, GivenRuntime] Both A D
        shutdown_ends_everything,
    evidence ["calls_ended" >= 4, "locks_lapsed" >= 2], bug "shutdown_deadlock"
    "When the executor shuts down with operations in flight, every call ends, guards report that they are \
        over, nothing panics or waits for ever, and the locks lapse."
    why "A test, a command or a plugin ends its runtime while it holds a lock, and then hangs in a \
        destructor."
    check "What answers a caller if the task that serves it is dropped unfinished?"
}
async fn shutdown_ends_everything(cx: Cx) -> Verdict {
    let executor = Executor::new(&cx);
    let Some(a) = cx.connect_on(&executor).await? else {
        not_run!("the harness connects on no other runtime than its own (connect_on)");
    };
    let b = cx.connect().await?;
    let ask = cx.renewing(cx.ask().ttl(cx.short_ttl()));
    let (own, dropped, theirs) = (cx.name("held"), cx.name("dropped"), cx.name("waited-for"));
    let held = a.is_granted(&own, &ask, "before the shutdown").await?;
    let other = a.is_granted(&dropped, &ask, "before the shutdown").await?;
    let blocking = b.is_granted(&theirs, &cx.ask(), "before the shutdown").await?;
    let lost = held.lost();
    // One that waits on the executor that ends, and one that waits elsewhere.
    let inside = {
        let (a, name, ask) = (a.clone(), theirs.clone(), ask.clone());
        crate::task::Task::start(&*executor, async move { a.acquire(&name, &ask).await.map(drop) })
    };
    let outside = cx.waits(&a, &theirs, &ask);
    cx.in_line(&*b, &theirs, 2).await?;
    executor.shut_down();
    inside.detach();
    let bound = cx.prompt();
    let what = "an acquire that waits while the executor of its client is shut down";
    match cx.within(bound, what, outside).await? {
        Ok(_) => fail!("{what} is granted a name that another client holds"),
        Err(e) if e.kind() == ErrorKind::Timeout => fail!("{what} answers {e}, which is unexpected"),
        Err(_) => cx.evidence("calls_ended"),
    }
    // By the deadline at the latest, which nothing moves any more.
    let over = ask.ttl + cx.skew(ask.ttl) + cx.slack();
    cx.within(over, "the loss signal after the shutdown", lost)
        .await?;
    held.must_be_over("a guard is valid although its client's executor is gone")?;
    let later = cx.name("later");
    let at_once = a.try_acquire(&later, &ask);
    if let Ok(Some(guard)) = cx.within(bound, "a try after the shutdown", at_once).await? {
        cx.note("operations are carried out without the executor");
        drop(guard);
    }
    cx.evidence("calls_ended");
    let doing = "a release after the shutdown";
    let _ = cx.within(bound, doing, held.release()).await?;
    cx.evidence("calls_ended");
    // A guard is dropped on an unrelated thread.
    let dropping = thread::spawn(move || drop((held, other)));
    if dropping.join().is_err() {
        fail!("dropping a guard after the shutdown panics");
    }
    let _ = cx.within(bound, "close after the shutdown", a.close()).await?;
    cx.evidence("calls_ended");
    let by = cx.now() + over;
    for name in [&own, &dropped] {
        let when = "held by a client whose executor was shut down";
        cx.passes_by(&*b, name, &ask, by, when).await?;
        cx.evidence("locks_lapsed");
    }
    blocking.release().await.seen("B releases")?;
    // A queue entry lapses, and so does a grant that it got in the meantime.
    let by = cx.now() + over * 2;
    let when = "waited for by a client whose executor was shut down";
    cx.passes_by(&*b, &theirs, &ask, by, when).await
}

/// An executor of twenty lines: it knows no runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// Runs it on a thread where no runtime is entered; in a simulation each poll on such a thread.
async fn elsewhere<T: Send + 'static>(
    cx: &Cx,
    what: &str,
    limit: Duration,
    future: BoxFuture<'static, T>,
) -> Verdict<T> {
    let caught = AssertUnwindSafe(future).catch_unwind();
    let done = if cx.is_virtual() {
        cx.within(limit, what, on_changing_threads(cx, caught.boxed()))
            .await?
    } else {
        let (tell, told) = oneshot::channel();
        // It ends with its future; one that hangs is left behind.
        thread::spawn(move || drop(tell.send(block_on(caught))));
        match cx.within(limit, what, told).await? {
            Ok(done) => done,
            Err(oneshot::Canceled) => fail!("{what}, on a thread without a runtime: the thread ended"),
        }
    };
    match done {
        Ok(value) => {
            cx.evidence("operations_elsewhere");
            Ok(value)
        }
        Err(panic) => fail!(
            "{what}, on a thread without a runtime, panics: {}",
            crate::panics::caught(&*panic).text
        ),
    }
}

/// A client and what is asked of it, in a future that owns both.
macro_rules! owned {
    ($client:expr, $name:expr, $ask:expr, |$c:ident, $n:ident, $a:ident| $call:expr) => {{
        let ($c, $n, $a) = ($client.clone(), $name.clone(), $ask.clone());
        async move { $call.await }.boxed()
    }};
}

rule! { "9.11" Must phase 2 [Lock, Try, Wait, DropFrees, AnyExecutor] Both A D any_executor_will_do,
    evidence ["operations_elsewhere" >= 6], bug "hidden_tokio"
    "Every operation works from a thread without an entered runtime, on an executor that provides none, \
        while the client's own runtime runs elsewhere. The smoke set runs this on each claimed runtime."
    why "The guard ends up in a plain thread, a callback of a C library or another runtime, and fails with \
        `there is no reactor running`."
    check "Does a future create a timer, socket or task on the current runtime instead of the client's?"
}
async fn any_executor_will_do(cx: Cx) -> Verdict {
    let (a, b): (Client, _) = (cx.connect().await?, cx.connect().await?);
    let bound = cx.prompt();
    let (name, ask) = (cx.name("elsewhere"), cx.ask());
    let what = "a try";
    let trying = owned!(a, name, ask, |c, n, k| c.try_acquire(&n, &k));
    let tried = elsewhere(&cx, what, bound, trying).await?;
    let Some(held) = tried.seen(what)? else {
        fail!("a try on a free name, on a thread without a runtime, is refused");
    };
    let again = owned!(b, name, ask, |c, n, k| c.try_acquire(&n, &k));
    let what = "a try on a held name";
    let tried = elsewhere(&cx, what, bound, again).await?.seen(what)?;
    ensure!(
        tried.is_none(),
        "a held name is granted on a thread without a runtime"
    );
    let limit = ms(30);
    let waiting = owned!(b, name, ask, |c, n, k| c.acquire_timeout(&n, &k, limit));
    refused(
        elsewhere(&cx, "a wait with a limit", bound, waiting).await?,
        ErrorKind::Timeout,
        "a wait with a limit, on a thread without a runtime,",
    )?;
    let held: Arc<dyn crate::subject::Held> = Arc::from(held);
    if cx.has(Need::Renew) {
        let guard = Arc::clone(&held);
        let renewing = async move { guard.renew().await }.boxed();
        let renewed = elsewhere(&cx, "a renewal", bound, renewing).await?;
        renewed.seen("a renewal")?;
    }
    // Another client waits there until it is released there.
    let waiter = {
        let (task, waiting) = (cx.clone(), owned!(b, name, ask, |c, n, k| c.acquire(&n, &k)));
        cx.spawn(async move { elsewhere(&task, "an acquire", bound * 2, waiting).await })
    };
    cx.in_line(&*a, &name, 1).await?;
    let guard = Arc::clone(&held);
    let releasing = async move { guard.release().await }.boxed();
    let released = elsewhere(&cx, "a release", bound, releasing).await?;
    released.seen("a release")?;
    let next = waiter.await?.seen("an acquire")?;
    if let Some(observe) = a.observe().filter(|_| cx.has(Need::Watch)) {
        // The stream is made here and read there.
        let mut changes = observe.watch(&name).await.seen("watching")?;
        let first = async move { changes.next().await.map(|first| first.map(drop)) };
        match elsewhere(&cx, "reading a stream of changes", bound, first.boxed()).await? {
            Some(first) => first.seen("the first item")?,
            None => fail!("a stream of changes ends when it is read on a thread without a runtime"),
        }
    }
    let lapsing = cx.ask().ttl(cx.short_ttl());
    if cx.has(Need::LossSignal) && cx.has(Need::PerGrantTtl) {
        let short = a.is_granted(&cx.name("lapsing"), &lapsing, "at first").await?;
        let limit = lapsing.ttl + cx.skew(lapsing.ttl) + bound;
        elsewhere(&cx, "the loss signal", limit, short.lost()).await?;
    }
    // A guard that is dropped there is released.
    if thread::spawn(move || drop(next)).join().is_err() {
        fail!("dropping a guard on a thread without a runtime panics");
    }
    let by = cx.now() + cx.claims().drop_prompt + cx.slack();
    let when = "after its guard was dropped on a thread without a runtime";
    cx.passes_by(&*a, &name, &ask, by, when).await?;
    let closing = owned!(b, name, ask, |c, _n, _k| c.close());
    elsewhere(&cx, "close", bound, closing).await?.seen("close")
}
