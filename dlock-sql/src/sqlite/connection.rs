//! The requests of callers to the connection task, and the answers.
//!
//! A caller's future only sends and waits: all access to the database happens in the task. So dropping that
//! future interrupts nothing; the answer is discarded, and the engine abandons the key.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use dlock_core::{Error, ErrorKind, LockName, Result, Runtime, Timestamp};
use futures::FutureExt as _;
use futures::channel::{mpsc, oneshot};
use futures::future::BoxFuture;

use super::bell::Bell;
use super::store::{Store, Sync};
use super::view::View;
use crate::admit::{Holders, Settled};
use crate::probe::{Look, Looks};

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

    /// What is asked of the database itself.
    pub(super) fn read_nothing() -> Self {
        let (names, write) = (Vec::new(), None);
        Self { names, write }
    }

    pub(super) fn write(sync: Sync, names: Vec<LockName>) -> Self {
        let write = Some(sync);
        Self { names, write }
    }
}

/// Works on what is loaded, while the write lock is held if it writes. An error is that of the whole
/// transaction.
type Run = Box<dyn for<'a> FnOnce(&'a mut View, &'a mut Store) -> BoxFuture<'a, Result<()>> + Send>;

/// One unit of work, run inside a transaction that may serve several.
pub(super) struct Job {
    pub(super) needs: Needs,
    /// Called once.
    pub(super) run: Option<Run>,
    /// Is told after the commit or after its failure. Nobody there: the caller was cancelled, and its engine
    /// abandons the key.
    pub(super) done: oneshot::Sender<Result<()>>,
}

/// What goes through the channel.
pub(super) enum Message {
    Run(Job),
    Close(oneshot::Sender<Result<()>>),
}

/// The callers' side of the connection task. When the last one goes, the task closes the connection.
///
/// A clone is the same; [`Connection::another`] is one more to the same task, closed separately.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) send: mpsc::UnboundedSender<Message>,
    pub(super) closed: Arc<AtomicBool>,
    /// How many are not closed.
    pub(super) open: Arc<AtomicUsize>,
    pub(super) runtime: Arc<dyn Runtime>,
    /// Nobody but this process sees the database.
    pub(super) private: bool,
    pub(super) bell: Arc<Bell>,
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
        let name = needs.names.first().filter(|_| needs.names.len() == 1).cloned();
        let (done, outcome) = oneshot::channel();
        let (put, result) = oneshot::channel();
        let run: Run = Box::new(|view, store| {
            let ran = run(view, store);
            async move { ran.await.map(|ran| drop(put.send(ran))) }.boxed()
        });
        let run = Some(run);
        let sent = self.send.unbounded_send(Message::Run(Job { needs, run, done }));
        sent.map_err(|_| self.closed())?;
        let answer = match outcome.await {
            Ok(Ok(())) => result.await.unwrap_or_else(|_| Err(self.closed())),
            Ok(Err(e)) => Err(e),
            // The task was dropped with the job in hand: with its runtime, perhaps between commit and answer.
            Err(_) if is_write => Err(Error::new(
                ErrorKind::Unknown,
                "the runtime of this SQLite backend ended before it answered",
            )),
            Err(_) => Err(self.closed()),
        };
        answer.map_err(|e| name.iter().fold(e, Error::with_name))
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

/// One job without a write lock, which asks SQLite for no more than `PRAGMA data_version` as long as nobody
/// else has stored anything. When somebody has, the holders are counted by one statement, however many wait.
#[async_trait]
impl Looks for Connection {
    type Mark = Holders;

    async fn look(&self, name: &LockName) -> Result<Look<Holders>> {
        if !self.private {
            self.bell.set();
        }
        let name = name.clone();
        let glance = self.ask(Needs::default(), move |view, store| {
            async move { view.glance(store, &name).await }.boxed()
        });
        let glance = glance.await?;
        Ok(Look {
            mark: glance.holders,
            due: glance.earliest.is_some_and(|end| end <= Timestamp::now()),
            offered: glance.untold,
        })
    }
}
