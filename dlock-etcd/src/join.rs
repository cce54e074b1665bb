//! Joining a queue and leaving it.
//!
//! To join, one transaction puts the entry and reads what is in front of it. If the last lines that were
//! joined were empty, it puts the entry on condition that this one is, which is less work; if it is not, the
//! usual one follows. To leave, the entry is deleted by its name.
//!
//! A request that does not wait must leave nothing behind if it is not granted. So it puts its entry on
//! condition that the queue has not changed since it was seen to have room; for an exclusive one, that the
//! queue is empty.
//!
//! What could break it, and why it does not:
//!
//! * *The answer is lost.* The request is noted as sent before it is. The next call looks for the entry and,
//!   in the same transaction, forbids it if it is missing: see [`requests`](crate::requests).
//! * *Two calls for one request run at a time.* The second is refused.
//! * *The lease has ended.* The put is refused, since it names the lease.
//! * *The entry is removed by another.* A look finds that it is gone, and it is made anew, at the end of the
//!   queue.

use std::sync::atomic::Ordering;

use dlock_core::spi::{Acquire, LeaseKey, Place, Queueing};
use dlock_core::{Error, ErrorKind, LossReason, Mode, Result};
use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};

use crate::keys::{behind, entry_name};
use crate::line::{Line, line_of};
use crate::link::revision;
use crate::lock::EtcdLock;
use crate::requests::{Request, State};
use crate::session::Session;

/// How often others may be quicker to join.
const TRIES: usize = 16;

/// After so many empty lines the next is expected to be empty. If it is not, that costs a proposal.
const EMPTY_BEFORE: u32 = 8;

/// Where an entry is.
pub(crate) enum Turn {
    Admitted,
    Behind(Behind),
    /// The lock is in use with shared holders or waiters of this other kind.
    Mismatch(Mode),
    /// It is not in the line.
    Gone,
}

/// What came of a request.
pub(crate) enum Entered {
    /// Its entry was made in that revision.
    InLine(i64, Result<Turn>),
    /// There was no room for one that does not wait.
    Held(Behind),
}

/// What an entry waits for.
pub(crate) struct Behind {
    /// How many wait in front of it, where that is known.
    pub(crate) ahead: Option<u32>,
    /// Keys of which one at least has to go or, for a reader, to become a reader's.
    pub(crate) watch: Vec<Vec<u8>>,
    /// The revision that showed it.
    pub(crate) at: i64,
}

fn create(key: &str, op: CompareOp, revision: i64) -> Compare {
    Compare::create_revision(key, op, revision)
}

/// Nothing was put in that line since that revision: of an empty line all that is compared is zero.
fn unchanged(line: &str, since: i64) -> Compare {
    Compare::mod_revision(line, CompareOp::Less, since + 1).with_range(behind(line))
}

/// What a transaction read.
pub(crate) fn read_in(answer: &TxnResponse) -> Result<GetResponse> {
    let read = answer.op_responses().into_iter().find_map(|op| match op {
        TxnOpResponse::Get(read) => Some(read),
        _ => None,
    });
    read.ok_or_else(|| Error::new(ErrorKind::BackendData, "etcd's answer cannot be read"))
}

impl EtcdLock {
    /// How the line is read to know the turn of a request that is in it since that revision, or is to join.
    ///
    /// An exclusive one needs no more than the entry in front of it. What the name of an entry tells is
    /// enough, without its value.
    fn in_front(&self, line: &str, mode: Mode, since: Option<i64>) -> GetOptions {
        let all = GetOptions::new().with_keys_only().with_range(behind(line));
        let all = match since {
            Some(revision) => all.with_max_create_revision(revision),
            None => all,
        };
        match mode {
            Mode::Exclusive => all
                .with_sort(SortTarget::Create, SortOrder::Descend)
                .with_limit(2),
            _ => all,
        }
    }

    /// The turn of the entry that was made in that revision, as the line shows that was read
    /// [`in_front`](Self::in_front).
    fn turn_in(&self, name: &str, mode: Mode, own: i64, got: &GetResponse, at: i64) -> Result<Turn> {
        let line = line_of(got.kvs(), name.len())?;
        let Some(i) = line.entries.iter().position(|e| e.revision == own) else {
            return Ok(Turn::Gone);
        };
        if mode.is_exclusive() {
            return Ok(match i {
                0 => Turn::Admitted,
                i => {
                    // Of all in the line, when it had just joined: the holder is in front as well.
                    let is_last = at == own;
                    let ahead = is_last.then(|| u32::try_from(got.count() - 2).unwrap_or(0));
                    Turn::Behind(self.behind(&line, ahead, i - 1..i, at))
                }
            });
        }
        Ok(match line.place(i) {
            Place::Admitted => Turn::Admitted,
            Place::Behind { ahead, watch } => Turn::Behind(self.behind(&line, Some(ahead), watch, at)),
            Place::Mismatch(other) => Turn::Mismatch(other),
        })
    }

    fn behind(&self, line: &Line, ahead: Option<u32>, watch: std::ops::Range<usize>, at: i64) -> Behind {
        let watch = line.entries[watch].iter().map(|e| e.key.clone()).collect();
        Behind { ahead, watch, at }
    }

    /// Makes the entry of a request, if it waits or is admitted.
    pub(crate) async fn enter(&self, session: &Session, request: &Acquire) -> Result<Entered> {
        match request.queue {
            Queueing::Join => self.join(session, request).await,
            _ => self.take(session, request).await,
        }
    }

    /// Sends a transaction that puts the entry and reads the line; where there has to be `room`, it puts the
    /// entry if there is, and otherwise reads the line if the request does not wait.
    async fn put(
        &self,
        session: &Session,
        request: &Acquire,
        line: &str,
        room: Option<Compare>,
    ) -> Result<TxnResponse> {
        let (key, mode) = (&request.key, request.mode);
        let entry = |number| [line, &entry_name(session.lease, number, mode)].concat();
        let sent = session.requests.send(key, mode, entry)?;
        let gone = self.keys().gone(session.lease, sent.number);
        let put =
            |key: &str, value| TxnOp::put(key, value, Some(PutOptions::new().with_lease(session.lease)));
        let id = key.id.to_string();
        let mut puts = match &request.owner {
            Some(label) => {
                let made_by = self.keys().request(&sent.entry[line.len()..]);
                vec![put(&sent.entry, label.to_string()), put(&made_by, id)]
            }
            None => vec![put(&sent.entry, id)],
        };
        // This does not hold for a late copy, whose answer no one reads.
        let is_allowed = Compare::version(gone, CompareOp::Less, sent.over + 1);
        let read = (room.is_none() || request.queue != Queueing::Join)
            .then(|| TxnOp::get(line, Some(self.in_front(line, mode, None))));
        let txn = match room {
            Some(room) => {
                let txn = Txn::new().when([is_allowed, room]).and_then(puts);
                txn.or_else(Vec::from_iter(read))
            }
            None => {
                puts.extend(read);
                Txn::new().when([is_allowed]).and_then(puts)
            }
        };
        let answer = match session.write(txn).await {
            // The write that exceeds the quota is carried out before it is refused.
            Err(e) if e.kind() == ErrorKind::LimitReached => {
                session.requests.change(key, |r| r.state = State::InLine(0));
                self.leave(session, key).await?;
                return Err(e);
            }
            answer => answer.inspect_err(|e| {
                // Nothing was done.
                if e.kind() != ErrorKind::Unknown {
                    session.requests.forget(key);
                }
            })?,
        };
        match answer.succeeded() {
            true => {
                let made = State::InLine(revision!(answer));
                session.requests.change(key, |r| r.state = made);
            }
            false => session.requests.forget(key),
        }
        Ok(answer)
    }

    async fn join(&self, session: &Session, request: &Acquire) -> Result<Entered> {
        let line = self.keys().line(&request.key.name);
        let empty = &self.connection.empty_lines;
        // One request at a time: of many that join at once, each would be wrong. After a wrong one, or one
        // that is dropped, eight more lines have to be seen.
        if empty.load(Ordering::Relaxed) >= EMPTY_BEFORE && empty.swap(0, Ordering::Relaxed) >= EMPTY_BEFORE {
            let room = unchanged(&line, 0);
            let answer = self.put(session, request, &line, Some(room)).await?;
            if answer.succeeded() {
                empty.store(EMPTY_BEFORE, Ordering::Relaxed);
                return Ok(Entered::InLine(revision!(answer), Ok(Turn::Admitted)));
            }
        }
        let answer = self.put(session, request, &line, None).await?;
        if !answer.succeeded() {
            return Err(Error::lost(LossReason::Refused));
        }
        let own = revision!(answer);
        let read = read_in(&answer);
        match read.as_ref().is_ok_and(|read| read.count() == 1) {
            true => empty.fetch_add(1, Ordering::Relaxed),
            false => empty.swap(0, Ordering::Relaxed),
        };
        let turn = read.and_then(|read| self.turn_in(&line, request.mode, own, &read, own));
        Ok(Entered::InLine(own, turn))
    }

    async fn take(&self, session: &Session, request: &Acquire) -> Result<Entered> {
        let mode = request.mode;
        let line = self.keys().line(&request.key.name);
        // The revision in which there was room. An empty line has it for anyone.
        let mut seen = 0;
        if !mode.is_exclusive() {
            let how = self.in_front(&line, mode, None);
            let read = session.get(line.clone(), how).await?;
            seen = revision!(read);
            if let Some(behind) = self.at_end(&line, mode, &read, seen)? {
                return Ok(Entered::Held(behind));
            }
        }
        for _ in 0..TRIES {
            let room = unchanged(&line, seen);
            let answer = self.put(session, request, &line, Some(room)).await?;
            if answer.succeeded() {
                return Ok(Entered::InLine(revision!(answer), Ok(Turn::Admitted)));
            }
            seen = revision!(answer);
            if let Some(behind) = self.at_end(&line, mode, &read_in(&answer)?, seen)? {
                return Ok(Entered::Held(behind));
            }
        }
        let message = "others joined the line of the lock again and again, just before this request";
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// What a request that came last would wait for, in the line as it was in that revision. `None`: it
    /// would be admitted.
    fn at_end(&self, name: &str, mode: Mode, got: &GetResponse, at: i64) -> Result<Option<Behind>> {
        let line = line_of(got.kvs(), name.len())?;
        match line.place_at_end(mode) {
            Place::Admitted => Ok(None),
            Place::Behind { ahead, watch } => Ok(Some(self.behind(&line, Some(ahead), watch, at))),
            Place::Mismatch(other) => Err(other.mismatch(mode)),
        }
    }

    /// Reads the turn of an entry that has been in the queue since that revision. A member's local state is
    /// enough if it knows of the entry: see [`line`](crate::line).
    pub(crate) async fn look(
        &self,
        session: &Session,
        (key, mode): (&LeaseKey, Mode),
        own: i64,
        by_itself: bool,
    ) -> Result<Turn> {
        let line = self.keys().line(&key.name);
        let how = self.in_front(&line, mode, Some(own));
        let read = match by_itself {
            true => session.get_by_itself(line.clone(), how).await?,
            false => session.get(line.clone(), how).await?,
        };
        self.turn_in(&line, mode, own, &read, revision!(read))
    }

    /// Makes certain what came of a request that was sent: its entry is there, or never will be.
    pub(crate) async fn settle(&self, session: &Session, key: &LeaseKey) -> Result<Option<i64>> {
        let Some(request) = session.requests.get(key) else {
            return Ok(None);
        };
        let is_there = TxnOp::get(&*request.entry, Some(GetOptions::new().with_keys_only()));
        let answer = self.certain(session, &request, [is_there]).await?;
        if !answer.succeeded() {
            session.requests.forget(key);
            return Ok(None);
        }
        let read = read_in(&answer)?;
        let revision = read.kvs().first().map_or(0, KeyValue::create_revision);
        let found = State::InLine(revision);
        session.requests.change(key, |r| r.state = found);
        Ok(Some(revision))
    }

    /// If the entry is there does that, and ends this use of its number otherwise.
    async fn certain(
        &self,
        session: &Session,
        request: &Request,
        there: impl Into<Vec<TxnOp>>,
    ) -> Result<TxnResponse> {
        session.requests.change(&request.key, |r| r.unsure = true);
        let gone = self.keys().gone(session.lease, request.number);
        let put = PutOptions::new().with_lease(session.lease);
        let is_there = create(&request.entry, CompareOp::Greater, 0);
        let txn = Txn::new().when([is_there]).and_then(there);
        let txn = txn.or_else([TxnOp::put(gone, "", Some(put))]);
        let answer = session.write(txn).await?;
        // Whatever was sent was carried out, or is refused.
        session.requests.change(&request.key, |r| {
            r.unsure = request.unsure;
            r.over += i64::from(!answer.succeeded());
        });
        Ok(answer)
    }

    /// The same, and takes the entry out of the line. Whether it was granted, and in which revision it was
    /// made.
    pub(crate) async fn forbid(&self, session: &Session, request: &Request) -> Result<Option<(bool, i64)>> {
        let (line, entry) = (self.keys().line(&request.key.name), &*request.entry);
        let all = GetOptions::new().with_keys_only().with_range(behind(&line));
        let there = [TxnOp::get(&*line, Some(all)), TxnOp::delete(entry, None)];
        let answer = match self.certain(session, request, there).await {
            // Nothing can be put that forbids it. If it exists already no one waits for it any more.
            Err(e) if e.kind() == ErrorKind::LimitReached => {
                session.delete(entry).await?;
                return Err(e);
            }
            answer => answer?,
        };
        if !answer.succeeded() {
            return Ok(None);
        }
        let line = line_of(read_in(&answer)?.kvs(), line.len())?;
        let Some(i) = line.entries.iter().position(|e| e.key == entry.as_bytes()) else {
            return Ok(None);
        };
        Ok(Some((line.place(i) == Place::Admitted, line.entries[i].revision)))
    }
}
