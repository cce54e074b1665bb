//! Looking at a lock: the stream of changes, `inspect`, `force_release`.
//!
//! A watch is a row beside the name's entries, with a lease of its own. While there is one, each change of
//! the holders is told to it, with a number, in the transaction that makes the change: `NOTIFY` sends it when
//! that commits, in the order of the commits. A lease that runs out is told when somebody looks, so a watch
//! knows the first end, and looks then.
//!
//! What could be missed, and how that is seen; then the state as a whole is told, with `skipped`:
//!
//! * *A message is lost*: a number is missing.
//! * *The connection breaks, or whoever watches is too slow*: the channel ends, and the watch begins anew.
//! * *The watch was not renewed in time*, as in a program that was stopped: the next look finds no row of it,
//!   makes another, and says so.
//! * *A change between the row and the first look*: it is told and shown, and its number says that it was
//!   shown.
//!
//! *A watch is dropped while it asks to be told*: what takes its row back goes by another connection, and may
//! come before that wish. Then it leaves a mark, as an abandoned request does, so that no row is made for
//! nobody.
//!
//! Behind a pooler nobody can listen. There the changes stand in the watch's row until it comes for them: it
//! looks every 5 to 50 ms whether the name's number has changed, or something has run out. *The answer with
//! the changes is lost*: a number is missing, as with a message.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{Lock as _, Watch};
use dlock_core::{Change, Error, ErrorKind, Holder, Inspection, LockName, RequestId, Result, Timestamp};
use futures::channel::mpsc;
use futures::future::{Either, select};
use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, StreamExt as _};
use sqlx::Row as _;

use super::call::Value;
use super::connection::Db;
use super::failure::foreign;
use super::lock::PostgresLease;
use super::reply::{Answer, id_bytes, label, mode, read_id_digits, read_inspection, read_token};
use crate::lease::request::check_name;

/// How long changes are told for a watch that does not look.
const TOLD_FOR: Duration = Duration::from_secs(60);

/// In the place of that time: changes are told no more; and a copy of the wish that is on its way is not
/// heard.
const ENDED: i64 = 0;
const BURIED: i64 = -1;

/// How long a watch sleeps after a look that failed, so that one that may work later is not pressed.
const AFTER_FAILURE: Duration = Duration::from_millis(500);

/// How often one looks that is not told.
const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(50);

/// What a watch hears when it has changes told.
struct Told {
    /// They have been without a gap.
    kept: bool,
    /// What stood in its row.
    messages: VecDeque<String>,
    /// The number of the last change.
    number: u64,
}

impl Db {
    /// Has the changes told to that watch for so many microseconds; answers whether they have been told
    /// without a gap. A copy of it that was not answered is `noted`.
    async fn listen_for(
        self: &Arc<Self>,
        name: &LockName,
        watch: RequestId,
        time: i64,
        noted: impl FnOnce() + Send,
    ) -> Result<Told> {
        let id = id_bytes(watch);
        let values = [
            Value::Bytes(name.as_bytes()),
            Value::Bytes(&id),
            Value::Text(self.channel.as_deref()),
            Value::Long(time),
        ];
        let (sent, rows) = self.ask_again(&self.sql.listen, &values, noted).await?;
        let answer = Answer::of(&rows)?;
        self.pushes.anchor(sent, answer.at);
        let bad = || foreign("the changes of a name in another form");
        let stood = answer.word.strip_prefix('K');
        Ok(Told {
            kept: stood.is_some(),
            messages: read_messages(stood.unwrap_or_default()).ok_or_else(bad)?,
            number: u64::try_from(answer.number()).map_err(|_| bad())?,
        })
    }

    /// Whether there is anything to come for: another number than that, or something that has run out.
    async fn has_news(self: &Arc<Self>, name: &LockName, number: u64) -> Result<bool> {
        let bad = |_: sqlx::Error| foreign("a column of another type");
        let rows = self
            .read(&self.sql.look, &[Value::Bytes(name.as_bytes())])
            .await?;
        let Some(row) = rows.first() else { return Ok(true) };
        let (last, due): (i64, bool) = (row.try_get(0).map_err(bad)?, row.try_get(4).map_err(bad)?);
        Ok(due || u64::try_from(last) != Ok(number))
    }

    /// The state, and the number of the last change in it.
    async fn see(self: &Arc<Self>, name: &LockName) -> Result<(Inspection, u64)> {
        let name = Value::Bytes(name.as_bytes());
        read_inspection(&self.read(&self.sql.inspect, &[name]).await?)
    }
}

/// Messages, each behind its length in characters.
fn read_messages(mut text: &str) -> Option<VecDeque<String>> {
    let mut all = VecDeque::new();
    while !text.is_empty() {
        let (length, rest) = text.split_once(':')?;
        let length: usize = length.parse().ok()?;
        let mut ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
        let (message, rest) = rest.split_at(ends.nth(length)?);
        all.push_back(message.to_owned());
        text = rest;
    }
    Some(all)
}

/// A change as it is told, with its number.
fn read_change(message: &str) -> Option<(u64, Change)> {
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
            let mode = mode(parts.next()?.parse().ok()?)?;
            let token = read_token(parts.next()?.parse().ok()?)?;
            let life: i64 = parts.next()?.parse().ok()?;
            let life = Duration::from_micros(u64::try_from(life).unwrap_or(0));
            Change::Granted(Holder::new(id, mode, Some(token), life).with_owner(label(parts.next()?)))
        }
        _ => return None,
    };
    Some((number, change))
}

struct Watching {
    db: Arc<Db>,
    name: LockName,
    id: RequestId,
    receive: mpsc::Receiver<String>,
    /// Come for, and not told yet.
    found: VecDeque<String>,
    /// When the row has to be kept, of one that looks.
    keep_at: Timestamp,
    /// Something was missed, and no snapshot has said so yet.
    behind: bool,
    number: u64,
    /// When there is something to look for.
    look_at: Timestamp,
    pause: Duration,
    first: Option<Change>,
    over: bool,
    /// A wish to be told is on its way, or was and has had no answer.
    asks: bool,
}

impl Watching {
    /// Takes in the state as a whole: what was told before is of no interest any more.
    fn begin(&mut self, (now, number): (Inspection, u64), skipped: bool) -> Change {
        (self.number, self.behind) = (number, false);
        self.found.clear();
        self.look_again(&now);
        Change::Snapshot { now, skipped }
    }

    /// Has changes told for a while; whether they have been without a gap.
    async fn have_told(&mut self) -> Result<Told> {
        let before = std::mem::replace(&mut self.asks, true);
        let (time, mut strayed) = (i64::try_from(TOLD_FOR.as_micros()).unwrap_or(i64::MAX), false);
        let told = self.db.listen_for(&self.name, self.id, time, || strayed = true);
        let told = told.await;
        self.keep_at = Timestamp::now() + TOLD_FOR / 3;
        self.asks = before || strayed || matches!(&told, Err(e) if e.kind() == ErrorKind::Unknown);
        told
    }

    fn is_told(&self) -> bool {
        self.db.channel.is_some()
    }

    fn look_again(&mut self, now: &Inspection) {
        let pause = match self.is_told() {
            true => {
                let ends = now.holders.iter().map(|h| h.expires_in).min();
                let pause = ends.unwrap_or(TOLD_FOR).saturating_add(Duration::from_millis(2));
                pause.min(TOLD_FOR / 3)
            }
            false => self.pause,
        };
        self.look_at = Timestamp::now() + pause;
    }

    async fn next(&mut self) -> Option<Result<Change>> {
        if let Some(first) = self.first.take() {
            return Some(Ok(first));
        }
        loop {
            if self.over {
                return None;
            }
            if let Err(e) = self.db.open() {
                return self.fail(e);
            }
            let sleep = self.db.runtime.sleep(Timestamp::now().until(self.look_at));
            let woken = match self.is_told() && !self.behind {
                _ if !self.found.is_empty() => self.found.pop_front().map_or(Woken::Look, Woken::Told),
                true => select(self.receive.next(), sleep).await.factor_first(),
                false => {
                    if let Either::Right(_) = select(sleep, self.db.closing.clone()).await {
                        continue;
                    }
                    Woken::Look
                }
            };
            match woken {
                Woken::Told(message) => match read_change(&message) {
                    Some((number, _)) if number <= self.number => {}
                    Some((number, change)) if number == self.number + 1 => {
                        self.number = number;
                        if let Change::Granted(holder) = &change {
                            let end = Timestamp::now() + holder.expires_in + Duration::from_millis(2);
                            self.look_at = self.look_at.min(end);
                        }
                        return Some(Ok(change));
                    }
                    _ => {
                        if let Some(item) = self.begin_anew().await {
                            return Some(item);
                        }
                    }
                },
                // The connection is gone, this was too slow, or the client is closed.
                Woken::End => {
                    if let Some(item) = self.begin_anew().await {
                        return Some(item);
                    }
                }
                Woken::Look if self.behind => {
                    if let Some(item) = self.begin_anew().await {
                        return Some(item);
                    }
                }
                Woken::Look => {
                    if let Some(item) = self.look().await {
                        return Some(item);
                    }
                }
            }
        }
    }

    /// Takes back what has run out, which is told as any other change, and has changes told for a while more.
    async fn look(&mut self) -> Option<Result<Change>> {
        if !self.is_told() && Timestamp::now() < self.keep_at {
            match self.db.has_news(&self.name, self.number).await {
                Ok(true) => {}
                Ok(false) => {
                    self.pause = (self.pause * 2).min(LOOK_MAX);
                    self.look_at = Timestamp::now() + self.pause;
                    return None;
                }
                Err(e) => return self.failed(e),
            }
        }
        let told = match self.have_told().await {
            Ok(told) => told,
            Err(e) => return self.failed(e),
        };
        self.pause = LOOK_MIN;
        if told.kept && !self.is_told() && (told.number == self.number || !told.messages.is_empty()) {
            self.found = told.messages;
            self.look_at = Timestamp::now() + self.pause;
            return None;
        }
        match self.db.see(&self.name).await {
            Ok(seen) if told.kept && self.is_told() => {
                self.look_again(&seen.0);
                None
            }
            // Nobody was told for a while, or not of all.
            Ok(seen) => Some(Ok(self.begin(seen, true))),
            Err(e) => self.failed(e),
        }
    }

    /// What may pass is tried again later.
    fn failed(&mut self, e: Error) -> Option<Result<Change>> {
        if !may_pass(&e) {
            return self.fail(e);
        }
        self.look_at = Timestamp::now() + AFTER_FAILURE;
        None
    }

    fn fail(&mut self, e: Error) -> Option<Result<Change>> {
        self.over = true;
        Some(Err(e.with_name(&self.name)))
    }

    /// After something was missed: the state as a whole, as soon as it can be had.
    async fn begin_anew(&mut self) -> Option<Result<Change>> {
        // First the ear, then the look.
        self.receive = self.db.pushes.watch(self.id);
        let seen = async {
            if self.is_told() && !self.db.pushes.listens() {
                return Err(Error::new(ErrorKind::Unavailable, "nothing listens yet"));
            }
            self.have_told().await?;
            self.db.see(&self.name).await
        };
        match seen.await {
            Ok(seen) => Some(Ok(self.begin(seen, true))),
            Err(e) if may_pass(&e) => {
                self.behind = true;
                self.look_at = Timestamp::now() + AFTER_FAILURE;
                None
            }
            Err(e) => self.fail(e),
        }
    }
}

fn may_pass(e: &Error) -> bool {
    e.is_retryable() || e.kind() == ErrorKind::Unknown
}

enum Woken {
    Told(String),
    /// Nothing more is told.
    End,
    Look,
}

/// Which of the two came first.
trait FactorFirst {
    fn factor_first(self) -> Woken;
}

impl<A, B> FactorFirst for Either<(Option<String>, A), ((), B)> {
    fn factor_first(self) -> Woken {
        match self {
            Either::Left((Some(message), _)) => Woken::Told(message),
            Either::Left((None, _)) => Woken::End,
            Either::Right(_) => Woken::Look,
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.db.pushes.unwatch(self.id);
        let (db, name, id) = (Arc::clone(&self.db), self.name.clone(), self.id);
        let runtime = db.runtime.clone();
        let time = if self.asks { BURIED } else { ENDED };
        let stopping = async move {
            let told = std::pin::pin!(db.listen_for(&name, id, time, || ()));
            // Where this fails, changes are told to nobody for a while.
            let _ = select(told, db.closing.clone()).await;
        };
        runtime.spawn(stopping.boxed());
    }
}

#[async_trait]
impl Watch for PostgresLease {
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>> {
        let named = |e: Error| e.with_name(name);
        check_name(self.capabilities(), name).map_err(named)?;
        let db = &self.db;
        db.open().map_err(named)?;
        let mut own = [0; 16];
        db.runtime.fill_random(&mut own);
        let id = RequestId::new(u128::from_be_bytes(own), 0);
        // First the ear, then the look. It takes itself back, also if this is dropped on the way.
        let mut watching = Watching {
            db: db.clone(),
            name: name.clone(),
            id,
            receive: db.pushes.watch(id),
            found: VecDeque::new(),
            keep_at: Timestamp::ZERO,
            behind: false,
            number: 0,
            look_at: Timestamp::now(),
            pause: LOOK_MIN,
            first: None,
            over: false,
            asks: false,
        };
        watching.have_told().await.map_err(named)?;
        let seen = db.see(name).await.map_err(named)?;
        watching.first = Some(watching.begin(seen, false));
        Ok(stream::unfold(watching, |mut w| {
            async move { w.next().await.map(|c| (c, w)) }.boxed()
        })
        .boxed())
    }

    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let named = |e: Error| e.with_name(name);
        check_name(self.capabilities(), name).map_err(named)?;
        let (now, _) = self.db.see(name).await.map_err(named)?;
        Ok(now)
    }

    async fn force_release(&self, name: &LockName) -> Result<u32> {
        let named = |e: Error| e.with_name(name);
        check_name(self.capabilities(), name).map_err(named)?;
        let values = [Value::Bytes(name.as_bytes())];
        let (_, rows) = self.db.ask(&self.db.sql.force, &values).await.map_err(named)?;
        let answer = Answer::of(&rows).map_err(named)?;
        u32::try_from(answer.number()).map_err(|_| named(foreign("an impossible number of holders")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::postgres::reply::id_digits;

    #[test]
    fn changes_are_read_as_the_database_writes_them() {
        let id = RequestId::new(7, 9);
        let digits = id_digits(id);
        assert_eq!(
            read_change(&format!("12:R{digits}")),
            Some((12, Change::Released { id }))
        );
        let (number, change) = read_change(&format!("13:G{digits}:3:99:30000000:me: again")).unwrap();
        let Change::Granted(holder) = change else {
            panic!("{change:?}")
        };
        assert_eq!((number, holder.token.unwrap().get()), (13, 99));
        assert_eq!(holder.expires_in, Duration::from_secs(30));
        assert_eq!(holder.owner.as_deref(), Some("me: again"));
        assert_eq!(
            read_messages("3:a:é2:1:").unwrap(),
            ["a:é".to_owned(), "1:".to_owned()]
        );
        assert!(read_messages("").unwrap().is_empty());
        assert!(read_messages("3:ab").is_none() && read_messages("x").is_none());
        for strange in ["", "1", "1:", "1:R", "1:Gé", &format!("x:R{digits}")] {
            assert_eq!(read_change(strange), None, "{strange}");
        }
    }
}
