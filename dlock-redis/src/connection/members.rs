//! The members of a quorum, each on a server of its own.
//!
//! Two addresses may lead to one server (a name and a number, two interfaces, two databases of it), which
//! would have two votes. So each member looks at the server's run id whenever it connects, and is refused
//! where another one has been before. What could go wrong, and why it does no harm:
//!
//! * *The server was away when the members were opened.* They are compared when they connect.
//! * *It is restarted.* Then it has another run id, and of the two whichever connects first has it. Who was
//!   there before has lost its connection, and is refused when it comes back; while it has not noticed, it
//!   asks nobody.
//! * *Both connect at once.* The list is under a lock, and one is first.
//! * *It does not tell*, since the user may not ask for `INFO`: then nothing is compared.
//! * *One of them is closed, or dropped.* Its server stays in the list: the members of a quorum end together.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dlock_core::ErrorKind;

use crate::failure::Cause;

/// The servers of one quorum, so that no two members use the same one: see
/// [`Config::member_of`](crate::Config::member_of). Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Members(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    members: AtomicU64,
    /// Which server each was connected to last.
    runs: Mutex<HashMap<u64, Arc<str>>>,
}

/// One of them.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    all: Members,
    number: u64,
}

impl Members {
    /// One more.
    pub(crate) fn member(&self) -> Member {
        let number = self.0.members.fetch_add(1, Ordering::Relaxed);
        let all = self.clone();
        Member { all, number }
    }
}

impl Member {
    /// It has come to that server.
    ///
    /// # Errors
    /// If another one is there.
    pub(crate) fn comes_to(&self, run: &str) -> Result<(), Cause> {
        let mut runs = self.all.0.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.iter().any(|(n, other)| *n != self.number && **other == *run) {
            let what = "is the same server as another member's, and has one vote in a quorum: name as many \
                servers as there are members";
            return Err(Cause::Refused(ErrorKind::InvalidInput, what.into()));
        }
        runs.insert(self.number, run.into());
        Ok(())
    }
}
