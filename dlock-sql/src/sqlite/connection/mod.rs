//! What callers send to the connection task, and how the answers come back.
//!
//! | file | what |
//! |---|---|
//! | `task.rs` | the task: batches, what stays loaded, what is swept |
//! | `view.rs` | what a job sees |
//! | `watchers.rs` | who watches, and what they are told |
//! | `store.rs` | the connection to SQLite, and the statements of a transaction |
//!
//! A caller's future only sends and waits: all that touches the database happens in the connection task.
//! Dropping that future at any poll therefore interrupts nothing; the answer finds nobody, and the engine
//! abandons the key.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use dlock_core::{Error, ErrorKind, LockName, Result, Runtime};
use futures::FutureExt as _;
use futures::channel::{mpsc, oneshot};
use futures::future::BoxFuture;

pub(super) mod store;
mod task;
#[cfg(test)]
mod tests;
mod view;
mod watchers;

use self::store::Store;
pub(super) use self::task::Task;
pub(super) use self::view::View;

/// What a job has to see, and how it is to be committed.
#[derive(Clone, Debug, Default)]
pub(super) struct Needs {
    /// The locks it works on.
    pub(super) names: Vec<LockName>,
    /// Whether it changes anything.
    pub(super) write: bool,
    /// Whether its commit waits for the disk.
    pub(super) durable: bool,
    /// Whether there is no point in it when nobody awaits the answer any more.
    pub(super) droppable: bool,
}

impl Needs {
    pub(super) fn read(name: &LockName) -> Self {
        Self {
            names: vec![name.clone()],
            ..Self::default()
        }
    }

    pub(super) fn write(names: Vec<LockName>) -> Self {
        Self {
            names,
            write: true,
            ..Self::default()
        }
    }
}

/// One unit of work, run inside a transaction that may serve several.
pub(super) trait Job: Send {
    fn needs(&self) -> &Needs;
    /// Nobody awaits it any more and nothing has been done: it may be left out.
    fn is_moot(&self) -> bool;
    /// Works on the loaded state. Called once, while the write lock is held if it writes. An error is that of
    /// the whole transaction.
    fn run<'a>(&'a mut self, view: &'a mut View, store: &'a mut Store) -> BoxFuture<'a, Result<()>>;
    /// Answers, after the commit or after its failure.
    fn finish(self: Box<Self>, failed: Option<&Error>);
}

struct Call<T, F> {
    needs: Needs,
    run: Option<F>,
    result: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> Job for Call<T, F>
where
    T: Send,
    F: for<'a> FnOnce(&'a mut View, &'a mut Store) -> BoxFuture<'a, Result<Result<T>>> + Send,
{
    fn needs(&self) -> &Needs {
        &self.needs
    }

    fn is_moot(&self) -> bool {
        self.needs.droppable && self.reply.is_canceled()
    }

    fn run<'a>(&'a mut self, view: &'a mut View, store: &'a mut Store) -> BoxFuture<'a, Result<()>> {
        let run = self.run.take();
        async move {
            if let Some(run) = run {
                self.result = Some(run(view, store).await?);
            }
            Ok(())
        }
        .boxed()
    }

    fn finish(self: Box<Self>, failed: Option<&Error>) {
        let unrun = || Err(Error::new(ErrorKind::Unavailable, "the request was not run"));
        let answer = match failed {
            Some(e) => Err(e.clone()),
            None => self.result.unwrap_or_else(unrun),
        };
        // Nobody there: the caller was cancelled, and its engine abandons the key.
        let _ = self.reply.send(answer);
    }
}

/// What goes through the channel.
pub(super) enum Message {
    Run(Box<dyn Job>),
    Close(oneshot::Sender<Result<()>>),
}

/// When this process last had news for those who wait for a name: the number of the job, in slots by hash. A
/// collision costs a waiter one needless look.
#[derive(Debug)]
pub(super) struct Stamps(Vec<AtomicU64>);

impl Stamps {
    pub(super) fn new() -> Self {
        Self((0..1024).map(|_| AtomicU64::new(0)).collect())
    }

    fn slot(&self, name: &LockName) -> &AtomicU64 {
        use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
        &self.0[(hash % self.0.len() as u64) as usize]
    }

    pub(super) fn changed_at(&self, name: &LockName, turn: u64) {
        self.slot(name).fetch_max(turn, Ordering::AcqRel);
    }

    pub(super) fn last_change(&self, name: &LockName) -> u64 {
        self.slot(name).load(Ordering::Acquire)
    }
}

/// The callers' side of the connection task. When the last one goes, the task closes the connection.
///
/// A clone is the same; [`Connection::another`] is one more to the same task, closed by itself.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) send: mpsc::UnboundedSender<Message>,
    pub(super) closed: Arc<AtomicBool>,
    /// How many are not closed.
    pub(super) open: Arc<AtomicUsize>,
    pub(super) stamps: Arc<Stamps>,
    pub(super) runtime: Arc<dyn Runtime>,
    /// Nobody but this process sees the database.
    pub(super) private: bool,
}

impl Connection {
    pub(super) fn closed(&self) -> Error {
        let text = match self.closed.load(Ordering::Acquire) {
            true => "this SQLite backend was closed",
            false => "the runtime that this SQLite backend was opened on has ended",
        };
        Error::new(ErrorKind::Closed, text)
    }

    /// Has `run` executed in a transaction that has loaded what it needs.
    pub(super) async fn call<T, F>(&self, needs: Needs, run: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut View) -> Result<T> + Send + 'static,
    {
        self.ask(needs, |view, _| ready(Ok(run(view))).boxed()).await
    }

    /// As [`call`](Self::call), of what also asks the database. The outer error is that of the whole
    /// transaction.
    pub(super) async fn ask<T, F>(&self, needs: Needs, run: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut View, &'a mut Store) -> BoxFuture<'a, Result<Result<T>>> + Send + 'static,
    {
        if self.closed.load(Ordering::Acquire) {
            return Err(self.closed());
        }
        let write = needs.write;
        let (reply, answer) = oneshot::channel();
        let call = Call {
            needs,
            run: Some(run),
            result: None,
            reply,
        };
        self.send
            .unbounded_send(Message::Run(Box::new(call)))
            .map_err(|_| self.closed())?;
        match answer.await {
            Ok(result) => result,
            // The task was dropped with the job in hand: with its runtime, perhaps between commit and answer.
            Err(_) if write => Err(Error::new(
                ErrorKind::Unknown,
                "the runtime of this SQLite backend ended before it answered",
            )),
            Err(_) => Err(self.closed()),
        }
    }

    /// One more to the same task. A client closes its backend, and must not close that of its neighbour.
    pub(super) fn another(&self) -> Self {
        let closed = self.closed.load(Ordering::Acquire);
        if !closed {
            self.open.fetch_add(1, Ordering::AcqRel);
        }
        Self {
            closed: Arc::new(AtomicBool::new(closed)),
            ..self.clone()
        }
    }

    /// The owner of this is dropped without having closed it. Its streams and probes go on.
    pub(super) fn let_go(&self) {
        if !self.closed.load(Ordering::Acquire) {
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(super) async fn close(&self) -> Result<()> {
        let was_open = !self.closed.swap(true, Ordering::AcqRel);
        if !was_open || self.open.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        if self.send.unbounded_send(Message::Close(reply)).is_err() {
            return Ok(());
        }
        answer.await.unwrap_or(Ok(()))
    }
}
