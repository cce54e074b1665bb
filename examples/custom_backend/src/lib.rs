//! A backend of one's own in some 200 lines: leases in files, for the processes of one machine with Linux.
//!
//! A file holds the names of one bucket. It is read and rewritten under an advisory lock on a second one, and
//! replaced by a rename: who dies in between leaves the old state or the new one. What is not claimed here,
//! `dlock` refuses. Waiting, timeouts, loss and cleaning up are the engine's.

use std::fs::{self, File};
use std::io::{self, ErrorKind::InvalidData, ErrorKind::NotFound};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use dlock_core::spi::*;
use dlock_core::{Capabilities, Capability, Error, ErrorKind, LossReason, Result};
use dlock_core::{Strength, Timestamp, Token};
use futures::stream::{self, BoxStream, StreamExt};
use serde::{Deserialize, Serialize};

/// Locks kept in a directory.
pub struct FileLock {
    directory: PathBuf,
    capabilities: Capabilities,
}

/// The contents of a file.
#[derive(Default, Serialize, Deserialize)]
struct State {
    boot: String,
    last_token: u64,
    rows: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
struct Row {
    /// 0: a tombstone, against an attempt that arrives after its abandon.
    token: u64,
    /// The acquisition, and the name of the lock.
    key: (String, Vec<u8>),
    expires_ns: u64,
}

fn key_of(key: &LeaseKey) -> (String, Vec<u8>) {
    (key.id.to_string(), key.name.as_bytes().to_vec())
}

/// How long to wait for another's change. Only a process that was stopped in the middle of one takes longer.
const PATIENCE: Duration = Duration::from_millis(250);
/// The shortest lease: a renewal that waits its turn for as long as it may still finds it.
const LEAST_TTL: Duration = PATIENCE;
/// How long a message can be under way.
const TOMBSTONE: Duration = Duration::from_secs(60);
/// Among how many files the names are spread. All processes must agree on it, and on `bucket`.
const BUCKETS: u8 = 64;

fn bucket(name: &[u8]) -> u8 {
    name.iter().fold(0, |sum: u8, byte| sum.wrapping_mul(31).wrapping_add(*byte)) % BUCKETS
}

impl FileLock {
    /// Locks in that directory, which must exist.
    pub fn new(directory: impl AsRef<Path>) -> Self {
        let capabilities = Capabilities::new("acme-file")
            .with(Capability::PerGrantTtl)
            .with(Capability::Renew)
            .with_ttl(LEAST_TTL..=Duration::from_secs(86_400), Duration::from_millis(1))
            .with_fencing(Strength::WhileStateSurvives);
        Self { directory: directory.as_ref().to_owned(), capabilities }
    }

    /// Runs one change of a name alone, over all processes. It is short, and nothing is awaited in it: a
    /// dropped future cannot cut it.
    fn change<T>(&self, key: &LeaseKey, change: impl FnOnce(&mut State, Timestamp) -> T) -> Result<T> {
        let bucket = bucket(key.name.as_bytes());
        let file = |what| self.directory.join(format!("{bucket:02}.{what}"));
        let changed = || {
            let mutex = File::create(file("mutex"))?;
            let until = Instant::now() + PATIENCE;
            while let Err(e) = mutex.try_lock() {
                if Instant::now() > until {
                    return Err(e.into());
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            let (path, next) = (file("leases"), file("next"));
            let mut state: State = match fs::read(&path) {
                Ok(text) => serde_json::from_slice(&text).map_err(|e| io::Error::new(InvalidData, e))?,
                Err(e) if e.kind() == NotFound => State::default(),
                Err(e) => return Err(e),
            };
            // One clock for all processes of the machine, read while nobody else can change anything. It
            // starts anew with each boot: the leases of an earlier one are over. The tokens go on.
            let (now, boot) = (Timestamp::now(), fs::read_to_string("/proc/sys/kernel/random/boot_id")?);
            state.rows.retain(|row| state.boot == boot && row.expires() > now);
            state.boot = boot;
            let answer = change(&mut state, now);
            fs::write(&next, serde_json::to_vec(&state)?)?;
            fs::rename(&next, &path)?;
            Ok(answer)
        };
        changed().map_err(|e: io::Error| {
            let kind = if e.kind() == InvalidData { ErrorKind::BackendData } else { ErrorKind::Unavailable };
            Error::new(kind, "the lock directory cannot be used").with_source(e)
        })
    }
}

impl Row {
    fn expires(&self) -> Timestamp {
        Timestamp::from_nanos(self.expires_ns)
    }
}

impl State {
    /// Ends that lease, if there is one; a tombstone stays.
    fn end(&mut self, key: &LeaseKey) -> Option<Row> {
        self.rows.iter().position(|r| r.token > 0 && r.key == key_of(key)).map(|i| self.rows.swap_remove(i))
    }
}

#[async_trait]
impl Lock for FileLock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn renew(&self) -> Option<&dyn Renew> {
        Some(self)
    }

    fn fencing(&self) -> Option<&dyn Fencing> {
        Some(self)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        stream::pending().boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        let sent = Timestamp::now();
        let key = key_of(&request.key);
        let granted = |t, rest| Attempt::Granted(Grant::new(request.key.clone(), Token::new(t), sent, rest));
        self.change(&request.key, |state, now| {
            match state.rows.iter().find(|row| row.key == key) {
                Some(row) if row.token == 0 => return Err(Error::lost(LossReason::Released)),
                // Sent again because the answer was lost: the same grant, with what remains of it.
                Some(row) => return Ok(granted(row.token, now.until(row.expires()))),
                None => {}
            }
            if let Some(holder) = state.rows.iter().find(|row| row.token > 0 && row.key.1 == key.1) {
                let wait = Wait::new(Wake::poll_in_full(Duration::from_millis(5), Duration::from_millis(50)));
                return Ok(Attempt::Held(wait.recheck_in(now.until(holder.expires()))));
            }
            let (token, expires_ns) = (state.last_token + 1, (now + request.ttl).as_nanos());
            state.last_token = token;
            state.rows.push(Row { token, key, expires_ns });
            Ok(granted(token, request.ttl))
        })?
    }

    async fn release(&self, lease: &LeaseKey, _: Release) -> Result<Released> {
        self.change(lease, |state, _| state.end(lease).map_or(Released::NotHeld, |_| Released::Released))
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        let abandon = |key: &LeaseKey| {
            self.change(key, |state, now| {
                let (was, expires_ns) = (state.end(key), (now + TOMBSTONE).as_nanos());
                state.rows.push(Row { token: 0, key: key_of(key), expires_ns });
                was.map_or(Abandoned::Nothing, |row| Abandoned::WasGranted(Token::new(row.token)))
            })
        };
        requests.iter().map(abandon).collect()
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl Renew for FileLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let renew = |item: &RenewItem| {
            let sent = Timestamp::now();
            let renewed = self.change(&item.key, |state, now| {
                let row = state.rows.iter_mut().find(|row| row.token > 0 && row.key == key_of(&item.key))?;
                row.expires_ns = row.expires_ns.max((now + item.ttl).as_nanos());
                Some(Renewal::new(sent, now.until(row.expires())))
            });
            match renewed {
                Ok(Some(renewal)) => RenewOutcome::Renewed(renewal),
                Ok(None) => RenewOutcome::Gone,
                Err(e) => RenewOutcome::Failed(e),
            }
        };
        items.iter().map(renew).collect()
    }
}

#[async_trait]
impl Fencing for FileLock {
    fn strength(&self) -> Strength {
        Strength::WhileStateSurvives
    }
}
