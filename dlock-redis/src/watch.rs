//! Watching a lock: the stream of changes, `inspect`, `force_release`.
//!
//! Redis reports an expired lease only when a client looks. So a watch knows the first end, and looks then:
//! that is one script for each lease that expires, and one every 20 s that keeps the changes coming.
//!
//! What could be missed, and how that is detected; then a snapshot comes, with `skipped`:
//!
//! * *A message is lost.* Changes have numbers, and one is missing.
//! * *The connection breaks, or the watcher is too slow.* The channel ends, and is made again.
//! * *Changes were not published for a while*: this program was paused for longer than that, or the server
//!   forgot everything (FLUSHALL, a restart). Changes then have no number. But each look reads *since when*
//!   changes have been published without a gap, and that time has changed; even if another watch looked
//!   first. The numbers go on from that time, in microseconds, so earlier ones are not reused.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{Page, Watch};
use dlock_core::{Change, Holder, Inspection, LockName, Mode, Result, Timestamp};
use futures::channel::mpsc;
use futures::future::{Either, select};
use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, StreamExt as _};

use crate::backend::{Backend, millis};
use crate::keys::read_id;
use crate::lock::RedisLock;
use crate::reply::{Reply, strange, token};

/// How long changes are published for a watch that does not look.
const TOLD_FOR: Duration = Duration::from_secs(60);

/// How long a watch sleeps after a look that failed, so that one that may work later is not pressed.
const AFTER_FAILURE: Duration = Duration::from_millis(500);

/// Not before the server thinks so.
const AFTER_END: Duration = Duration::from_millis(2);

/// What a look has shown.
pub(crate) struct Seen {
    ended: u32,
    pub(crate) now: Inspection,
    /// The number of the last change that was reported.
    number: u64,
    /// Since when changes have been published without a gap.
    since: u64,
}

impl Backend {
    /// Changes are published for that long from now on; `None`: not for this client any more.
    pub(crate) async fn look(
        self: &Arc<Self>,
        name: &LockName,
        told: Option<Duration>,
        end_all: bool,
    ) -> Result<Seen> {
        let told = told.map_or_else(|| "-1".to_owned(), |time| millis(time).to_string());
        let call = self.on(&self.scripts.look, name).arg(told);
        let (sent, value) = call.arg(if end_all { "1" } else { "0" }).run_within().await?;
        let mut reply = Reply::new(value)?;
        let ended = u32::try_from(reply.number()?).unwrap_or(u32::MAX);
        self.pushes.anchor(sent, reply.number()?);
        let waiting = u32::try_from(reply.number()?).unwrap_or(u32::MAX);
        // An unwatched name has none.
        let number = reply.text()?.parse().unwrap_or(0);
        let since = reply.text()?.parse().unwrap_or(0);
        let mut holders = Vec::new();
        for value in Reply::new(reply.next()?)?.rest() {
            let mut one = Reply::new(value)?;
            let id = read_id(&one.bytes()?).ok_or_else(|| strange("no id"))?;
            let mode = mode(&one.bytes()?, &one.text()?)?;
            let (token, life) = (one.token()?, one.life()?);
            let owner = one.text()?;
            holders.push(Holder::new(id, mode, Some(token), life).with_owner(label(&owner)));
        }
        self.pushed(name, reply.pushed());
        holders.sort_by_key(|h| h.token);
        Ok(Seen {
            ended,
            now: Inspection::new(holders, waiting),
            number,
            since,
        })
    }
}

fn label(owner: &str) -> Option<Arc<str>> {
    (!owner.is_empty()).then(|| Arc::from(owner))
}

fn mode(word: &[u8], limit: &str) -> Result<Mode> {
    match word {
        b"x" => Ok(Mode::Exclusive),
        _ => Ok(Mode::Shared {
            limit: NonZeroU32::new(limit.parse().map_err(|_| strange("no limit"))?),
        }),
    }
}

/// A published change, with its number.
fn read_change(message: &[u8]) -> Option<(u64, Change)> {
    let digits = message.iter().position(|b| !b.is_ascii_digit())?;
    let (number, rest) = message.split_at(digits);
    let number = std::str::from_utf8(number).ok()?.parse().ok()?;
    let (what, rest) = rest.split_first()?;
    let (id, rest) = rest.split_at_checked(24)?;
    let id = read_id(id)?;
    let change = match what {
        b'R' => Change::Released { id },
        b'X' => Change::Expired { id },
        b'F' => Change::Forced { id },
        b'G' => {
            let rest = String::from_utf8_lossy(rest);
            let mut parts = rest.splitn(5, ':');
            let mode = mode(parts.next()?.as_bytes(), parts.next()?).ok()?;
            let token = token(parts.next()?.as_bytes()).ok()?;
            let life = Duration::from_millis(parts.next()?.parse().ok()?);
            Change::Granted(Holder::new(id, mode, Some(token), life).with_owner(label(parts.next()?)))
        }
        _ => return None,
    };
    Some((number, change))
}

struct Watching {
    backend: Arc<Backend>,
    name: LockName,
    channel: Vec<u8>,
    receive: mpsc::Receiver<Vec<u8>>,
    /// Something was missed, and no snapshot has said so yet.
    behind: bool,
    number: u64,
    since: u64,
    /// When there is something to look for.
    look_at: Timestamp,
    over: bool,
}

impl Watching {
    /// Takes a snapshot: earlier reports do not matter any more.
    fn begin(&mut self, seen: Seen, skipped: bool) -> Change {
        (self.number, self.since, self.behind) = (seen.number, seen.since, false);
        self.look_again(&seen);
        Change::Snapshot {
            now: seen.now,
            skipped,
        }
    }

    fn look_again(&mut self, seen: &Seen) {
        let ends = seen.now.holders.iter().map(|h| h.expires_in).min();
        let pause = ends.unwrap_or(TOLD_FOR).saturating_add(AFTER_END);
        self.look_at = Timestamp::now() + pause.min(TOLD_FOR / 3);
    }

    async fn next(&mut self) -> Option<Result<Change>> {
        while !self.over {
            let pause = Timestamp::now().until(self.look_at);
            let sleep = self.backend.runtime.sleep(pause);
            match select(self.receive.next(), sleep).await {
                Either::Left((Some(message), _)) => match read_change(&message) {
                    Some((number, _)) if number <= self.number || self.behind => continue,
                    Some((number, change)) if number == self.number + 1 => {
                        self.number = number;
                        if let Change::Granted(holder) = &change {
                            let end = Timestamp::now() + holder.expires_in + AFTER_END;
                            self.look_at = self.look_at.min(end);
                        }
                        return Some(Ok(change));
                    }
                    _ => self.behind = true,
                },
                // The connection is gone, or this client.
                Either::Left((None, _)) => {
                    self.receive = self.backend.pushes.hear_changes(&self.channel);
                    self.behind = true;
                }
                Either::Right(_) => {}
            }
            match self.backend.look(&self.name, Some(TOLD_FOR), false).await {
                // Something was missed, or changes were not published for a while.
                Ok(seen) if self.behind || seen.since != self.since => {
                    return Some(Ok(self.begin(seen, true)));
                }
                // The changes that this look made come on the channel, with their numbers.
                Ok(seen) => self.look_again(&seen),
                Err(e) if e.is_retryable() => self.look_at = Timestamp::now() + AFTER_FAILURE,
                Err(e) => {
                    self.over = true;
                    return Some(Err(e.with_name(&self.name)));
                }
            }
        }
        None
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.receive.close();
        let backend = Arc::clone(&self.backend);
        if let Some(turn) = backend.pushes.end_watch(&self.channel) {
            let channel = std::mem::take(&mut self.channel);
            let (name, runtime) = (self.name.clone(), backend.runtime.clone());
            let stopping = async move {
                {
                    let _alone = turn.lock().await;
                    if !backend.pushes.is_over(&channel, &turn) {
                        return;
                    }
                    backend.connection.unsubscribe(&channel).await;
                    backend.pushes.unsubscribed(&channel);
                }
                // If this fails, changes are published without a listener for a while.
                let _ = backend.look(&name, None, false).await;
            };
            runtime.spawn(stopping.boxed());
        }
    }
}

#[async_trait]
impl Watch for RedisLock {
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>> {
        self.backend.capabilities.check_name(name)?;
        let c = &self.backend;
        c.open()?;
        let channel = c.holder(name);
        // First the ear, then the look: what comes between the two is heard, and its number shows that it was
        // seen. It takes itself back, also if this is dropped on the way.
        let turn = c.pushes.begin_watch(&channel);
        let mut watching = Watching {
            backend: c.clone(),
            name: name.clone(),
            receive: c.pushes.hear_changes(&channel),
            channel,
            behind: false,
            number: 0,
            since: 0,
            look_at: Timestamp::now(),
            over: false,
        };
        {
            let _alone = turn.lock().await;
            c.subscribe(&watching.channel).await?;
        }
        let seen = c.look(name, Some(TOLD_FOR), false).await?;
        let first = watching.begin(seen, false);
        let others = stream::unfold(watching, |mut w| async move { w.next().await.map(|c| (c, w)) });
        Ok(stream::iter([Ok(first)]).chain(others).boxed())
    }

    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        self.backend.capabilities.check_name(name)?;
        let seen = self.backend.look(name, Some(Duration::ZERO), false).await;
        seen.map(|s| s.now)
    }

    async fn force_release(&self, name: &LockName) -> Result<u32> {
        self.backend.capabilities.check_name(name)?;
        let seen = self.backend.look(name, Some(Duration::ZERO), true).await;
        seen.map(|s| s.ended)
    }

    async fn list(&self, prefix: &[u8], from: Option<&[u8]>) -> Result<Page> {
        self.backend.list(prefix, from).await
    }
}
