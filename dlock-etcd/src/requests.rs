//! The requests on a lease, and one call at a time for each.
//!
//! ```text
//!            sent           answered, or found
//!  not noted ----> sent ----------------------> in line, handed out or not
//!      ^            |                              |
//!      |            |  nothing came of it          |  a deletion was sent
//!      |<-----------+                              v
//!      |<------------- answered --------------- leaving
//! ```
//!
//! A request is noted as *sent* before anything is, so whatever comes of it is looked for. Etcd does not
//! order messages: an unanswered one may be carried out much later, after a new connection was made. So the
//! next call first makes it certain: the entry exists, or never will, since this use of its number is over
//! (`gone` in [`keys`](crate::keys)) for the life of its lease.
//!
//! An attempt, a release, an abandon and a conversion each take the request as [`InCall`] until their future
//! ends or is dropped. Another call for the same request gets `Unknown` at once: it has sent nothing, and is
//! repeated. It does not wait, since an unpolled future does not end.
//!
//! What could happen between two calls, and why no entry is left without an owner:
//!
//! * *It is abandoned during a call.* First its tombstone is made in memory; then the abandon gets `Unknown`,
//!   and is repeated. The attempt checks the tombstone after it has taken the request. An entry that it made
//!   before is noted, and the next abandon ends it.
//! * *A call is dropped, at any poll.* It is noted as sent or as leaving.
//! * *A waiter or a renewal grants it meanwhile.* They neither make nor delete an entry. Granting and leaving
//!   are decided under one mutex.
//! * *A renewal finds that the entry was removed.* It forgets the request only if no call has it, in one
//!   step: so the number is not free while a deletion may be sent.
//! * *The lease ends.* The entries go with it, and so does all that forbids them; nothing can be put on it
//!   any more.
//!
//! # Names of entries
//!
//! The name of an entry has a number that is free on the lease. It is free again when the entry has gone and
//! each message with its name was answered or will be refused: an entry is put only if the version of the
//! number's `gone` is not above what it was when the number was taken. Otherwise the number is never used
//! again, so that a late message finds no entry. With a new name for each request a queue would become slower
//! with each: the index of etcd goes through all names since the last compaction.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_core::spi::LeaseKey;
use dlock_core::{Error, ErrorKind, Mode, RequestId, Result};

use crate::failure::invalid;

/// What was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) key: LeaseKey,
    /// As it was asked for.
    pub(crate) mode: Mode,
    /// The key of its entry.
    pub(crate) entry: Arc<str>,
    /// The number in its name.
    pub(crate) number: u32,
    /// How many uses of that number were ended: the version of its `gone`.
    pub(crate) over: i64,
    pub(crate) state: State,
    /// A message about its entry was not answered, and may be carried out yet.
    pub(crate) unsure: bool,
    /// It was handed out.
    pub(crate) granted: bool,
    /// It is a reader now.
    pub(crate) converted: bool,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its entry may be there, or may come.
    Sent,
    /// Its entry is there, made in that revision.
    InLine(i64),
    /// The same, and a deletion was sent: it is never granted again.
    Leaving(i64),
}

/// The requests on one lease.
#[derive(Debug, Default)]
pub(crate) struct Requests(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    noted: BTreeMap<RequestId, Request>,
    in_call: BTreeSet<RequestId>,
    /// Numbers that were in use, with how many uses were ended, and from which on none was.
    free: BTreeMap<u32, i64>,
    unused: u32,
    /// Nothing is asked for any more, and nothing is handed out.
    over: bool,
}

impl Table {
    fn forget(&mut self, key: &LeaseKey) {
        if let Some(request) = self.noted.remove(&key.id).filter(|r| !r.unsure) {
            self.free.insert(request.number, request.over);
        }
    }
}

/// A call has that request, until this is dropped.
#[derive(Debug)]
pub(crate) struct InCall {
    requests: Arc<Requests>,
    id: RequestId,
}

impl Drop for InCall {
    fn drop(&mut self) {
        self.requests.table().in_call.remove(&self.id);
    }
}

impl Requests {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes that request for a call.
    ///
    /// # Errors
    /// `Unknown` if another call has it.
    pub(crate) fn call(self: &Arc<Self>, key: &LeaseKey) -> Result<InCall> {
        match self.table().in_call.insert(key.id) {
            true => Ok(InCall {
                requests: self.clone(),
                id: key.id,
            }),
            false => Err(Error::new(
                ErrorKind::Unknown,
                "another call for the same request is in flight, and its outcome is not known yet: try again",
            )),
        }
    }

    /// Whether it is noted, or a call has it that may be about to send it.
    pub(crate) fn knows(&self, key: &LeaseKey) -> bool {
        let table = self.table();
        table.in_call.contains(&key.id) || table.noted.contains_key(&key.id)
    }

    pub(crate) fn get(&self, key: &LeaseKey) -> Option<Request> {
        let table = self.table();
        table.noted.get(&key.id).filter(|r| r.key == *key).cloned()
    }

    /// How a request stands; `None` if nothing of it is in the store.
    ///
    /// # Errors
    /// `InvalidInput` if one with that id asked for something else.
    pub(crate) fn state(&self, key: &LeaseKey, mode: Mode) -> Result<Option<State>> {
        let table = self.table();
        let Some(noted) = table.noted.get(&key.id) else {
            return Ok(None);
        };
        match noted.key == *key && noted.mode == mode {
            true => Ok(Some(noted.state)),
            false => Err(invalid("this request's id was used for a different request")),
        }
    }

    /// Notes that a request is sent. `entry` makes the key of its entry from its number.
    ///
    /// # Errors
    /// `Unavailable` if the lease is over.
    pub(crate) fn send(
        &self,
        key: &LeaseKey,
        mode: Mode,
        entry: impl FnOnce(u32) -> String,
    ) -> Result<Request> {
        let mut table = self.table();
        if table.over {
            let message = "the lease of this client in etcd has ended; another one is being made";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let (number, over) = table.free.pop_first().unwrap_or_else(|| {
            table.unused += 1;
            (table.unused - 1, 0)
        });
        let request = Request {
            key: key.clone(),
            mode,
            entry: entry(number).into(),
            number,
            over,
            state: State::Sent,
            unsure: false,
            granted: false,
            converted: false,
        };
        table.noted.insert(key.id, request.clone());
        Ok(request)
    }

    pub(crate) fn change<T>(&self, key: &LeaseKey, change: impl FnOnce(&mut Request) -> T) -> Option<T> {
        self.table().noted.get_mut(&key.id).map(change)
    }

    /// Nothing of it is in the store.
    pub(crate) fn forget(&self, key: &LeaseKey) {
        self.table().forget(key);
    }

    /// The entry that was made in that revision was deleted by another. A call that has the request finds out
    /// on its own: its deletion may be in flight.
    pub(crate) fn removed(&self, key: &LeaseKey, revision: i64) {
        let mut table = self.table();
        let noted = table.noted.get(&key.id);
        if !table.in_call.contains(&key.id) && noted.is_some_and(|r| r.state == State::InLine(revision)) {
            table.forget(key);
        }
    }

    /// Notes that it is handed out. `false` if it has ended since its entry was seen in the line: its
    /// deletion was sent, or the lease is over. Look and note are one step: a later end finds that it was
    /// handed out.
    pub(crate) fn hand_out(&self, key: &LeaseKey, revision: i64) -> bool {
        let mut table = self.table();
        if table.over {
            return false;
        }
        let noted = table.noted.get_mut(&key.id);
        let Some(request) = noted.filter(|r| r.key == *key && r.state == State::InLine(revision)) else {
            return false;
        };
        request.granted = true;
        true
    }

    /// Nothing is asked for or handed out from here on.
    pub(crate) fn shut(&self) {
        self.table().over = true;
    }

    /// The same, if nothing is asked for or held now. Whether nothing is.
    pub(crate) fn shut_if_idle(&self) -> bool {
        let mut table = self.table();
        table.over |= table.noted.is_empty();
        table.noted.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::LockName;

    use super::*;

    fn key(n: u64) -> LeaseKey {
        LeaseKey::new(LockName::new("x").unwrap(), RequestId::new(1, n))
    }

    fn send(requests: &Requests, n: u64) -> Result<Request> {
        requests.send(&key(n), Mode::Exclusive, |number| number.to_string())
    }

    #[test]
    fn one_call_has_a_request_until_it_is_dropped() {
        let requests = Arc::new(Requests::default());
        let first = requests.call(&key(1)).unwrap();
        let second = requests.call(&key(1)).unwrap_err();
        assert!(second.may_be_held(), "{second}");
        drop(requests.call(&key(2)).unwrap());
        assert!(requests.knows(&key(1)) && !requests.knows(&key(2)));
        drop(first);
        drop(requests.call(&key(1)).unwrap());
        assert!(!requests.knows(&key(1)));
    }

    #[test]
    fn what_is_leaving_or_over_is_not_handed_out() {
        let requests = Requests::default();
        let at = |state| requests.change(&key(1), |r| r.state = state);
        send(&requests, 1).unwrap();
        assert!(!requests.hand_out(&key(1), 7));
        at(State::InLine(7));
        assert!(requests.hand_out(&key(1), 7) && !requests.hand_out(&key(1), 8));
        at(State::Leaving(7));
        assert!(!requests.hand_out(&key(1), 7));
        at(State::InLine(7));
        assert!(!requests.shut_if_idle());
        requests.shut();
        assert!(!requests.hand_out(&key(1), 7) && send(&requests, 2).is_err());
    }

    #[test]
    fn a_number_that_may_be_met_late_is_not_used_again() {
        let requests = Requests::default();
        let sent = |n| send(&requests, n).unwrap().number;
        assert_eq!((sent(1), sent(2)), (0, 1));
        assert!(requests.state(&key(1), Mode::READER).is_err());
        requests.forget(&key(1));
        assert_eq!(requests.state(&key(1), Mode::Exclusive).unwrap(), None);
        assert_eq!((sent(1), sent(3)), (0, 2));
        requests.change(&key(1), |r| r.unsure = true);
        requests.forget(&key(1));
        requests.forget(&key(2));
        assert_eq!((sent(1), sent(2)), (1, 3));
    }

    #[test]
    fn what_a_call_has_is_not_forgotten_by_a_renewal() {
        let requests = Arc::new(Requests::default());
        send(&requests, 1).unwrap();
        requests.change(&key(1), |r| r.state = State::InLine(7));
        let call = requests.call(&key(1)).unwrap();
        requests.removed(&key(1), 7);
        assert!(requests.get(&key(1)).is_some());
        drop(call);
        requests.removed(&key(1), 6);
        assert!(requests.get(&key(1)).is_some());
        requests.removed(&key(1), 7);
        assert!(requests.get(&key(1)).is_none());
    }
}
