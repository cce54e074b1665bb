//! The connection task: the one place that touches the database.
//!
//! Callers' jobs are taken from a channel, as many as have gathered, and run in *one* `BEGIN IMMEDIATE` transaction (group
//! commit). Between transactions the names stay loaded, and `PRAGMA data_version` tells after each `BEGIN` whether another
//! connection has stored anything since; if not, an uncontended acquire reads no row.
//!
//! What can go wrong, and why it does not matter:
//! * *A caller vanishes*: nothing here belongs to it but the answer.
//! * *This task vanishes* with its runtime, at any await: SQLite rolls back what was open, and leases lapse.
//! * *The process stops or dies inside a transaction*: a dead one is rolled back by SQLite; a stopped one blocks the file for
//!   all until it goes on or dies, and when it goes on it commits what it computed, before anybody else could look.
//!   Its clock was read after the write lock was taken, so it took nothing for live that had ended before.
//! * *The commit fails*: nothing loaded is trusted any more, and every job of the transaction learns of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, FencedValue, LockName, Result, Runtime, Timestamp};
use futures::StreamExt as _;
use futures::channel::mpsc;

use super::admit::{Glance, NameState, Tokens};
use super::job::{Job, Message, Stamps};
use super::schema::{DUE, TOKEN_BLOCK};
use super::store::{Database, Store, Sync};
use super::tombstones::Tombstones;
use super::watch::Watchers;

/// At most that many jobs in one transaction: others must get their turn at the file.
const MAX_BATCH: usize = 256;
/// At most that many names stay loaded.
const MAX_LOADED: usize = 50_000;
/// How often names are looked through that nobody asks for any more.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// How soon the sweep goes on when there was more than fits into one transaction.
const SWEEP_ON: Duration = Duration::from_millis(100);
/// The ceiling of the tokens is raised when fewer than this are left under it.
const TOKENS_LEFT: u64 = TOKEN_BLOCK / 2;

/// What a job sees: the loaded state, and the time at which it is judged.
pub(super) struct View<'a> {
    /// Read after the write lock was taken.
    pub(super) now: Timestamp,
    /// The number of the job that runs. Not of the transaction: what a later job of the same transaction changes is news to this one.
    pub(super) turn: u64,
    /// What other connections had stored when it began.
    pub(super) version: i64,
    names: &'a mut HashMap<LockName, NameState>,
    spoiled: &'a HashMap<LockName, Error>,
    glances: &'a HashMap<LockName, Result<Glance>>,
    touched: &'a mut HashMap<LockName, u64>,
    tokens: &'a mut Tokens,
    pub(super) fences: &'a mut HashMap<LockName, Fence>,
    pub(super) tombstones: &'a mut Tombstones,
    pub(super) watchers: &'a mut Watchers,
}

impl View<'_> {
    /// The state of a name, settled, to be changed.
    ///
    /// # Errors
    /// `BackendData` if its rows cannot be read.
    pub(super) fn change(&mut self, name: &LockName) -> Result<(&mut NameState, Timestamp, &mut Tokens)> {
        self.refuse_spoiled(name)?;
        match self.touched.get_mut(name) {
            Some(turn) => *turn = self.turn,
            None => drop(self.touched.insert(name.clone(), self.turn)),
        }
        let state = self.names.entry(name.clone()).or_default();
        state.settle(self.now, self.tokens);
        Ok((state, self.now, self.tokens))
    }

    /// The state of a name as it is stored, to be looked at.
    ///
    /// # Errors
    /// `BackendData` if its rows cannot be read.
    pub(super) fn look(&mut self, name: &LockName) -> Result<(&NameState, &mut Watchers)> {
        self.refuse_spoiled(name)?;
        Ok((self.names.entry(name.clone()).or_default(), self.watchers))
    }

    /// Who holds a name.
    ///
    /// # Errors
    /// `BackendData` if that cannot be read.
    pub(super) fn glance(&self, name: &LockName) -> Result<Glance> {
        match (self.names.get(name), self.glances.get(name)) {
            (Some(state), _) => Ok(state.glance()),
            (None, Some(glance)) => glance.clone(),
            (None, None) => self.refuse_spoiled(name).map(|()| Glance::default()),
        }
    }

    fn refuse_spoiled(&self, name: &LockName) -> Result<()> {
        self.spoiled.get(name).map_or(Ok(()), |e| Err(e.clone()))
    }
}

/// A resource of the fence gate.
pub(super) struct Fence {
    /// What is stored, or why it cannot be read.
    pub(super) value: Result<Option<FencedValue>>,
    pub(super) dirty: bool,
}

/// The state of the connection task.
pub(super) struct Writer {
    db: Arc<Database>,
    runtime: Arc<dyn Runtime>,
    store: Option<Store>,
    stamps: Arc<Stamps>,
    names: HashMap<LockName, NameState>,
    /// The names that have rows which cannot be read, and why: they alone are out of order.
    spoiled: HashMap<LockName, Error>,
    /// The names that the current transaction may have changed, and which job was the last to do so.
    touched: HashMap<LockName, u64>,
    tokens: Option<Tokens>,
    version: Option<i64>,
    /// How many jobs were run.
    turns: u64,
    tombstones: Tombstones,
    watchers: Watchers,
    next_sweep: Timestamp,
    /// How far the sweep has come in the order of the names; empty at the beginning.
    swept_to: Vec<u8>,
}

impl Writer {
    pub(super) fn new(store: Store, runtime: Arc<dyn Runtime>, stamps: Arc<Stamps>) -> Self {
        Self {
            db: store.db.clone(),
            runtime,
            store: Some(store),
            stamps,
            names: HashMap::new(),
            spoiled: HashMap::new(),
            touched: HashMap::new(),
            tokens: None,
            version: None,
            turns: 0,
            tombstones: Tombstones::default(),
            watchers: Watchers::default(),
            next_sweep: Timestamp::ZERO,
            swept_to: Vec::new(),
        }
    }

    /// Serves until closed, or until nobody is left who could ask.
    pub(super) async fn serve(mut self, mut inbox: mpsc::UnboundedReceiver<Message>) {
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
            self.serve_batch(reads, false).await;
            self.serve_batch(writes, true).await;
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
        self.watchers.end(&closed);
        if let Some(reply) = close {
            let _ = reply.send(outcome);
        }
    }

    /// Runs jobs in one transaction, and answers them all.
    async fn serve_batch(&mut self, mut jobs: Vec<Box<dyn Job>>, write: bool) {
        if jobs.is_empty() {
            return;
        }
        let outcome = if write {
            self.write(&mut jobs).await
        } else {
            self.read(&mut jobs).await
        };
        let failed = outcome.err();
        if failed.is_some() {
            self.forget();
        }
        jobs.into_iter().for_each(|job| job.finish(failed.as_ref()));
    }

    /// Nothing loaded is trusted any more.
    fn forget(&mut self) {
        self.names.clear();
        self.spoiled.clear();
        self.tombstones.failed();
        self.touched.clear();
        self.tokens = None;
        self.version = None;
    }

    async fn store(&mut self) -> Result<&mut Store> {
        let broken = self.store.as_ref().is_none_or(Store::is_broken) && !self.db.private;
        if broken {
            // The old connection stays open until there is a new one: as long as one is, nobody with another boot id can take the file
            // for one that nobody has open. If that fails, the old one may be what is in the way.
            let opened = Store::open(self.db.clone(), self.runtime.clone()).await;
            self.store = None;
            // Another connection counts the versions anew, and may come to the number that this one had: what is loaded would be
            // taken for what is stored.
            self.forget();
            self.store = Some(opened?);
        }
        self.store
            .as_mut()
            .ok_or_else(|| Error::new(ErrorKind::Unavailable, "the SQLite connection is gone"))
    }

    async fn read(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<()> {
        let version = self.store().await?.version().await?;
        let glances = jobs
            .iter()
            .flat_map(|j| j.needs().glances.iter().cloned())
            .collect();
        let mut fences = self.load(version, wanted(jobs)).await?;
        let glances = self.glance(glances).await?;
        self.run(jobs, version, &mut fences, &glances);
        Ok(())
    }

    /// What the jobs have to know of names that are not loaded.
    async fn glance(&mut self, names: Vec<LockName>) -> Result<HashMap<LockName, Result<Glance>>> {
        let store = self.store.as_mut().ok_or_else(gone)?;
        let mut glances = HashMap::new();
        for name in names {
            let known = self.names.contains_key(&name) || self.spoiled.contains_key(&name);
            if !known && !glances.contains_key(&name) {
                let glance = store.glance(&name).await?;
                glances.insert(name, glance);
            }
        }
        Ok(glances)
    }

    async fn write(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<()> {
        let durable = jobs.iter().any(|j| j.needs().durable);
        let sync = if durable { Sync::Durable } else { Sync::Ordinary };
        let version = self.store().await?.begin(sync).await?;
        let outcome = self.write_in_transaction(jobs, version, durable).await;
        if outcome.is_err()
            && let Some(store) = &mut self.store
        {
            store.rollback().await;
        }
        outcome?;
        self.tombstones.committed();
        self.publish();
        self.secure_tokens().await
    }

    async fn write_in_transaction(
        &mut self,
        jobs: &mut [Box<dyn Job>],
        version: i64,
        durable: bool,
    ) -> Result<()> {
        let mut fences = self.load(version, wanted(jobs)).await?;
        self.sweep().await?;
        self.run(jobs, version, &mut fences, &HashMap::new());
        let store = self.store.as_mut().ok_or_else(gone)?;
        for (resource, fence) in &fences {
            if let (true, Ok(Some(value))) = (fence.dirty, &fence.value) {
                store.put_fence(resource, value).await?;
            }
        }
        let (mut puts, mut deletes) = (Vec::new(), Vec::new());
        for (name, state) in self.touched.keys().filter_map(|n| self.names.get_key_value(n)) {
            for (id, row) in state.dirty() {
                match row {
                    Some(row) => puts.push((name, row)),
                    None => deletes.push((name, id)),
                }
            }
        }
        let tokens = self.tokens.get_or_insert_with(Tokens::default);
        if durable {
            // A raise may have gone beyond the ceiling; this commit waits for the disk anyway.
            tokens.ceiling = tokens.ceiling.max(block_above(tokens.last));
            tokens.dirty = true;
        }
        // With every entry goes the time at which it is stored, for the first process of the next boot.
        let with_meta = tokens.dirty || !puts.is_empty();
        let tokens = with_meta.then_some((tokens.last, tokens.ceiling));
        store.write_and_commit(&puts, &deletes, tokens).await
    }

    /// Makes everything present that the jobs need.
    async fn load(
        &mut self,
        version: i64,
        (names, resources): (Vec<LockName>, Vec<LockName>),
    ) -> Result<HashMap<LockName, Fence>> {
        let foreign = self.version != Some(version);
        if foreign || self.names.len() > MAX_LOADED {
            self.forget();
        }
        let store = self.store.as_mut().ok_or_else(gone)?;
        let mut fences = HashMap::new();
        for resource in resources {
            let value = store.load_fence(&resource).await?;
            fences.insert(resource, Fence { value, dirty: false });
        }
        let mut missing = names;
        missing.retain(|n| !self.names.contains_key(n) && !self.spoiled.contains_key(n));
        if foreign {
            missing.extend(self.watchers.names());
        }
        if self.tokens.is_none() {
            let meta = store.meta().await?;
            self.tokens = Some(Tokens {
                last: meta.last_token,
                ceiling: meta.token_ceiling,
                dirty: false,
            });
        }
        missing.sort_unstable();
        missing.dedup();
        let loaded = store.load(&missing).await?;
        self.take_in(loaded);
        self.version = Some(version);
        Ok(fences)
    }

    fn take_in(&mut self, loaded: HashMap<LockName, Result<NameState>>) {
        let now = Timestamp::now();
        for (name, state) in loaded {
            match state {
                Ok(state) => {
                    self.watchers.compare(&name, &state, now);
                    self.names.insert(name, state);
                }
                Err(e) => drop(self.spoiled.insert(name, e)),
            }
        }
    }

    /// Takes back what has run out, now and then, under names that nobody may ask for any more.
    ///
    /// What is not dlock's own cannot be taken back and stays due for ever. It is passed over, and the sweep goes on behind
    /// it: neither a single row nor many may keep others from being swept, let alone from being served.
    async fn sweep(&mut self) -> Result<()> {
        let now = Timestamp::now();
        if now < self.next_sweep {
            return Ok(());
        }
        self.next_sweep = now + SWEEP_EVERY;
        let behind = std::mem::take(&mut self.swept_to);
        let store = self.store.as_mut().ok_or_else(gone)?;
        let mut due = store.due(now, &behind).await?;
        if due.len() >= DUE {
            self.next_sweep = now + SWEEP_ON;
            self.swept_to = due.last().cloned().unwrap_or_default();
        }
        let due: Vec<_> = due
            .drain(..)
            .filter_map(|name| LockName::new(name).ok())
            .collect();
        let mut missing = due.clone();
        missing.retain(|n| !self.names.contains_key(n) && !self.spoiled.contains_key(n));
        let loaded = store.load(&missing).await?;
        self.take_in(loaded);
        let tokens = self.tokens.get_or_insert_with(Tokens::default);
        for name in due {
            if let Some(state) = self.names.get_mut(&name) {
                state.settle(now, tokens);
                // As by a job of its own: whoever was answered last has not seen it.
                self.touched.insert(name, self.turns + 1);
            }
        }
        Ok(())
    }

    fn run(
        &mut self,
        jobs: &mut [Box<dyn Job>],
        version: i64,
        fences: &mut HashMap<LockName, Fence>,
        glances: &HashMap<LockName, Result<Glance>>,
    ) {
        let mut view = View {
            now: Timestamp::now(),
            turn: self.turns,
            version,
            names: &mut self.names,
            spoiled: &self.spoiled,
            glances,
            touched: &mut self.touched,
            tokens: self.tokens.get_or_insert_with(Tokens::default),
            fences,
            tombstones: &mut self.tombstones,
            watchers: &mut self.watchers,
        };
        for job in jobs {
            view.turn += 1;
            job.run(&mut view);
        }
        self.turns = view.turn;
    }

    /// After the commit: wakes those who wait for a change of these names.
    fn publish(&mut self) {
        let now = Timestamp::now();
        for (name, turn) in self.touched.drain() {
            let Some(state) = self.names.get_mut(&name) else {
                continue;
            };
            if state.is_dirty() {
                // A place in the queue taken or kept is no news for anybody else.
                let (changes, is_news) = state.written();
                if is_news {
                    self.stamps.changed_at(&name, turn);
                }
                self.watchers.tell(&name, changes, state, now);
            }
        }
        if let Some(tokens) = &mut self.tokens {
            tokens.dirty = false;
        }
    }

    /// Raises the ceiling of the tokens on the disk while many are left under it. Runs after the commit and before its
    /// answers. A failure matters only to tokens beyond the ceiling: those grants are not reported as certain.
    async fn secure_tokens(&mut self) -> Result<()> {
        let Some(Tokens { last, ceiling, .. }) = self.tokens else {
            return Ok(());
        };
        if ceiling >= block_above(last.saturating_sub(TOKENS_LEFT)) {
            return Ok(());
        }
        match self.raise_ceiling(last).await {
            Err(e) if last > ceiling => Err(Error::new(
                ErrorKind::Unknown,
                "the tokens of these grants could not be secured against power loss",
            )
            .with_source(e)),
            _ => Ok(()),
        }
    }

    async fn raise_ceiling(&mut self, last: u64) -> Result<()> {
        let store = self.store.as_mut().ok_or_else(gone)?;
        let version = store.begin(Sync::Durable).await?;
        if self.version != Some(version) {
            // Somebody came between: what is loaded is old. The next transaction loads it, and comes here again.
            store.rollback().await;
            return Err(Error::new(ErrorKind::Unavailable, "another process came between"));
        }
        store
            .write_and_commit(&[], &[], Some((last, block_above(last))))
            .await?;
        if let Some(tokens) = &mut self.tokens {
            tokens.ceiling = block_above(last);
        }
        Ok(())
    }
}

/// The names and the resources that the jobs work on.
fn wanted(jobs: &[Box<dyn Job>]) -> (Vec<LockName>, Vec<LockName>) {
    let (mut names, mut resources) = (Vec::new(), Vec::new());
    for needs in jobs.iter().map(|j| j.needs()) {
        names.extend_from_slice(&needs.names);
        resources.extend_from_slice(&needs.resources);
    }
    resources.sort_unstable();
    resources.dedup();
    (names, resources)
}

/// SQLite's integers end at 2^63 - 1.
fn block_above(token: u64) -> u64 {
    token.saturating_add(TOKEN_BLOCK).min(i64::MAX as u64)
}

fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "the SQLite connection is gone")
}

#[cfg(test)]
mod tests {
    use dlock_core::runtime::Tokio;
    use sqlx::sqlite::SqliteConnectOptions;

    use super::super::boot::BootId;
    use super::super::schema::Statements;
    use super::*;

    #[tokio::test]
    async fn what_one_connection_loaded_is_not_trusted_on_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let db = Arc::new(Database {
            options: SqliteConnectOptions::new()
                .filename(dir.path().join("locks.db"))
                .create_if_missing(true),
            at: "of the test".into(),
            sql: Statements::new("dlock_"),
            boot: BootId::current().unwrap(),
            private: false,
            ours: true,
            busy_budget: Duration::from_secs(10),
        });
        let runtime = Tokio::current().unwrap();
        let store = Store::open(db, runtime.clone()).await.unwrap();
        let mut writer = Writer::new(store, runtime, Arc::new(Stamps::new()));
        let name = LockName::new("n").unwrap();
        let version = writer.store().await.unwrap().version().await.unwrap();
        writer.load(version, (vec![name], Vec::new())).await.unwrap();
        assert!(writer.version.is_some() && !writer.names.is_empty());

        // As raising the ceiling of the tokens does, whose failure is nobody's.
        writer.store.as_mut().unwrap().mark_broken();
        writer.store().await.unwrap();
        assert!(writer.version.is_none() && writer.names.is_empty() && writer.tokens.is_none());
    }
}
