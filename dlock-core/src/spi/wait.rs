use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use super::Grant;
use crate::error::Result;
use crate::request_id::RequestId;

/// How a waiter learns that it is time to act.
#[non_exhaustive]
#[must_use]
pub struct Wait {
    /// Pushed by the store, or to be polled.
    pub wake: Wake,
    /// When something is known to run out (a holder's lease, say), so that asking again at that time pays.
    pub recheck_in: Option<Duration>,
    /// How many waiters are ahead, where the store says so for free.
    pub ahead: Option<u32>,
}

impl Wait {
    /// A wait that is woken in that way.
    pub fn new(wake: Wake) -> Self {
        Self {
            wake,
            recheck_in: None,
            ahead: None,
        }
    }

    /// Says when asking again pays at the latest.
    pub fn recheck_in(mut self, d: Duration) -> Self {
        self.recheck_in = Some(d);
        self
    }

    /// Says how many waiters are ahead.
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

/// How the store wakes a waiter.
#[non_exhaustive]
#[allow(missing_debug_implementations)] // streams and probes are opaque
pub enum Wake {
    /// The store tells. A backend registers the request *before* it is sent: a push may overtake the reply.
    /// Dropping the stream is not withdrawing. The end of the stream means that pushes cannot be relied on:
    /// the engine asks again.
    Push(BoxStream<'static, Push>),
    /// The engine looks. The *timing* is the engine's, between these bounds and with jitter: it keeps one
    /// poller per client and name.
    Poll {
        /// The cheap question.
        probe: Arc<dyn Probe>,
        /// Never sooner than this after the last look.
        min: Duration,
        /// Never later than this after the last look.
        max: Duration,
    },
}

impl Wake {
    /// The engine asks in full each time: for a store where that is as cheap as any question.
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

/// A cheap "is there any news since I last asked?", shared by all waiters of one name in one client.
///
/// The first look counts from the attempt that answered with it: what happened between the two is news.
/// Others that wait for the name have a probe of their own, which is asked once; from then on the first one
/// speaks for all.
#[async_trait]
pub trait Probe: Send + Sync + 'static {
    /// Whether it pays to ask in full, and for whom. When in doubt, [`News::Changed`].
    ///
    /// # Cancel safety
    /// Only reads. The engine takes a look that failed or was not answered for [`News::Changed`], so what a
    /// dropped look has seen need not be seen again.
    ///
    /// # Errors
    /// As [`Lock::attempt`](super::Lock::attempt).
    async fn look(&self) -> Result<News>;

    /// What the name looked like when this probe saw it last, or as the attempt left it that answered with
    /// it: a number that is another one whenever the holders are others. With it a probe of another waiter,
    /// made before the latest look of this one began, need not look by itself. `None` where it is not known,
    /// and where a look names an admission only once.
    fn seen(&self) -> Option<u64> {
        None
    }
}

/// What a look at a name has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum News {
    /// Nothing for anybody who waits. The next look may take longer to come.
    Nothing,
    /// The holders are others than before, and of the requests that wait in the store's queue these were
    /// admitted. The engine asks for them alone (and for those that are not queued, which nobody can admit):
    /// however many wait, a hand-over costs one question. Those of other clients may be among them; it may be
    /// empty.
    Admitted(Vec<RequestId>),
    /// Something changed. Whom it concerns shows only when they ask in full: the first few in line do, and
    /// when one of them is granted, the next few.
    Changed,
}

/// What a store pushes to a waiter.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Push {
    /// The queued request is granted.
    Granted(Grant),
    /// Something changed: ask again.
    Changed,
}
