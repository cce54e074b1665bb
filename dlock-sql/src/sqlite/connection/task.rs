//! The connection task: the one place that touches the database.
//!
//! Callers' jobs are taken from a channel, as many as have gathered, and run in *one* `BEGIN IMMEDIATE`
//! transaction (group commit). Between transactions the names stay loaded, and `PRAGMA data_version` tells
//! after each `BEGIN` whether another connection has stored anything since; if not, an uncontended acquire
//! reads no row.
//!
//! What can go wrong, and why it does not matter:
//! * *A caller vanishes*: nothing here belongs to it but the answer.
//! * *This task vanishes* with its runtime, at any await: SQLite rolls back what was open, and leases lapse.
//! * *The process stops or dies inside a transaction*: a dead one is rolled back by SQLite; a stopped one
//!   blocks the file for all until it goes on or dies, and when it goes on it commits what it computed,
//!   before anybody else could look. Its clock was read after the write lock was taken, so it took nothing
//!   for live that had ended before.
//! * *The commit fails*: nothing loaded is trusted any more, and every job of the transaction learns of it.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, LockName, Result, Runtime, Timestamp};
use futures::StreamExt as _;
use futures::channel::mpsc;

use super::store::{Store, Sync};
use super::view::View;
use super::{Job, Message, Stamps};
use crate::admit::Tokens;
use crate::gate::LAST_TOKEN;
use crate::sqlite::schema::{DUE, Database, TOKEN_BLOCK};

/// At most that many jobs in one transaction: others must get their turn at the file.
const MAX_BATCH: usize = 256;
/// At most that many names stay loaded.
const MAX_LOADED: usize = 50_000;
/// How often names are looked through that nobody asks for any more.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// How soon the sweep goes on when there was more than fits into one transaction.
const SWEEP_ON: Duration = Duration::from_millis(100);

type Jobs = [Box<dyn Job>];

/// The state of the connection task.
pub(in crate::sqlite) struct Task {
    db: Arc<Database>,
    runtime: Arc<dyn Runtime>,
    pub(super) store: Option<Store>,
    stamps: Arc<Stamps>,
    pub(super) view: View,
    next_sweep: Timestamp,
    /// How far the sweep has come in the order of the names; empty at the beginning.
    swept_to: Vec<u8>,
    /// Less than half a block is left under the ceiling of the tokens, so the next transaction waits for the
    /// disk and raises it. What would be granted beyond it before that is refused.
    secure_tokens: bool,
}

impl Task {
    pub(in crate::sqlite) fn new(store: Store, runtime: Arc<dyn Runtime>, stamps: Arc<Stamps>) -> Self {
        Self {
            db: store.db.clone(),
            runtime,
            store: Some(store),
            stamps,
            view: View::default(),
            next_sweep: Timestamp::ZERO,
            swept_to: Vec::new(),
            secure_tokens: false,
        }
    }

    /// Serves until closed, or until nobody is left who could ask.
    pub(in crate::sqlite) async fn serve(mut self, mut inbox: mpsc::UnboundedReceiver<Message>) {
        let mut close = None;
        while close.is_none() {
            let Some(first) = inbox.next().await else { break };
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            let mut next = Some(first);
            while let Some(message) = next {
                match message {
                    Message::Run(job) if job.is_moot() => drop(job),
                    Message::Run(job) if job.needs().write => writes.push(job),
                    Message::Run(job) => reads.push(job),
                    Message::Close(reply) => {
                        close = Some(reply);
                        break;
                    }
                }
                next = (reads.len() + writes.len() < MAX_BATCH)
                    .then(|| inbox.try_recv().ok())
                    .flatten();
            }
            // Readers first: they need no lock on the file, and must not wait for those who do.
            if !reads.is_empty() {
                let outcome = self.read(&mut reads).await;
                self.finish(reads, outcome);
            }
            if !writes.is_empty() {
                let outcome = self.write(&mut writes).await;
                self.finish(writes, outcome);
            }
        }
        inbox.close();
        let outcome = match self.store.take() {
            Some(store) => store.close().await,
            None => Ok(()),
        };
        let closed = Error::new(ErrorKind::Closed, "this SQLite backend was closed");
        while let Ok(message) = inbox.try_recv() {
            match message {
                Message::Run(job) => job.finish(Some(&closed)),
                Message::Close(reply) => drop(reply.send(Ok(()))),
            }
        }
        self.view.watchers.end(&closed);
        if let Some(reply) = close {
            let _ = reply.send(outcome);
        }
    }

    /// Answers all jobs of one transaction.
    fn finish(&mut self, jobs: Vec<Box<dyn Job>>, outcome: Result<()>) {
        let failed = outcome.err();
        if failed.is_some() {
            self.view.forget();
        }
        jobs.into_iter().for_each(|job| job.finish(failed.as_ref()));
    }

    /// The connection, made anew if the old one is broken.
    pub(super) async fn connected(&mut self) -> Result<&mut Store> {
        if self.store.as_ref().is_none_or(|s| s.broken) && !self.db.private {
            // The old connection stays open until there is a new one: as long as one is, nobody with another
            // boot id can take the file for one that nobody has open. If that fails, the old one may be what
            // is in the way.
            let opened = Store::open(self.db.clone(), self.runtime.clone()).await;
            self.store = None;
            // Another connection counts the versions anew, and may come to the number that this one had: what
            // is loaded would be taken for what is stored.
            self.view.forget();
            self.store = Some(opened?);
        }
        self.store()
    }

    fn store(&mut self) -> Result<&mut Store> {
        self.store.as_mut().ok_or_else(gone)
    }

    async fn read(&mut self, jobs: &mut Jobs) -> Result<()> {
        let version = self.connected().await?.version().await?;
        self.load(version, wanted(jobs)).await?;
        self.run(jobs).await
    }

    async fn write(&mut self, jobs: &mut Jobs) -> Result<()> {
        let sync = match self.secure_tokens || jobs.iter().any(|j| j.needs().durable) {
            true => Sync::Durable,
            false => Sync::Ordinary,
        };
        let version = self.connected().await?.begin(sync).await?;
        let outcome = self.write_in_transaction(jobs, version, sync).await;
        match (&outcome, &mut self.store) {
            (Ok(()), _) => self.publish(),
            (Err(_), Some(store)) => store.rollback().await,
            (Err(_), None) => {}
        }
        outcome
    }

    async fn write_in_transaction(&mut self, jobs: &mut Jobs, version: i64, sync: Sync) -> Result<()> {
        self.load(version, wanted(jobs)).await?;
        self.sweep().await?;
        self.run(jobs).await?;
        let View {
            touched,
            names,
            tokens,
            ..
        } = &mut self.view;
        let (mut puts, mut deletes) = (Vec::new(), Vec::new());
        for (name, state) in touched.keys().filter_map(|n| names.get_key_value(n)) {
            for (id, row) in state.iter().flat_map(|s| s.dirty()) {
                match row {
                    Some(row) => puts.push((name, row)),
                    None => deletes.push((name, id)),
                }
            }
        }
        let tokens = tokens.get_or_insert_default();
        let above = |n| tokens.last.saturating_add(n).min(LAST_TOKEN);
        if sync == Sync::Durable {
            // Also beyond what a raise has gone to.
            tokens.ceiling = tokens.ceiling.max(above(TOKEN_BLOCK));
            tokens.dirty = true;
        }
        self.secure_tokens = tokens.ceiling < above(TOKEN_BLOCK / 2);
        if tokens.last > tokens.ceiling {
            // Somebody granted half a block in one change, or many others did, each in its last one.
            let text = "the tokens of these grants are not safe against a power loss yet; ask again";
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        // With every entry goes the time at which it is stored, for the first process of the next boot.
        let with_meta = tokens.dirty || !puts.is_empty();
        let tokens = with_meta.then_some((tokens.last, tokens.ceiling));
        let store = self.store.as_mut().ok_or_else(gone)?;
        store.write_and_commit(&puts, &deletes, tokens).await
    }

    /// Makes everything present that the jobs need.
    pub(super) async fn load(&mut self, version: i64, mut names: Vec<LockName>) -> Result<()> {
        let foreign = self.view.version != Some(version);
        if foreign || self.view.names.len() > MAX_LOADED {
            self.view.forget();
        }
        if foreign {
            names.extend(self.view.watchers.names());
        }
        if self.view.tokens.is_none() {
            let meta = self.store()?.meta().await?;
            self.view.tokens = Some(Tokens {
                last: meta.last_token,
                ceiling: meta.token_ceiling,
                dirty: false,
            });
        }
        self.load_missing(names).await?;
        self.view.version = Some(version);
        Ok(())
    }

    async fn load_missing(&mut self, mut names: Vec<LockName>) -> Result<()> {
        names.retain(|n| !self.view.names.contains_key(n));
        names.sort_unstable();
        names.dedup();
        let loaded = self.store()?.load(&names).await?;
        self.view.take_in(loaded);
        Ok(())
    }

    /// Takes back what has run out, now and then, under names that nobody may ask for any more.
    ///
    /// What is not dlock's own cannot be taken back and stays due for ever. It is passed over, and the sweep
    /// goes on behind it: neither a single row nor many may keep others from being swept, let alone from
    /// being served.
    async fn sweep(&mut self) -> Result<()> {
        let now = Timestamp::now();
        if now < self.next_sweep {
            return Ok(());
        }
        self.next_sweep = now + SWEEP_EVERY;
        let behind = std::mem::take(&mut self.swept_to);
        let due = self.store()?.due(now, &behind).await?;
        if due.len() >= DUE {
            self.next_sweep = now + SWEEP_ON;
            self.swept_to = due.last().cloned().unwrap_or_default();
        }
        let due: Vec<_> = due
            .into_iter()
            .filter_map(|name| LockName::new(name).ok())
            .collect();
        self.load_missing(due.clone()).await?;
        // As by a job of its own: whoever was answered last has not seen it.
        self.view.now = now;
        self.view.turn += 1;
        for name in due {
            // A name that is spoiled is left as it is.
            let _ = self.view.change(&name);
        }
        Ok(())
    }

    async fn run(&mut self, jobs: &mut Jobs) -> Result<()> {
        for job in jobs {
            self.view.now = Timestamp::now();
            self.view.turn += 1;
            let store = self.store.as_mut().ok_or_else(gone)?;
            // Each sees what those before it have written.
            job.run(&mut self.view, store).await?;
        }
        Ok(())
    }

    /// After the commit: wakes those who wait for a change of these names.
    fn publish(&mut self) {
        let (view, now) = (&mut self.view, Timestamp::now());
        view.ended.committed(now);
        for (name, turn) in view.touched.drain() {
            let Some(Ok(state)) = view.names.get_mut(&name) else {
                continue;
            };
            if state.is_dirty() {
                // A place in the queue taken or kept is no news for anybody else.
                let (changes, is_news) = state.written();
                if is_news {
                    self.stamps.changed_at(&name, turn);
                }
                view.watchers.tell(&name, &changes, state, now);
            }
        }
        if let Some(tokens) = &mut view.tokens {
            tokens.dirty = false;
        }
    }
}

/// The names that the jobs work on.
fn wanted(jobs: &Jobs) -> Vec<LockName> {
    jobs.iter()
        .flat_map(|j| j.needs().names.iter().cloned())
        .collect()
}

fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "the SQLite connection is gone")
}
