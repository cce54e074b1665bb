//! One call at a time has a request in hand.
//!
//! A request is in one of these states, as its [session](crate::session::Session) notes it:
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
//! *Noted* it is before anything is sent, so whatever comes of it is looked for. *In line* is one with a node: who waits and who holds are told apart by the line, and it is granted
//! when that was told to somebody. One that is *leaving* is never granted again. What an operator ended is not noted any more, from whichever state: see [`forced`](crate::forced).
//!
//! Each step to the right makes a node, or finds one, by more requests than one: the line is looked at, made, and entered. Two calls that do so for one request would each find nothing, and make a node
//! each; the table has room for one. So whoever makes nodes of a request or deletes them, an attempt, a release, an abandon, a conversion, has it *in hand* until its future has ended or is dropped, and
//! another call of the same request is told [`Unknown`](ErrorKind::Unknown) at once: it has sent nothing, and comes again. Waiting for the other one would be no better, since a future that
//! nobody polls does not end.
//!
//! What could happen between two calls, and why no node is left that nobody owns:
//!
//! * *A request is sent again while the first one lingers*, as a quorum does. The second is told `Unknown`. When the first has ended or was dropped, a third finds what came of it.
//! * *It is abandoned while it lingers.* First there is its tombstone; then the abandon is told `Unknown`, and whoever sent it does so again. The attempt looks at the tombstone after it was
//!   noted, and before each node that it makes once more; what it made before that is noted, and the next abandon ends it.
//! * *An abandon comes when the request is in hand, and not noted*: one that goes back to the beginning. As before, it is told `Unknown`; the attempt meets the tombstone when it is noted again.
//! * *It is dropped, at any poll.* With its future goes the hand. What it had sent is done before whatever is sent later in that session, and not after: who has it in hand next looks behind a `sync`, see
//!   [`enter`](crate::enter).
//! * *It is neither polled nor dropped.* Then all other calls of that request are told `Unknown` for as long as that lasts, or as the session does. Other requests are not touched by it.
//! * *A deletion was sent and not answered, and it is asked for again.* It is leaving: that is ended before it is noted anew.
//! * *Somebody ends it by force, or with `zkCli`, while it is in hand.* Then it is forgotten under the hand. What its call has in hand is noted again and ended before anything is made anew.
//! * *A waiter or a renewal grants it meanwhile.* They neither make nor delete a node in the line. To be granted and to be leaving are decided under one mutex, and so is who takes the lock by
//!   [`priority`](crate::priority), which is done on condition that the node in the line is there.
//! * *The session ends.* Hands are of one session, as nodes are. What is asked in the next one has nothing to do with them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_core::spi::LeaseKey;
use dlock_core::{Error, ErrorKind, RequestId, Result};

/// The requests of a session that calls have in hand.
#[derive(Debug, Default)]
pub(crate) struct Hands(Mutex<HashSet<RequestId>>);

/// That a call has it in hand, until this is dropped.
#[derive(Debug)]
pub(crate) struct InHand {
    hands: Arc<Hands>,
    id: RequestId,
}

impl Hands {
    fn all(&self) -> MutexGuard<'_, HashSet<RequestId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes that request in hand.
    ///
    /// # Errors
    /// `Unknown` if another call has it.
    pub(crate) fn take(self: &Arc<Self>, key: &LeaseKey) -> Result<InHand> {
        match self.all().insert(key.id) {
            true => Ok(InHand {
                hands: self.clone(),
                id: key.id,
            }),
            false => Err(Error::new(
                ErrorKind::Unknown,
                "another call of the same request is on its way, and what comes of it is not known yet: ask again",
            )),
        }
    }

    pub(crate) fn has(&self, key: &LeaseKey) -> bool {
        self.all().contains(&key.id)
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        self.hands.all().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::LockName;

    use super::*;

    #[test]
    fn one_has_it_until_that_is_dropped_and_others_have_others() {
        let key = |n| LeaseKey::new(LockName::new("x").unwrap(), RequestId::new(1, n));
        let hands = Arc::new(Hands::default());
        let first = hands.take(&key(1)).unwrap();
        let second = hands.take(&key(1)).unwrap_err();
        assert!(second.may_be_held(), "{second}");
        drop(hands.take(&key(2)).unwrap());
        assert!(hands.has(&key(1)) && !hands.has(&key(2)));
        drop(first);
        drop(hands.take(&key(1)).unwrap());
        assert!(!hands.has(&key(1)));
    }
}
