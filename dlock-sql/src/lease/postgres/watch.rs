//! What a watch looks for.
//!
//! A watch is a row beside the name's entries, with a lease of its own. While there is one, each change of
//! the holders is written into it, with a number, in the transaction that makes the change, and `NOTIFY`
//! wakes the watcher to fetch it. An expiry is reported when a client looks, so a watch learns the first end,
//! and looks then. Behind a pooler no client can listen: there a watch polls every 5 to 50 ms whether the
//! name's number has changed, or something has expired.
//!
//! Where something may have been missed, a snapshot is reported, with `skipped`:
//!
//! * *An answer with changes is lost, or there were too many*: numbers are missing.
//! * *The watch was not renewed in time*, as in a program that was stopped: the next look finds no row of it,
//!   makes another, and says so.
//! * *The connection that listens breaks*: nothing is missed. Each watch is woken when there is another.
//! * *A change between the row and the first snapshot* stands in both, and its number says so.
//!
//! *A watch is dropped while it asks*: what takes its row back goes by another connection, and may come
//! first. So it leaves a mark, as an abandoned request does, so that no row is made without an owner.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::LeaseKey;
use dlock_core::{Change, ErrorKind, Holder, LockName, RequestId, Result, Timestamp};
use futures::StreamExt as _;
use futures::channel::mpsc;

use super::answer::Answer;
use super::call::Value;
use super::lock::inspect;
use super::{Db, Postgres};
use crate::lease::connection::again;
use crate::lease::dialect::{Dialect as _, Watcher};
use crate::lease::failure::foreign;
use crate::lease::keys::{micros, read_id_digits, read_micros, read_mode, read_token};

/// How long changes are recorded for a watch that does not look.
const TOLD_FOR: Duration = Duration::from_secs(60);

/// In the place of that time: changes are told no more; and a copy of the request that is on its way is not
/// heard.
const ENDED: i64 = 0;
const BURIED: i64 = -1;

/// How often one looks that is not woken.
const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(50);

pub(in crate::lease) struct Watching {
    db: Arc<Db>,
    /// The name, and the id of the watch.
    key: LeaseKey,
    /// The number of the last reported change.
    number: i64,
    wake: mpsc::Receiver<()>,
    /// When the row has to be kept.
    keep_at: Timestamp,
    pause: Duration,
    /// A request for the row is on its way, or was and has had no answer.
    asks: bool,
}

/// Fetches the row of a watch, and keeps the watch for that many microseconds. Also says whether a copy of it
/// may still be in flight.
async fn listen(db: &Arc<Db>, watch: &LeaseKey, time: i64) -> (Result<Answer>, bool) {
    let (listen, channel) = (db.sql.call("listen($1, $2, $3, $4)"), db.channel.as_deref());
    let values = [Value::Text(channel), Value::Long(time)];
    let (came, strayed) = again(|| db.call(&listen, watch, &values)).await;
    let is_unknown = came.as_ref().is_err_and(|e| e.kind() == ErrorKind::Unknown);
    (came.map(|(_, answer)| answer), strayed || is_unknown)
}

impl Watching {
    async fn come(&mut self) -> Result<Answer> {
        let before = std::mem::replace(&mut self.asks, true);
        let (came, strayed) = listen(&self.db, &self.key, micros(TOLD_FOR)).await;
        self.asks = before || strayed;
        self.keep_at = Timestamp::now() + TOLD_FOR / 3;
        came
    }

    /// A snapshot. Earlier reports do not matter any more.
    async fn snapshot(&mut self, skipped: bool) -> Result<Change> {
        let (now, number) = inspect(&self.db, &self.key.name).await?;
        self.number = i64::try_from(number).unwrap_or(i64::MAX);
        Ok(Change::Snapshot { now, skipped })
    }
}

impl Watcher<Postgres> for Watching {
    async fn begin(db: &Arc<Db>, name: &LockName) -> Result<(Self, Change)> {
        let mut own = [0; 16];
        db.runtime.fill_random(&mut own);
        let id = RequestId::new(u128::from_be_bytes(own), 0);
        // It takes its row back, also if this is dropped on the way.
        let mut watching = Self {
            db: db.clone(),
            key: LeaseKey::new(name.clone(), id),
            number: 0,
            wake: db.pushes.watch(id),
            keep_at: Timestamp::ZERO,
            pause: LOOK_MIN,
            asks: false,
        };
        watching.come().await?;
        let first = watching.snapshot(false).await?;
        Ok((watching, first))
    }

    async fn look(&mut self) -> Result<(Vec<Change>, Duration)> {
        let polls = self.db.channel.is_none();
        if polls && Timestamp::now() < self.keep_at {
            let look = Postgres::look(&self.db, &self.key.name).await?;
            if !look.due && look.mark.0 == self.number {
                self.pause = (self.pause * 2).min(LOOK_MAX);
                return Ok((Vec::new(), self.pause));
            }
        }
        let answer = self.come().await?;
        self.pause = LOOK_MIN;
        let told = match answer.word.strip_prefix('K') {
            Some(messages) => read_messages(messages, self.number)?,
            None => Vec::new(),
        };
        let all_told = usize::try_from(answer.number() - self.number) == Ok(told.len());
        let changes = match answer.word.starts_with('K') && all_told {
            true => {
                self.number = answer.number();
                told
            }
            // Changes were not recorded for a while, or not all.
            false => vec![self.snapshot(true).await?],
        };
        let first_end = answer.life.unwrap_or(TOLD_FOR) + Duration::from_millis(2);
        let pause = match polls {
            true => LOOK_MIN,
            false => first_end.min(TOLD_FOR / 3),
        };
        Ok((changes, pause))
    }

    async fn woken(&mut self) {
        if self.wake.next().await.is_none() {
            std::future::pending().await
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.db.pushes.unwatch(self.key.id);
        let (db, key) = (Arc::clone(&self.db), self.key.clone());
        let time = if self.asks { BURIED } else { ENDED };
        // If this fails, changes are recorded without a reader for a while.
        self.db.spawn(async move { drop(listen(&db, &key, time).await) });
    }
}

/// Messages, each behind its length in characters: the changes after that number.
fn read_messages(mut text: &str, after: i64) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    while !text.is_empty() {
        let mut read = || {
            let (length, rest) = text.split_once(':')?;
            let length: usize = length.parse().ok()?;
            let mut ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
            let (message, rest) = rest.split_at(ends.nth(length)?);
            text = rest;
            read_change(message)
        };
        let (number, change) = read().ok_or_else(|| foreign("changes in another form"))?;
        if number > after {
            changes.push(change);
        }
    }
    Ok(changes)
}

/// A change, with its number.
fn read_change(message: &str) -> Option<(i64, Change)> {
    let (number, rest) = message.split_once(':')?;
    let number = number.parse().ok()?;
    let (what, rest) = rest.split_at_checked(1)?;
    let (id, rest) = rest.split_at_checked(48)?;
    let id = read_id_digits(id)?;
    let change = match what {
        "R" => Change::Released { id },
        "X" => Change::Expired { id },
        "F" => Change::Forced { id },
        "G" => {
            let mut parts = rest.strip_prefix(':')?.splitn(4, ':');
            let mode = read_mode(parts.next()?.parse().ok()?).ok()?;
            let token = read_token(parts.next()?.parse().ok()?).ok()?;
            let life = read_micros(parts.next()?.parse().ok()?);
            let owner = Some(parts.next()?).filter(|owner| !owner.is_empty());
            Change::Granted(Holder::new(id, mode, Some(token), life).with_owner(owner.map(Arc::from)))
        }
        _ => return None,
    };
    Some((number, change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::keys::digits;

    #[test]
    fn changes_are_read_as_the_database_writes_them() {
        let id = RequestId::new(7, 9);
        let digits = digits(id);
        let row = [
            format!("11:R{digits}"),
            format!("12:X{digits}"),
            format!("13:G{digits}:3:99:30000000:mé: again"),
        ];
        let row: String = row.iter().map(|m| format!("{}:{m}", m.chars().count())).collect();
        let changes = read_messages(&row, 11).unwrap();
        assert_eq!(changes[0], Change::Expired { id });
        let Change::Granted(holder) = &changes[1] else {
            panic!("{changes:?}")
        };
        assert_eq!((changes.len(), holder.token.unwrap().get()), (2, 99));
        assert_eq!(holder.expires_in, Duration::from_secs(30));
        assert_eq!(holder.owner.as_deref(), Some("mé: again"));
        assert!(read_messages("", 0).unwrap().is_empty());
        for strange in ["x", "3:ab", "1:1", "2:1:", "3:1:R", "4:1:Gé"] {
            assert!(read_messages(strange, 0).is_err(), "{strange}");
        }
    }
}
