use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use super::Grant;
use crate::error::Result;
use crate::request_id::RequestId;

/// How a waiter learns when to act.
#[non_exhaustive]
#[must_use]
pub struct Wait {
    /// Whether the store pushes or the engine polls.
    pub wake: Wake,
    /// When something expires that the store will not report, such as a holder's lease, so that it pays to
    /// ask again.
    pub recheck_in: Option<Duration>,
    /// The number of waiters ahead, if the store reports it at no cost.
    pub ahead: Option<u32>,
}

impl Wait {
    /// Creates a wait with this kind of wake-up.
    pub fn new(wake: Wake) -> Self {
        Self {
            wake,
            recheck_in: None,
            ahead: None,
        }
    }

    /// Sets when it pays to ask again.
    pub fn recheck_in(mut self, d: Duration) -> Self {
        self.recheck_in = Some(d);
        self
    }

    /// Sets the number of waiters ahead.
    pub fn ahead(mut self, n: u32) -> Self {
        self.ahead = Some(n);
        self
    }
}

/// Asked again in full after 5 to 50 ms each: for a store that has nothing cheaper.
impl Default for Wait {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self::new(Wake::poll_in_full(ms(5), ms(50)))
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wake = match self.wake {
            Wake::Push(_) => "push",
            Wake::Poll { .. } => "poll",
        };
        f.debug_struct("Wait")
            .field("wake", &wake)
            .field("recheck_in", &self.recheck_in)
            .field("ahead", &self.ahead)
            .finish()
    }
}

/// How a waiter is woken.
#[non_exhaustive]
#[allow(missing_debug_implementations)] // streams and probes are opaque
pub enum Wake {
    /// The store pushes. A backend registers the request *before* it is sent, since a push may overtake the
    /// reply. Dropping the stream does not withdraw the request. The end of the stream means that pushes
    /// cannot be relied on: the engine asks again.
    Push(BoxStream<'static, Push>),
    /// The engine polls. It chooses the *timing*, between these bounds and with jitter, and runs one poller
    /// per client and name.
    Poll {
        /// The cheap question to ask.
        probe: Arc<dyn Probe>,
        /// The shortest pause after a look.
        min: Duration,
        /// The longest pause after a look.
        max: Duration,
    },
}

impl Wake {
    /// Polls by asking in full each time. For a store where that is as cheap as any question.
    pub fn poll_in_full(min: Duration, max: Duration) -> Self {
        /// Always says that it may pay.
        struct InFull;

        #[async_trait]
        impl Probe for InFull {
            async fn look(&self) -> Result<News> {
                Ok(News::Changed)
            }
        }

        Self::Poll {
            probe: Arc::new(InFull),
            min,
            max,
        }
    }
}

/// A cheap question whether a name has changed since it was asked last. All waiters of one name in one client
/// share a probe.
///
/// The first look counts from the attempt that returned the probe: what happened in between is news. The
/// probes of further waiters are asked once each; from then on the first probe speaks for all.
#[async_trait]
pub trait Probe: Send + Sync + 'static {
    /// Asks whether, and for which requests, it pays to ask in full. When in doubt, the answer is
    /// [`News::Changed`].
    ///
    /// # Cancel safety
    /// Only reads. The engine treats a look that failed or was not answered as [`News::Changed`], so a later
    /// look need not repeat what a dropped one has seen.
    ///
    /// # Errors
    /// As [`Lock::attempt`](super::Lock::attempt).
    async fn look(&self) -> Result<News>;

    /// Returns the state of the name at this probe's last look, or after the attempt that returned the probe:
    /// a number that differs whenever the holders differ. With it, the probe of another waiter that was made
    /// before the latest look of this one began need not look. `None` if the state is not known, or if a look
    /// names each admission only once.
    fn seen(&self) -> Option<u64> {
        None
    }
}

/// The result of a look at a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum News {
    /// Nothing has changed for any waiter. The next look may come later.
    Nothing,
    /// The holders have changed, and these requests from the store's queue were admitted. The engine asks for
    /// these alone, and for requests that are not queued, which nobody can admit. So a hand-off costs one
    /// question, however many wait. Requests of other clients may be among them. The list may be empty.
    Admitted(Vec<RequestId>),
    /// Something has changed, and the waiters must ask in full to learn whether it concerns them. The first
    /// few in line do so, and when one of them is granted, the next few.
    Changed,
}

/// What a store pushes to a waiter.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Push {
    /// The queued request is granted.
    Granted(Grant),
    /// Something has changed. Ask again.
    Changed,
}
