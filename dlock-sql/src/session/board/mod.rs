//! What one client has and wants, by the keys that the server knows: a state machine without I/O.
//!
//! ```text
//!              asked for, and nobody of this client is there
//!   (nothing) ------------------------------------------------> trying ----> holder
//!       |                                                          | somebody else has it
//!       | somebody of this client is there                         v
//!       +--------------------------------> in line <---------- (nothing)
//!                                             | the first, and nobody contends
//!                                             v            the server lets it in
//!                                         contender -----------------------------> holder
//! ```
//!
//! A session is let in again by a lock that it holds. So what keeps the requests *of one client* apart is
//! this table:
//!
//! * *One tries at a time*, on the shared connection, and only while nobody of this client holds or contends.
//!   Two tries of one name in one session would both be let in.
//! * *One contends at a time*, on a connection of its own that holds nothing. It may stand behind a holder of
//!   this client: another session, which keeps it out.
//! * *By the key, not by the name*: two names with one hash are one lock.
//!
//! What could break it, and why it does not:
//!
//! * *The caller goes away while it is tried.* What comes of it is noted by the [connection](super::connection) that
//!   asked, not by the caller. An abandon buries the request first; then the connection gives back what it was
//!   granted before it says that the try is over, so that nobody tries meanwhile.
//! * *The server lets the contender in, and a holder of this client is still here.* Its release is on its way
//!   back (it is `leaving`), or its session was ended and we have not been told: then it has lost its lock,
//!   and is told before the next one.
//! * *Who waits is gone without a word.* A request that is answered `Held` may leave nothing behind. While
//!   somebody listens to its [seat](Seat) it keeps its place; the engine asks again now and then, and is away
//!   for a moment. Who is away for longer than [`GRACE`] is passed over, and what it was let in to is given
//!   back.
//! * *A connection ends.* All that hung on it is taken out in one step, and told as lost before the
//!   connection is closed from this side.

mod ask;
mod connections;
mod line;
mod release;
mod state;
#[cfg(test)]
mod tests;
mod wait;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::spi::Signal;
use futures::channel::mpsc;

pub(super) use self::ask::{Asked, Verdict};
pub(super) use self::line::{Seat, Step};
pub(super) use self::release::Found;
use self::state::State;
pub(super) use self::wait::{Cancel, IsHeard};

/// How long somebody in line may be away between two questions.
pub(super) const GRACE: Duration = Duration::from_secs(3);

/// See the head of the file.
pub(super) struct Board {
    state: Mutex<State>,
    signals: Mutex<Vec<mpsc::UnboundedSender<Signal>>>,
    /// How many connections may wait.
    most_waiting: usize,
}

impl Board {
    pub(super) fn new(most_waiting: usize) -> Self {
        Self {
            state: Mutex::new(State::new()),
            signals: Mutex::default(),
            most_waiting,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn signals(&self) -> mpsc::UnboundedReceiver<Signal> {
        let (send, receive) = mpsc::unbounded();
        self.senders().push(send);
        receive
    }

    fn senders(&self) -> MutexGuard<'_, Vec<mpsc::UnboundedSender<Signal>>> {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, signal: &Signal) {
        self.senders()
            .retain(|s| s.unbounded_send(signal.clone()).is_ok());
    }
}
