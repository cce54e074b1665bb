//! The connection task: the one place that touches the database.
//!
//! Callers' jobs are taken from a channel, as many as have gathered, and run in *one* transaction (group
//! commit).
//!
//! What can go wrong, and why it does not matter:
//! * *A caller vanishes*: only the answer belonged to it.
//! * *This task vanishes* with its runtime, at any await: SQLite rolls back what was open, and leases lapse.
//! * *The process stops or dies inside a transaction*: SQLite rolls back a dead one; a stopped one blocks the
//!   file for all until it resumes or dies, and when it resumes it commits its result before any other
//!   process can look. It read the clock after it took the write lock, so it took no expired lease for live.
//! * *The commit fails*: nothing loaded is trusted any more, and every job of the transaction learns of it.

use std::sync::Arc;

use dlock_core::{Error, ErrorKind, Result, Runtime};
use futures::StreamExt as _;
use futures::channel::mpsc;

use super::connection::{Job, Message};
use super::schema::Database;
use super::store::Store;
use super::view::View;

/// At most that many jobs in one transaction: others must get their turn at the file.
const MAX_BATCH: usize = 256;

pub(super) struct Task {
    db: Arc<Database>,
    runtime: Arc<dyn Runtime>,
    pub(super) store: Option<Store>,
    pub(super) view: View,
}

impl Task {
    pub(super) fn new(store: Store, runtime: Arc<dyn Runtime>) -> Self {
        Self {
            db: store.db.clone(),
            runtime,
            store: Some(store),
            view: View::default(),
        }
    }

    /// Serves until closed, or until the last user has gone.
    pub(super) async fn serve(mut self, mut inbox: mpsc::UnboundedReceiver<Message>) {
        let mut close = None;
        while close.is_none() {
            let Some(first) = inbox.next().await else { break };
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            let mut next = Some(first);
            while let Some(message) = next {
                match message {
                    Message::Run(job) if job.needs.write.is_some() => writes.push(job),
                    Message::Run(job) => reads.push(job),
                    Message::Close(reply) => {
                        close = Some(reply);
                        break;
                    }
                }
                let is_full = reads.len() + writes.len() >= MAX_BATCH;
                next = if is_full { None } else { inbox.try_recv().ok() };
            }
            // Readers first: they need no lock on the file, and must not wait for those who do.
            for jobs in [reads, writes] {
                self.run(jobs).await;
            }
        }
        inbox.close();
        let outcome = match self.store.take() {
            Some(store) => store.close().await,
            None => Ok(()),
        };
        let closed = Error::new(ErrorKind::Closed, "this SQLite backend was closed");
        let failed = Err(closed.clone());
        while let Ok(message) = inbox.try_recv() {
            match message {
                Message::Run(job) => drop(job.done.send(failed.clone())),
                Message::Close(reply) => drop(reply.send(Ok(()))),
            }
        }
        self.view.watchers.end(&closed);
        if let Some(reply) = close {
            let _ = reply.send(outcome);
        }
    }

    /// Runs jobs in one transaction, and answers them.
    async fn run(&mut self, mut jobs: Vec<Job>) {
        let Some(first) = jobs.first() else { return };
        let write = first.needs.write.is_some();
        let outcome = match self.connected().await {
            Ok((store, view)) if write => view.write(store, &mut jobs).await,
            Ok((store, view)) => view.read(store, &mut jobs).await,
            Err(e) => Err(e),
        };
        if outcome.is_err() {
            self.view.forget();
        }
        jobs.into_iter()
            .for_each(|job| drop(job.done.send(outcome.clone())));
    }

    /// The connection, made anew if the old one is broken.
    pub(super) async fn connected(&mut self) -> Result<(&mut Store, &mut View)> {
        let store = match self.store.take() {
            Some(store) if !store.broken || self.db.private => store,
            // The old connection stays open until there is a new one: as long as one is, nobody with another
            // boot id can take the file for one that nobody has open. If that fails, the old one may be what
            // is in the way.
            old => {
                let opened = Store::open(self.db.clone(), self.runtime.clone()).await;
                drop(old);
                // Another connection counts the versions anew, and may come to the number that this one had:
                // what is loaded would be taken for what is stored.
                self.view.forget();
                opened?
            }
        };
        Ok((self.store.insert(store), &mut self.view))
    }
}
