//! What was asked for in a session, by request and by lock.

use std::collections::HashMap;
use std::sync::Arc;

use dlock_core::spi::{Acquire, LeaseKey, RequestId};
use dlock_core::{LockName, Mode, Result};

use crate::address::invalid;
use crate::session::Node;

/// What was asked for in this session and may have a node in it.
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
    /// The mode of which there may be a mark beside its node.
    pub(crate) marked: Option<Mode>,
    /// A deletion was sent: it is never granted again.
    pub(crate) leaving: bool,
    /// Locks were ended by force while the answer to its creation was under way, and whether it was among them was not told.
    pub(crate) doubted: bool,
    /// It was tried to have the lock beside the line: see [`priority`](crate::priority). Never taken back: another try may be under way.
    pub(crate) taking: bool,
    /// The label that its holder gives itself.
    pub(crate) owner: Option<Arc<str>>,
}

/// All of a session.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    all: HashMap<RequestId, Request>,
    /// How many there are of each lock.
    of_lock: HashMap<LockName, usize>,
}

impl Requests {
    /// Notes a request; answers what was noted of it before.
    ///
    /// # Errors
    /// `InvalidInput` if one with that id asked for something else.
    pub(crate) fn note(&mut self, request: &Acquire) -> Result<&mut Request> {
        let (key, mode, owner) = (&request.key, request.mode, &request.owner);
        let noted = self.all.entry(key.id).or_insert_with(|| {
            *self.of_lock.entry(key.name.clone()).or_default() += 1;
            Request {
                key: key.clone(),
                mode,
                node: None,
                granted: false,
                converted: None,
                marked: None,
                leaving: false,
                doubted: false,
                taking: false,
                owner: owner.clone(),
            }
        });
        match noted.key == *key && noted.mode == mode {
            true => Ok(noted),
            false => Err(invalid("the id of this request was used for another one")),
        }
    }

    pub(crate) fn remove(&mut self, id: &RequestId) -> Option<Request> {
        let removed = self.all.remove(id)?;
        let name = &removed.key.name;
        match self.of_lock.get_mut(name) {
            Some(others) if *others > 1 => *others -= 1,
            _ => drop(self.of_lock.remove(name)),
        }
        Some(removed)
    }

    /// Whether another one is noted of the same lock.
    pub(crate) fn are_others(&self, key: &LeaseKey) -> bool {
        let all = self.of_lock.get(&key.name).copied().unwrap_or_default();
        let own = self.all.get(&key.id).is_some_and(|r| r.key == *key);
        all > usize::from(own)
    }

    pub(crate) fn get(&self, id: &RequestId) -> Option<&Request> {
        self.all.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: &RequestId) -> Option<&mut Request> {
        self.all.get_mut(id)
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = &Request> {
        self.all.values()
    }

    pub(crate) fn each_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        self.all.values_mut()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(name: &str, n: u64) -> Acquire {
        let name = LockName::new(name).unwrap();
        Acquire::new(
            LeaseKey::new(name, RequestId::new(1, n)),
            std::time::Duration::from_secs(1),
        )
    }

    #[test]
    fn others_are_those_of_the_same_lock() {
        let mut requests = Requests::default();
        let (a, b, else_where) = (asked("x", 1), asked("x", 2), asked("y", 3));
        requests.note(&a).unwrap();
        requests.note(&a).unwrap();
        requests.note(&else_where).unwrap();
        assert!(!requests.are_others(&a.key), "it was noted twice, and is one");
        assert!(requests.are_others(&b.key), "it is none itself yet");
        requests.note(&b).unwrap();
        assert!(requests.are_others(&a.key) && requests.are_others(&b.key));
        assert!(!requests.are_others(&else_where.key));
        requests.remove(&a.key.id);
        assert!(requests.remove(&a.key.id).is_none());
        assert!(!requests.are_others(&b.key));
        requests.remove(&b.key.id);
        requests.remove(&else_where.key.id);
        assert!(requests.is_empty() && requests.of_lock.is_empty());
    }

    #[test]
    fn an_id_is_of_one_lock() {
        let mut requests = Requests::default();
        requests.note(&asked("x", 1)).unwrap();
        requests.note(&asked("y", 1)).unwrap_err();
        assert!(!requests.are_others(&asked("y", 1).key), "that was not noted");
    }
}
