//! A backend of one's own in some 150 lines: leases in files, for the processes of one machine with Linux.
//!
//! A file is read and rewritten under an advisory lock on a second one, and replaced by a rename: who dies in
//! between leaves the old state or the new one. What is not claimed here, `dlock` refuses.

use std::fs::{self, File};
use std::io::{self, ErrorKind::InvalidData, ErrorKind::NotFound};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::*;
use dlock_core::{Capabilities, Capability, Error, ErrorKind, LossReason, Result, Timestamp, Token};
use serde::{Deserialize, Serialize};

/// How long to wait for another's change. Only a process that was stopped in the middle of one takes longer.
const PATIENCE: Duration = Duration::from_millis(250);

/// Locks kept in a directory.
pub struct FileLock {
    directory: PathBuf,
    capabilities: Capabilities,
    abandoned: Mutex<Tombstones>,
}

/// The contents of a file: the last token, and the leases. Times are since the boot of the machine.
type State = (u64, Vec<Lease>);

#[derive(Serialize, Deserialize)]
struct Lease {
    id: String,
    name: Vec<u8>,
    token: u64,
    expires: Duration,
}

impl FileLock {
    /// Locks in that directory, which must exist, and be emptied at boot as `/run` is: the clock starts anew.
    pub fn new(directory: impl AsRef<Path>) -> Self {
        // The least: a renewal that waits its turn for as long as it may still finds its lease.
        let (ttl, claims) = (PATIENCE..=Duration::from_secs(86_400), Capabilities::new("acme-file"));
        Self {
            directory: directory.as_ref().to_owned(),
            capabilities: claims.with(Capability::PerGrantTtl).with_ttl(ttl, Duration::from_millis(1)),
            abandoned: Mutex::new(Tombstones::new(Duration::from_secs(60), 1 << 14)),
        }
    }

    /// Runs one change of a name alone, over all processes. Nothing is awaited: no dropped future cuts it.
    fn change<T>(&self, key: &LeaseKey, change: impl FnOnce(&mut State, Duration) -> T) -> Result<T> {
        // All processes must agree on the number of buckets, and on who is in which.
        let bucket = key.name.as_bytes().iter().fold(0, |sum: u8, byte| sum.rotate_left(1) ^ byte) % 64;
        let file = |what| self.directory.join(format!("{bucket:02}.{what}"));
        let changed = || {
            let mutex = File::create(file("mutex"))?;
            let mut tries = 0..1000;
            while let Err(e) = mutex.try_lock() {
                tries.next().ok_or(e)?;
                std::thread::sleep(PATIENCE / 1000);
            }
            let mut state: State = match fs::read(file("leases")) {
                Ok(text) => serde_json::from_slice(&text).map_err(|e| io::Error::new(InvalidData, e))?,
                Err(e) if e.kind() == NotFound => Default::default(),
                Err(e) => return Err(e),
            };
            // One clock for all processes of the machine, read while nobody else can change anything.
            let now = Timestamp::now().since(Timestamp::ZERO);
            state.1.retain(|lease| lease.expires > now);
            let answer = change(&mut state, now);
            fs::write(file("next"), serde_json::to_vec(&state)?)?;
            fs::rename(file("next"), file("leases"))?;
            Ok(answer)
        };
        changed().map_err(|e: io::Error| {
            let kind = if e.kind() == InvalidData { ErrorKind::BackendData } else { ErrorKind::Unavailable };
            Error::new(kind, "the lock directory cannot be used").with_source(e)
        })
    }

    fn end(&self, key: &LeaseKey) -> Result<Option<Lease>> {
        let id = key.id.to_string();
        self.change(key, |(_, leases), _| leases.extract_if(.., |lease| lease.id == id).next())
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

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        self.capabilities.check(request)?;
        let (key, sent) = (&request.key, Timestamp::now());
        let (id, name) = (key.id.to_string(), key.name.as_bytes().to_vec());
        let granted = |t, rest| Ok(Attempt::Granted(Grant::new(key.clone(), Token::new(t), sent, rest)));
        self.change(key, |(token, leases), now| match leases.iter().find(|lease| lease.name == name) {
            _ if self.abandoned.lock().unwrap().has(&key.id) => Err(Error::lost(LossReason::Refused)),
            // Sent again because the answer was lost: the same grant, with what remains of it.
            Some(lease) if lease.id == id => granted(lease.token, lease.expires - now),
            Some(lease) => Ok(Attempt::Held(Wait::default().recheck_in(lease.expires - now))),
            None => {
                *token += 1;
                leases.push(Lease { id, name, token: *token, expires: now + request.ttl });
                granted(*token, request.ttl)
            }
        })?
    }

    async fn release(&self, key: &LeaseKey, _: Release) -> Result<Released> {
        Ok(self.end(key)?.map_or(Released::NotHeld, |_| Released::Released))
    }

    async fn abandon(&self, keys: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        let abandon = |key: &LeaseKey| {
            // Nothing overtakes on the way to a file: what comes late is a call of this process.
            self.abandoned.lock().unwrap().bury(key.id, Timestamp::now());
            let granted = |lease: Lease| Abandoned::WasGranted(Token::new(lease.token));
            Ok(self.end(key)?.map_or(Abandoned::Nothing, granted))
        };
        keys.iter().map(abandon).collect()
    }
}

#[async_trait]
impl Renew for FileLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let renew = |RenewItem { key, ttl, .. }: &RenewItem| {
            let (id, sent) = (key.id.to_string(), Timestamp::now());
            let renewed = self.change(key, |(_, leases), now| {
                let lease = leases.iter_mut().find(|lease| lease.id == id)?;
                lease.expires = lease.expires.max(now + *ttl);
                Some(Renewal::new(sent, lease.expires - now))
            });
            renewed.map_or_else(RenewOutcome::Failed, |r| r.map_or(RenewOutcome::Gone, RenewOutcome::Renewed))
        };
        items.iter().map(renew).collect()
    }
}

impl Fencing for FileLock {}
