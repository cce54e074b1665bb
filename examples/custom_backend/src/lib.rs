//! A backend of one's own in under 200 lines of code: leases in a file, for the processes of one machine.
//!
//! The whole state is a small text file, read and rewritten under an advisory lock on a second file. The rewriting is
//! a rename, so a process that dies in between leaves the old state or the new one. Exclusive locks, renewal and fencing
//! tokens; everything else is not claimed, and `dlock` refuses it before this code is called. Waiting, timeouts, loss and
//! cleaning up are the engine's.

use std::fs::{self, File};
use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, FenceGate, Fencing, Grant, LeaseKey, Lock, Part, PartKind, Probe, Raised, Release,
    Released, Renew, RenewItem, RenewKind, RenewOutcome, Renewal, RequestId, Signal, Wait, Wake,
};
use dlock_core::{
    Capabilities, Capability, Error, ErrorKind, LockName, LossReason, Mode, Result, Strength, Timestamp, Token,
};
use futures::stream::{self, BoxStream, StreamExt};

/// Locks kept in a directory.
pub struct FileLock {
    directory: PathBuf,
    capabilities: Capabilities,
}

/// The contents of the file: a line for the boot and the last token, then a line for each lease and tombstone.
#[derive(Default)]
struct State {
    last_token: u64,
    rows: Vec<Row>,
}

struct Row {
    /// 0: a tombstone, against an attempt that arrives after its abandon.
    token: u64,
    id: RequestId,
    expires: Timestamp,
    name: LockName,
}

/// How long a message can be under way.
const TOMBSTONE: Duration = Duration::from_secs(60);

impl FileLock {
    /// Locks in that directory, which must exist.
    pub fn new(directory: impl AsRef<Path>) -> Self {
        let capabilities = Capabilities::new("acme-file")
            .with(Capability::PerGrantTtl)
            .with(Capability::Renew)
            .with_fencing(Strength::WhileStateSurvives);
        Self { directory: directory.as_ref().to_owned(), capabilities }
    }

    /// Runs one change alone, over all processes. It is short, and nothing is awaited in it: a dropped future cannot cut it.
    fn change<T>(&self, change: impl FnOnce(&mut State, Timestamp) -> Result<T>) -> Result<T> {
        let away = |e: std::io::Error| {
            Error::new(ErrorKind::Unavailable, "the lock directory cannot be used").with_source(e)
        };
        let mutex = File::create(self.directory.join("mutex")).map_err(away)?;
        mutex.lock().map_err(away)?;
        let path = self.directory.join("leases");
        let mut state = match fs::read_to_string(&path) {
            Ok(text) => State::parse(&text)
                .ok_or_else(|| Error::new(ErrorKind::BackendData, "the lease file was not written by this program"))?,
            Err(e) if e.kind() == NotFound => State::default(),
            Err(e) => return Err(away(e)),
        };
        // One clock for all processes of the machine, read while nobody else can change anything.
        let now = Timestamp::now();
        state.rows.retain(|row| row.expires > now);
        let answer = change(&mut state, now)?;
        let next = self.directory.join("leases.next");
        fs::write(&next, state.print()).and_then(|()| fs::rename(&next, &path)).map_err(away)?;
        Ok(answer)
    }
}

impl State {
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let (boot, last_token) = lines.next()?.split_once(' ')?;
        let mut state = Self { last_token: last_token.parse().ok()?, rows: Vec::new() };
        for line in lines {
            let mut words = line.splitn(4, ' ');
            let token = words.next()?.parse().ok()?;
            let id = RequestId::parse(words.next()?)?;
            let expires = Timestamp::from_nanos(words.next()?.parse().ok()?);
            let hex = words.next()?;
            let byte = |i| u8::from_str_radix(hex.get(i..i + 2)?, 16).ok();
            let name: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(byte).collect();
            state.rows.push(Row { token, id, expires, name: LockName::new(name?).ok()? });
        }
        // The clock starts anew with each boot: leases of an earlier one are over. The tokens go on.
        if boot != boot_id() {
            state.rows.clear();
        }
        Some(state)
    }

    fn print(&self) -> String {
        let mut text = format!("{} {}\n", boot_id(), self.last_token);
        for row in &self.rows {
            let name: String = row.name.as_bytes().iter().map(|b| format!("{b:02x}")).collect();
            text += &format!("{} {} {} {name}\n", row.token, row.id, row.expires.as_nanos());
        }
        text
    }

    /// The lease or tombstone of that acquisition.
    fn find(&mut self, key: &LeaseKey) -> Option<&mut Row> {
        self.rows.iter_mut().find(|row| row.id == key.id && row.name == key.name)
    }

    fn remove(&mut self, key: &LeaseKey) -> Option<Row> {
        let i = self.rows.iter().position(|row| row.id == key.id && row.name == key.name)?;
        Some(self.rows.swap_remove(i))
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(|_| "unknown".to_owned(), |s| s.trim().to_owned())
}

#[async_trait]
impl Lock for FileLock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn part(&self, kind: PartKind) -> Option<Part<'_>> {
        match kind {
            PartKind::Renew => Some(Part::Renew(self)),
            PartKind::Fencing => Some(Part::Fencing(self)),
            _ => None,
        }
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        stream::pending().boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        if request.mode != Mode::Exclusive {
            return Err(Error::new(ErrorKind::Unsupported, "only exclusive locks are kept here"));
        }
        let sent = Timestamp::now();
        self.change(|state, now| {
            match state.find(&request.key) {
                Some(row) if row.token == 0 => return Err(Error::lost(LossReason::Released)),
                // Sent again because the answer was lost: the same grant, with what remains of it.
                Some(row) => {
                    let token = Token::new(row.token);
                    return Ok(Attempt::Granted(Grant::new(request.key.clone(), token, sent, now.until(row.expires))));
                }
                None => {}
            }
            if let Some(holder) = state.rows.iter().find(|row| row.token > 0 && row.name == request.key.name) {
                let (min, max) = (Duration::from_millis(1), Duration::from_millis(10));
                let wait = Wait::new(Wake::Poll { probe: Arc::new(Always), min, max });
                return Ok(Attempt::Held(wait.recheck_in(now.until(holder.expires))));
            }
            state.last_token += 1;
            let (token, expires) = (state.last_token, now + request.ttl);
            let LeaseKey { name, id, .. } = request.key.clone();
            state.rows.push(Row { token, id, expires, name });
            Ok(Attempt::Granted(Grant::new(request.key.clone(), Token::new(token), sent, request.ttl)))
        })
    }

    async fn release(&self, lease: &LeaseKey, _: Release) -> Result<Released> {
        self.change(|state, _| Ok(state.remove(lease).map_or(Released::NotHeld, |_| Released::Released)))
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        let abandon = |key: &LeaseKey| {
            self.change(|state, now| {
                let was = state.remove(key).filter(|row| row.token > 0);
                let LeaseKey { name, id, .. } = key.clone();
                state.rows.push(Row { token: 0, id, expires: now + TOMBSTONE, name });
                Ok(was.map_or(Abandoned::Nothing, |row| Abandoned::WasGranted(Token::new(row.token))))
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
        let sent = Timestamp::now();
        let all = self.change(|state, now| {
            let renew = |item: &RenewItem| match state.find(&item.key) {
                Some(row) if row.token > 0 && item.kind == RenewKind::Lease => {
                    row.expires = row.expires.max(now + item.ttl);
                    RenewOutcome::Renewed(Renewal::new(sent, now.until(row.expires)))
                }
                _ => RenewOutcome::Gone,
            };
            Ok(items.iter().map(renew).collect())
        });
        all.unwrap_or_else(|e: Error| vec![RenewOutcome::Failed(e); items.len()])
    }
}

#[async_trait]
impl Fencing for FileLock {
    fn strength(&self) -> Strength {
        Strength::WhileStateSurvives
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        None
    }

    async fn raise(&self, _: &LeaseKey, _: Token) -> Result<Raised> {
        Err(Error::new(ErrorKind::Unsupported, "tokens cannot be raised here"))
    }
}

/// Reading the file is as cheap as asking whether it has changed.
struct Always;

#[async_trait]
impl Probe for Always {
    async fn changed(&self) -> Result<bool> {
        Ok(true)
    }
}
