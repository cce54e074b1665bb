//! The loaded part of the database, and a transaction on it.
//!
//! Between transactions the names stay loaded. `PRAGMA data_version` tells after each `BEGIN` whether another
//! connection has stored anything since; if not, an uncontended acquire reads no row.

use std::collections::HashMap;
use std::time::Duration;

use dlock_core::spi::{LeaseKey, Tombstones};
use dlock_core::{Error, ErrorKind, LockName, Result, Timestamp};

use super::connection::Job;
use super::schema::TOKEN_BLOCK;
use super::store::{Store, Sync};
use super::watchers::Watchers;
use crate::admit::{Glance, NameState, Settled, Tokens};
use crate::gate::LAST_TOKEN;

/// At most that many names stay loaded.
const MAX_LOADED: usize = 50_000;
/// How often unused names are checked, and how many at a time.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
const MAX_SWEPT: usize = 256;
/// How soon the sweep goes on when there was more than that.
const SWEEP_ON: Duration = Duration::from_millis(100);

type Jobs = [Job];

pub(super) struct View {
    /// When the job that runs is judged: read after the write lock was taken.
    pub(super) now: Timestamp,
    /// What other connections had stored when it was loaded; `None` if nothing loaded is trusted.
    pub(super) version: Option<i64>,
    /// Of a name with rows that cannot be read, why: it alone is out of order.
    pub(super) names: HashMap<LockName, Result<NameState>>,
    /// Of names that are not loaded, what those who wait have to know.
    glances: HashMap<LockName, Result<Glance>>,
    tokens: Tokens,
    /// The keys that were abandoned, and those that were released. In memory: whatever could still arrive
    /// under a key comes through the channel of this very task, and dies with it. What is forgotten of the
    /// latter costs an exact answer to a very late retry, and no safety.
    pub(super) abandoned: Tombstones<LeaseKey>,
    released: Tombstones<LeaseKey>,
    /// Released in the transaction that is running: a release whose commit fails has not happened, and its
    /// lease is there to be asked for and released again.
    pub(super) releasing: Vec<LeaseKey>,
    pub(super) watchers: Watchers,
    next_sweep: Timestamp,
    /// How far the sweep has come in the order of the names; empty at the beginning.
    swept_to: Vec<u8>,
    /// Less than half a block is left under the ceiling of the tokens, so the next transaction waits for the
    /// disk and raises it. What would be granted beyond it before that is refused.
    secure_tokens: bool,
}

impl Default for View {
    fn default() -> Self {
        Self {
            now: Timestamp::ZERO,
            version: None,
            names: HashMap::new(),
            glances: HashMap::new(),
            tokens: Tokens::default(),
            // A request can be late only inside this process, where it overtakes nothing: a minute is ample.
            abandoned: Tombstones::new(Duration::from_secs(60), 100_000),
            released: Tombstones::new(Duration::from_secs(60 * 60), 1024),
            releasing: Vec::new(),
            watchers: Watchers::default(),
            next_sweep: Timestamp::ZERO,
            swept_to: Vec::new(),
            secure_tokens: false,
        }
    }
}

impl View {
    /// Nothing loaded is trusted any more.
    pub(super) fn forget(&mut self) {
        self.names.clear();
        self.glances.clear();
        self.releasing.clear();
        self.version = None;
    }

    /// The state of a name that the job needs, settled, to be changed; `BackendData` if it cannot be read.
    pub(super) fn change(&mut self, name: &LockName) -> Result<Settled<'_>> {
        let state = self.names.get_mut(name).ok_or_else(not_loaded)?;
        let state = state.as_mut().map_err(|e| e.clone())?;
        Ok(state.settle(self.now, &mut self.tokens))
    }

    /// The same as it is stored, to be looked at.
    pub(super) fn look(&mut self, name: &LockName) -> Result<(&NameState, &mut Watchers)> {
        let state = self.names.get(name).ok_or_else(not_loaded)?;
        Ok((state.as_ref().map_err(|e| e.clone())?, &mut self.watchers))
    }

    /// The holders of that name: from what is loaded, else from SQLite, once for each version.
    pub(super) async fn glance(&mut self, store: &mut Store, name: &LockName) -> Result<Result<Glance>> {
        if let Some(state) = self.names.get(name) {
            return Ok(state.as_ref().map(NameState::glance).map_err(Error::clone));
        }
        if let Some(known) = self.glances.get(name) {
            return Ok(known.clone());
        }
        let glance = store.glance(name).await?;
        self.glances.insert(name.clone(), glance.clone());
        Ok(glance)
    }

    pub(super) fn was_released(&self, key: &LeaseKey) -> bool {
        self.released.has(key) || self.releasing.contains(key)
    }

    pub(super) async fn read(&mut self, store: &mut Store, jobs: &mut Jobs) -> Result<()> {
        let version = store.version().await?;
        self.load(store, version, &mut wanted(jobs)).await?;
        self.run(store, jobs).await
    }

    pub(super) async fn write(&mut self, store: &mut Store, jobs: &mut Jobs) -> Result<()> {
        let asked = jobs.iter().filter_map(|job| job.needs.write).max();
        let sync = match self.secure_tokens {
            true => Sync::Durable,
            false => asked.unwrap_or(Sync::Ordinary),
        };
        let version = store.begin(sync).await?;
        let written = self.write_in_transaction(store, jobs, version, sync).await;
        match &written {
            Ok(names) => self.publish(names),
            Err(_) => store.rollback().await,
        }
        written.map(drop)
    }

    /// Answers which names may have changed.
    async fn write_in_transaction(
        &mut self,
        store: &mut Store,
        jobs: &mut Jobs,
        version: i64,
        sync: Sync,
    ) -> Result<Vec<LockName>> {
        let mut names = wanted(jobs);
        let due = self.due(store).await?;
        names.extend_from_slice(&due);
        self.load(store, version, &mut names).await?;
        self.now = Timestamp::now();
        for name in &due {
            // What has run out is taken back. A name that is spoiled is left as it is.
            let _ = self.change(name);
        }
        self.run(store, jobs).await?;
        let mut changes = Vec::new();
        for name in &names {
            if let Some(Ok(state)) = self.names.get(name) {
                changes.extend(state.dirty().map(|(id, row)| (name, id, row)));
            }
        }
        // Statements of one kind together: their texts are known to the connection.
        changes.sort_by_key(|(_, _, row)| row.is_some());
        let tokens = &mut self.tokens;
        let above = |n| tokens.last.saturating_add(n).min(LAST_TOKEN);
        if sync == Sync::Durable {
            // Also beyond what a raise has gone to.
            tokens.ceiling = tokens.ceiling.max(above(TOKEN_BLOCK));
            tokens.dirty = true;
        }
        self.secure_tokens = tokens.ceiling < above(TOKEN_BLOCK / 2);
        if tokens.last > tokens.ceiling {
            // Somebody granted half a block in one change, or many others did, each in its last one.
            let text = "the tokens of these grants are not yet safe against a power loss; try again";
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        // With every entry goes the time at which it is stored, for the first process of the next boot.
        let with_meta = tokens.dirty || changes.iter().any(|(_, _, row)| row.is_some());
        store
            .write_and_commit(&changes, with_meta.then_some(&*tokens))
            .await?;
        Ok(names)
    }

    /// Loads those names, and the watched ones if another process has stored something: their watchers are
    /// told.
    pub(super) async fn load(
        &mut self,
        store: &mut Store,
        version: i64,
        names: &mut Vec<LockName>,
    ) -> Result<()> {
        let foreign = self.version != Some(version);
        if foreign || self.names.len() + self.glances.len() > MAX_LOADED {
            self.forget();
        }
        if foreign {
            names.extend(self.watchers.names());
        }
        if self.version.is_none() {
            self.tokens = store.tokens().await?;
        }
        names.sort_unstable();
        names.dedup();
        let missing = names.iter().filter(|n| !self.names.contains_key(*n));
        let missing: Vec<_> = missing.cloned().collect();
        let (loaded, now) = (store.load(&missing).await?, Timestamp::now());
        for (name, state) in &loaded {
            if let Ok(state) = state {
                self.watchers.tell(name, None, state, now);
            }
        }
        self.names.extend(loaded);
        self.version = Some(version);
        Ok(())
    }

    /// Names of which something has run out, now and then: nobody may ask for them any more.
    ///
    /// What is not dlock's own cannot be taken back and stays due for ever. It is passed over, and the sweep
    /// goes on behind it: neither a single row nor many may keep others from being swept, let alone from
    /// being served.
    async fn due(&mut self, store: &mut Store) -> Result<Vec<LockName>> {
        let now = Timestamp::now();
        if now < self.next_sweep {
            return Ok(Vec::new());
        }
        self.next_sweep = now + SWEEP_EVERY;
        let behind = std::mem::take(&mut self.swept_to);
        let due = store.due(now, &behind, MAX_SWEPT).await?;
        if let Some(last) = due.get(MAX_SWEPT - 1) {
            self.next_sweep = now + SWEEP_ON;
            self.swept_to = last.clone();
        }
        Ok(due.into_iter().flat_map(LockName::new).collect())
    }

    async fn run(&mut self, store: &mut Store, jobs: &mut Jobs) -> Result<()> {
        for job in jobs {
            self.now = Timestamp::now();
            // Each sees what those before it have written.
            if let Some(run) = job.run.take() {
                run(self, store).await?;
            }
        }
        Ok(())
    }

    /// After the commit: tells those who watch.
    fn publish(&mut self, names: &[LockName]) {
        let now = Timestamp::now();
        for key in self.releasing.drain(..) {
            self.released.bury(key, now);
        }
        self.tokens.dirty = false;
        for name in names {
            if let Some(Ok(state)) = self.names.get_mut(name)
                && state.is_dirty()
            {
                let (changes, _) = state.written();
                self.watchers.tell(name, Some(&changes), state, now);
            }
        }
    }
}

/// The names that the jobs work on.
fn wanted(jobs: &Jobs) -> Vec<LockName> {
    let names = jobs.iter().flat_map(|j| &j.needs.names);
    names.cloned().collect()
}

fn not_loaded() -> Error {
    Error::new(ErrorKind::Unavailable, "the name was not loaded")
}
