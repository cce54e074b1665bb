//! What callers send to the connection task, and how the answers come back.
//!
//! A caller's future only sends and waits: all that touches the database happens in the task. Dropping that
//! future therefore interrupts nothing; the answer finds nobody, and the engine abandons the key.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dlock_core::{Error, ErrorKind, LockName, Result, Runtime};
use futures::FutureExt as _;
use futures::channel::{mpsc, oneshot};
use futures::future::BoxFuture;

use super::store::{Store, Sync};
use super::view::View;
use crate::admit::Settled;

/// What a job has to see, and how it is to be committed.
#[derive(Clone, Debug, Default)]
pub(super) struct Needs {
    /// The locks it works on, and no others. If it is one, errors name it.
    pub(super) names: Vec<LockName>,
    /// Whether it changes anything, and what its commit survives.
    pub(super) write: Option<Sync>,
}

impl Needs {
    pub(super) fn read(name: &LockName) -> Self {
        let (names, write) = (vec![name.clone()], None);
        Self { names, write }
    }

    pub(super) fn write(sync: Sync, names: Vec<LockName>) -> Self {
        let write = Some(sync);
        Self { names, write }
    }
}

/// One unit of work, run inside a transaction that may serve several.
pub(super) trait Job: Send {
    fn needs(&self) -> &Needs;
    /// Works on what is loaded. Called once, while the write lock is held if it writes. An error is that of
    /// the whole transaction.
    fn run<'a>(&'a mut self, view: &'a mut View, store: &'a mut Store) -> BoxFuture<'a, Result<()>>;
    /// Answers, after the commit or after its failure.
    fn finish(self: Box<Self>, outcome: &Result<()>);
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

    fn finish(self: Box<Self>, outcome: &Result<()>) {
        let unrun = || Err(Error::new(ErrorKind::Unavailable, "the request was not run"));
        let answer = match outcome {
            Err(e) => Err(e.clone()),
            Ok(()) => self.result.unwrap_or_else(unrun),
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

/// The callers' side of the connection task. When the last one goes, the task closes the connection.
///
/// A clone is the same; [`Connection::another`] is one more to the same task, closed by itself.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) send: mpsc::UnboundedSender<Message>,
    pub(super) closed: Arc<AtomicBool>,
    /// How many are not closed.
    pub(super) open: Arc<AtomicUsize>,
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

    /// Has `run` change a name.
    pub(super) async fn change<T, F>(&self, sync: Sync, name: &LockName, run: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Settled<'_>) -> Result<T> + Send + 'static,
    {
        let key = name.clone();
        let run = move |view: &mut View| run(&mut view.change(&key)?);
        self.call(Needs::write(sync, vec![name.clone()]), run).await
    }

    /// Has `run` executed in a transaction that has loaded what it needs, and that others may share.
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
        let is_write = needs.write.is_some();
        let name = match &needs.names[..] {
            [name] => Some(name.clone()),
            _ => None,
        };
        let (reply, answer) = oneshot::channel();
        let call = Call {
            needs,
            run: Some(run),
            result: None,
            reply,
        };
        let sent = self.send.unbounded_send(Message::Run(Box::new(call)));
        sent.map_err(|_| self.closed())?;
        let answer = answer.await.unwrap_or_else(|_| match is_write {
            // The task was dropped with the job in hand: with its runtime, perhaps between commit and answer.
            true => Err(Error::new(
                ErrorKind::Unknown,
                "the runtime of this SQLite backend ended before it answered",
            )),
            false => Err(self.closed()),
        });
        answer.map_err(|e| match &name {
            Some(name) => e.with_name(name),
            None => e,
        })
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
