//! Joining a line and leaving it.
//!
//! To join, one transaction puts the entry and reads what is in front of it. To leave, the entry is deleted
//! by its name, which is put once.
//!
//! A request that does not wait leaves nothing behind where it is not granted. So it puts its entry on
//! condition that nothing was added to the line, or changed in it, since it was seen to have room: for an
//! exclusive one, that the line is empty.
//!
//! What could break it, and why it does not:
//!
//! * *The answer is lost.* The request is noted as sent before it is. Whoever comes next asks for the entry
//!   and, in the same transaction, forbids it if it is not there: see [`requests`](crate::requests).
//! * *Two calls of one request come at a time.* The second is sent away.
//! * *The lease ended meanwhile.* The put is refused, since it names the lease.
//! * *Somebody removes the entry.* A look finds that it is gone, and it is made anew, at the end of the line.

use dlock_core::spi::{Acquire, LeaseKey, Place, Queueing};
use dlock_core::{Error, ErrorKind, LossReason, Mode, Result};
use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};

use crate::keys::behind;
use crate::line::{Entry, Line, line_of};
use crate::link::revision;
use crate::lock::EtcdLock;
use crate::requests::{Request, State};
use crate::session::Session;

/// How often others may be quicker to join.
const TRIES: usize = 16;

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
    /// Keys of which one at least has to go, or to change.
    pub(crate) watch: Vec<Vec<u8>>,
    /// The revision that showed it.
    pub(crate) at: i64,
}

fn create(key: &str, op: CompareOp, revision: i64) -> Compare {
    Compare::create_revision(key, op, revision)
}

/// What a transaction read with its operation number `n`.
fn got(answer: &TxnResponse, n: usize) -> Option<etcd_client::GetResponse> {
    match answer.op_responses().into_iter().nth(n)? {
        TxnOpResponse::Get(got) => Some(got),
        _ => None,
    }
}

impl EtcdLock {
    /// How the line is read to know the turn of a request that is in it since that revision, or is to join.
    ///
    /// An exclusive one needs no more than the entry in front of it. What the name of an entry tells is
    /// enough, without its value.
    fn in_front(&self, mode: Mode, since: Option<i64>) -> GetOptions {
        let all = GetOptions::new().with_keys_only();
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

    fn get_line(&self, key: &LeaseKey, how: GetOptions) -> TxnOp {
        let line = self.keys().line(&key.name);
        let end = behind(&line);
        TxnOp::get(line, Some(how.with_range(end)))
    }

    pub(crate) fn entry(&self, request: &Request) -> String {
        self.keys()
            .entry(&request.key.name, request.key.id, request.tries, request.mode)
    }

    /// The turn of the entry that was made in that revision, as the line shows that was read
    /// [`in_front`](Self::in_front).
    fn turn_in(
        &self,
        key: &LeaseKey,
        mode: Mode,
        own: i64,
        got: &etcd_client::GetResponse,
        at: i64,
    ) -> Result<Turn> {
        let line = self.line(key, got)?;
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
        Behind {
            ahead,
            watch: line.entries[watch]
                .iter()
                .map(|e: &Entry| e.key.clone())
                .collect(),
            at,
        }
    }

    pub(crate) fn line(&self, key: &LeaseKey, got: &etcd_client::GetResponse) -> Result<Line> {
        line_of(got.kvs(), self.keys().line(&key.name).len())
    }

    /// Makes the entry of a request, if it waits or is admitted.
    pub(crate) async fn enter(&self, session: &Session, request: &Acquire) -> Result<Entered> {
        match request.queue {
            Queueing::Join => self.join(session, request).await,
            _ => self.take(session, request).await,
        }
    }

    /// Sends a transaction that puts the entry, if `when` holds and it was not forbidden.
    async fn put(
        &self,
        session: &Session,
        request: &Acquire,
        when: Vec<Compare>,
        read: GetOptions,
    ) -> Result<TxnResponse> {
        let key = &request.key;
        let sent = session.requests.send(key, request.mode)?;
        let entry = self.entry(&sent);
        let gone = self.keys().gone(key.id, sent.tries, request.mode);
        let mut all = vec![create(&gone, CompareOp::Equal, 0)];
        all.extend(when);
        let value = request.owner.as_deref().unwrap_or_default();
        let put = PutOptions::new().with_lease(session.lease);
        let count = GetOptions::new().with_count_only();
        let txn = Txn::new()
            .when(all)
            .and_then([
                TxnOp::put(entry.clone(), value, Some(put)),
                self.get_line(key, read.clone()),
            ])
            .or_else([TxnOp::get(gone, Some(count)), self.get_line(key, read)]);
        let answer = match session.write(txn).await {
            // The write that exceeds the quota is carried out before it is refused.
            Err(e) if e.kind() == ErrorKind::LimitReached => {
                session.requests.change(key, |r| r.state = State::Leaving(0));
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
        if answer.succeeded() {
            let made = State::InLine(revision!(answer));
            session.requests.change(key, |r| r.state = made);
            return Ok(answer);
        }
        session.requests.forget(key);
        match got(&answer, 0).is_some_and(|gone| gone.count() > 0) {
            // It was abandoned by somebody who did not know what came of it.
            true => Err(Error::lost(LossReason::Refused)),
            false => Ok(answer),
        }
    }

    async fn join(&self, session: &Session, request: &Acquire) -> Result<Entered> {
        let (key, mode) = (&request.key, request.mode);
        let answer = self
            .put(session, request, Vec::new(), self.in_front(mode, None))
            .await?;
        let own = revision!(answer);
        let turn = match got(&answer, 1) {
            Some(got) => self.turn_in(key, mode, own, &got, own),
            None => Err(no_answer()),
        };
        Ok(Entered::InLine(own, turn))
    }

    async fn take(&self, session: &Session, request: &Acquire) -> Result<Entered> {
        let (key, mode) = (&request.key, request.mode);
        let line = self.keys().line(&key.name);
        let how = || self.in_front(mode, None);
        // The revision in which there was room. An empty line has it for anyone.
        let mut seen = 0;
        if !mode.is_exclusive() {
            let read = session.get(line.clone(), how().with_range(behind(&line))).await?;
            seen = revision!(read);
            if let Some(behind) = self.at_end(key, mode, &read, seen)? {
                return Ok(Entered::Held(behind));
            }
        }
        for _ in 0..TRIES {
            // Nothing was put there since: of an empty line all that is compared is zero.
            let unchanged =
                Compare::mod_revision(line.clone(), CompareOp::Less, seen + 1).with_range(behind(&line));
            let answer = self.put(session, request, vec![unchanged], how()).await?;
            if answer.succeeded() {
                return Ok(Entered::InLine(revision!(answer), Ok(Turn::Admitted)));
            }
            let got = got(&answer, 1).ok_or_else(no_answer)?;
            seen = revision!(answer);
            if let Some(behind) = self.at_end(key, mode, &got, seen)? {
                return Ok(Entered::Held(behind));
            }
        }
        let message = "others joined the line of the lock again and again, just before this request";
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// What a request that came last would wait for, in the line as it was in that revision. `None`: it
    /// would be admitted.
    fn at_end(
        &self,
        key: &LeaseKey,
        mode: Mode,
        got: &etcd_client::GetResponse,
        at: i64,
    ) -> Result<Option<Behind>> {
        let line = self.line(key, got)?;
        match line.place_at_end(mode) {
            Place::Admitted => Ok(None),
            Place::Behind { ahead, watch } => Ok(Some(self.behind(&line, Some(ahead), watch, at))),
            Place::Mismatch(other) => Err(other.mismatch(mode)),
        }
    }

    /// Looks for the turn of an entry that is in the line since that revision. What a member knows by itself
    /// will do where it knows of the entry: see [`line`](crate::line).
    pub(crate) async fn look(
        &self,
        session: &Session,
        (key, mode): (&LeaseKey, Mode),
        own: i64,
        by_itself: bool,
    ) -> Result<Turn> {
        let line = self.keys().line(&key.name);
        let how = self.in_front(mode, Some(own)).with_range(behind(&line));
        let read = match by_itself {
            true => session.get_by_itself(line, how).await?,
            false => session.get(line, how).await?,
        };
        self.turn_in(key, mode, own, &read, revision!(read))
    }

    /// Makes certain what came of a request that was sent: its entry is there, or never will be.
    pub(crate) async fn settle(&self, session: &Session, key: &LeaseKey) -> Result<Option<i64>> {
        let Some(request) = session.requests.get(key) else {
            return Ok(None);
        };
        let entry = self.entry(&request);
        let is_there = GetOptions::new().with_keys_only();
        let txn = self.certain(session, &request, [TxnOp::get(entry, Some(is_there))]);
        let answer = session.write(txn).await?;
        if !answer.succeeded() {
            session.requests.give_up(key);
            return Ok(None);
        }
        let found = got(&answer, 0).and_then(|got| got.kvs().first().map(|kv| kv.create_revision()));
        let revision = found.ok_or_else(no_answer)?;
        session
            .requests
            .change(key, |r| r.state = State::InLine(revision));
        Ok(Some(revision))
    }

    /// That the entry is there, and on this lease. Another lease may have one of that name by when a copy of
    /// this transaction comes.
    fn is_ours(&self, session: &Session, request: &Request) -> Compare {
        Compare::lease(self.entry(request), CompareOp::Equal, session.lease)
    }

    /// If the entry is there does that, and forbids it otherwise.
    fn certain(&self, session: &Session, request: &Request, there: impl Into<Vec<TxnOp>>) -> Txn {
        let gone = self.keys().gone(request.key.id, request.tries, request.mode);
        let put = PutOptions::new().with_lease(session.lease);
        Txn::new()
            .when([self.is_ours(session, request)])
            .and_then(there)
            .or_else([TxnOp::put(gone, "", Some(put))])
    }

    /// The same, and takes the entry out of the line. Whether it was granted, and in which revision it was
    /// made.
    pub(crate) async fn forbid(&self, session: &Session, request: &Request) -> Result<Option<(bool, i64)>> {
        let key = &request.key;
        let entry = self.entry(request);
        let line = self.get_line(key, GetOptions::new().with_keys_only());
        let txn = self.certain(session, request, [line, TxnOp::delete(entry.clone(), None)]);
        let answer = session.write(txn).await?;
        if !answer.succeeded() {
            return Ok(None);
        }
        let line = self.line(key, &got(&answer, 0).ok_or_else(no_answer)?)?;
        let Some(i) = line.entries.iter().position(|e| e.key == entry.as_bytes()) else {
            return Ok(None);
        };
        Ok(Some((line.place(i) == Place::Admitted, line.entries[i].revision)))
    }

    /// Deletes the entry. Whether it was there.
    pub(crate) async fn delete_entry(&self, session: &Session, request: &Request) -> Result<bool> {
        let delete = TxnOp::delete(self.entry(request), Some(DeleteOptions::new()));
        let txn = Txn::new()
            .when([self.is_ours(session, request)])
            .and_then([delete]);
        let answer = session.write(txn).await?;
        Ok(match answer.op_responses().first() {
            Some(TxnOpResponse::Delete(deleted)) => deleted.deleted() > 0,
            _ => false,
        })
    }
}

fn no_answer() -> Error {
    Error::new(ErrorKind::BackendData, "etcd answered what is no answer")
}
