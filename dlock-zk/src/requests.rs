//! The requests in a session, and one call at a time for each.
//!
//! A request is in one of these states:
//!
//! ```text
//!            sent           answered, or found         handed out
//!  not noted ----> noted ---------------------> in line ----------> granted
//!      ^             |                             |                   |
//!      |             |   nothing came of it        |  a deletion       |
//!      |<------------+                             v  was sent         v
//!      |<-------------- answered ---------------- leaving <------------+
//! ```
//!
//! It is *noted* before anything is sent, so whatever comes of it is looked for. A request *in line* has a
//! node: the queue tells waiters from holders, and it is *granted* once its hold was reported. A *leaving*
//! request is never granted again. A request that was [force-released](crate::force_release) is forgotten.
//!
//! Each step to the right takes several exchanges with the server. Two calls that did so for one request
//! would each find nothing and each make a node. So an attempt, a release, an abandon and a conversion each
//! take the request as [`InCall`] until their future ends or is dropped. Another call for the same request
//! gets `Unknown` at once: it has sent nothing, and is repeated. It does not wait, since an unpolled future
//! does not end.
//!
//! What could happen between two calls, and why no node is left without an owner:
//!
//! * *A request is repeated during the first call*, as a quorum does: `Unknown`. When the first has ended or
//!   was dropped, the next finds its result.
//! * *It is abandoned during a call.* First its tombstone is made; then the abandon gets `Unknown`, and is
//!   repeated. The attempt checks the tombstone after it was noted, and before each node that it makes. An
//!   earlier node is noted, and the next abandon ends it. The same if it is not noted yet.
//! * *A call is dropped, at any poll.* Its requests are carried out before all later ones of that session.
//!   The next call looks behind a `sync`, see [`join`](crate::join).
//! * *A call is neither polled nor dropped.* Only other calls for that request get `Unknown`, as long as that
//!   lasts or the session does.
//! * *A deletion was not answered, and the lock is requested again.* The request is leaving: that is
//!   completed first.
//! * *It is force-released, or deleted with `zkCli`, during a call.* Then it is forgotten under the call,
//!   which notes its node again and ends it before it makes another.
//! * *A waiter or a renewal grants it meanwhile.* They neither make nor delete a node in the queue. Granting
//!   and leaving are decided under one mutex.
//! * *The session ends.* Calls belong to one session, as nodes do.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_core::spi::{Acquire, LeaseKey};
use dlock_core::{Error, ErrorKind, Mode, RequestId, Result, Token};
use zookeeper_client::Error as Zk;

use crate::failure::invalid;
use crate::failure::told;

/// What was asked for and may have a node.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) key: LeaseKey,
    /// As it was asked for.
    pub(crate) mode: Mode,
    /// Not known until its creation has been answered, or it has been found.
    pub(crate) node: Option<Node>,
    /// It was handed out.
    pub(crate) granted: bool,
    /// The mode that it has now, if that is another one.
    pub(crate) converted: Option<Mode>,
    /// The mode of which there may be a marker beside its node.
    pub(crate) marked: Option<Mode>,
    /// A deletion was sent: it is never granted again.
    pub(crate) leaving: bool,
    /// Locks were ended by force while its creation was unanswered, and it may have been among them.
    doubted: bool,
}

/// A node of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    pub(crate) czxid: i64,
}

impl Node {
    pub(crate) fn token(&self) -> Option<Token> {
        u64::try_from(self.czxid).ok().and_then(Token::new)
    }
}

/// The requests of one session.
#[derive(Debug)]
pub(crate) struct Requests {
    table: Mutex<Table>,
    /// For messages.
    at: Arc<str>,
}

#[derive(Debug, Default)]
struct Table {
    noted: HashMap<RequestId, Request>,
    in_call: HashSet<RequestId>,
    /// Nothing is asked for any more, and nothing is handed out.
    over: bool,
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
    pub(crate) fn new(at: Arc<str>) -> Self {
        Self {
            table: Mutex::default(),
            at,
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Whether it is noted, or a call has it that may be about to note it.
    pub(crate) fn knows(&self, key: &LeaseKey) -> bool {
        let table = self.table();
        table.in_call.contains(&key.id) || table.get(key).is_some()
    }

    pub(crate) fn get(&self, key: &LeaseKey) -> Option<Request> {
        self.table().get(key).cloned()
    }

    /// Notes a request before it is sent.
    ///
    /// # Errors
    /// `InvalidInput` if one with that id asked for something else; `Unavailable` if the session is over.
    pub(crate) fn note(&self, request: &Acquire) -> Result<()> {
        let mut table = self.table();
        if table.over {
            return Err(told(Zk::SessionExpired, ErrorKind::Unavailable, &self.at));
        }
        table.note(request).map(drop)
    }

    /// Notes the node of a request in a call, also if it was forgotten since: the node belongs to somebody.
    ///
    /// # Errors
    /// `InvalidInput` as [`note`](Self::note).
    pub(crate) fn keep(&self, request: &Acquire, node: &Node) -> Result<Request> {
        let mut table = self.table();
        let noted = table.note(request)?;
        noted.node.get_or_insert_with(|| node.clone());
        Ok(noted.clone())
    }

    pub(crate) fn change(&self, key: &LeaseKey, change: impl FnOnce(&mut Request)) {
        if let Some(request) = self.table().noted.get_mut(&key.id) {
            change(request);
        }
    }

    pub(crate) fn forget(&self, key: &LeaseKey) {
        self.table().noted.remove(&key.id);
    }

    /// Forgets a request, unless it is about another node by now.
    pub(crate) fn forget_node(&self, seen: &Request) -> Option<Request> {
        let mut table = self.table();
        let same = table.get(&seen.key).is_some_and(|r| r.node == seen.node);
        if same {
            table.noted.remove(&seen.key.id)
        } else {
            None
        }
    }

    /// All that have a node. Of the others, those that `may_be` concerned have to read the line anew once
    /// they have one. The look and the note are one step.
    pub(crate) fn with_nodes(&self, may_be: impl Fn(&Request) -> bool) -> Vec<Request> {
        let mut table = self.table();
        for request in table.noted.values_mut() {
            request.doubted |= request.node.is_none() && may_be(request);
        }
        let all = table.noted.values();
        all.filter(|r| r.node.is_some()).cloned().collect()
    }

    /// Whether earlier reads are out of date. The caller reads again.
    pub(crate) fn is_doubted(&self, key: &LeaseKey) -> bool {
        let mut table = self.table();
        let doubted = table.noted.get_mut(&key.id).map(|r| &mut r.doubted);
        doubted.is_some_and(std::mem::take)
    }

    /// Notes that it is handed out with that node. `false` if it has ended since its node was seen in the
    /// line: its deletion was sent, it was ended by force, or with the session. Look and note are one step: a
    /// later end finds that it was handed out.
    pub(crate) fn hand_out(&self, key: &LeaseKey, node: &Node) -> bool {
        let mut table = self.table();
        if table.over {
            return false;
        }
        let Some(request) = table.noted.get_mut(&key.id) else {
            return false;
        };
        let is_same = request.key == *key && request.node.as_ref().is_some_and(|n| n.name == node.name);
        let stands = is_same && !request.leaving;
        request.granted |= stands;
        stands
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

impl Table {
    fn get(&self, key: &LeaseKey) -> Option<&Request> {
        self.noted.get(&key.id).filter(|r| r.key == *key)
    }

    fn note(&mut self, request: &Acquire) -> Result<&mut Request> {
        let (key, mode) = (&request.key, request.mode);
        let noted = self.noted.entry(key.id).or_insert_with(|| Request {
            key: key.clone(),
            mode,
            node: None,
            granted: false,
            converted: None,
            marked: None,
            leaving: false,
            doubted: false,
        });
        match noted.key == *key && noted.mode == mode {
            true => Ok(noted),
            false => Err(invalid("this request's id was used for a different request")),
        }
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::LockName;

    use super::*;

    #[test]
    fn one_call_has_a_request_until_it_is_dropped() {
        let key = |n| LeaseKey::new(LockName::new("x").unwrap(), RequestId::new(1, n));
        let requests = Arc::new(Requests::new("h".into()));
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
    fn what_has_ended_or_is_another_one_is_not_handed_out() {
        let key = |name| LeaseKey::new(LockName::new(name).unwrap(), RequestId::new(1, 1));
        let asked = |name| Acquire::new(key(name), std::time::Duration::from_secs(1));
        let node = |name: &str| Node {
            name: name.into(),
            czxid: 7,
        };
        let (x, y, first, second) = (key("x"), key("y"), node("1"), node("2"));
        let requests = Requests::new("h".into());
        requests.note(&asked("x")).unwrap();
        assert!(!requests.shut_if_idle() && !requests.hand_out(&x, &first));
        // While its node is not known, and once.
        assert!(requests.with_nodes(|_| true).is_empty());
        assert!(requests.is_doubted(&x) && !requests.is_doubted(&x));
        requests.keep(&asked("x"), &first).unwrap();
        assert!(requests.with_nodes(|_| true).len() == 1 && !requests.is_doubted(&x));
        // Of another node, another name or another mode.
        assert!(!requests.hand_out(&x, &second) && !requests.hand_out(&y, &first));
        assert!(!requests.get(&x).unwrap().granted && requests.get(&y).is_none());
        assert!(requests.note(&asked("y")).is_err());
        assert!(requests.note(&asked("x").with_mode(Mode::READER)).is_err());
        assert!(requests.hand_out(&x, &first) && requests.get(&x).unwrap().granted);
        let seen = requests.get(&x).unwrap();
        requests.change(&x, |r| (r.leaving, r.node) = (true, Some(second.clone())));
        assert!(!requests.hand_out(&x, &second) && requests.forget_node(&seen).is_none());
        requests.forget(&x);
        requests.keep(&asked("x"), &first).unwrap();
        assert!(requests.forget_node(&seen).is_some() && requests.get(&x).is_none());
        assert!(requests.shut_if_idle() && requests.note(&asked("x")).is_err());
    }
}
