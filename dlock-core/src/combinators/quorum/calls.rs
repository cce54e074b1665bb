//! Requests to several members at once, and which answers are waited for.
//!
//! All requests are sent together. Once the answers that have arrived decide, the others are not waited for.
//! They are polled in the background, so that no request is cut off half-way and every answer is received. A
//! member that has not answered within the patience counts as *silent*: from then on it is asked like the
//! others, but waited for only a little longer than they are.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Either, select};
use futures::stream::{FuturesUnordered, StreamExt as _};

use super::shared::Shared;
use crate::timestamp::Timestamp;

/// If only silent members are left, they get this many times the time that the others took, and at least that
/// long.
const GRACE: (u32, Duration) = (4, Duration::from_millis(5));

/// Requests in transit, at most one per member.
pub(super) struct Calls<T> {
    shared: Arc<Shared>,
    on_their_way: FuturesUnordered<BoxFuture<'static, (usize, T)>>,
    /// For each member, whether a request to it is in transit.
    running: Vec<bool>,
    /// For each member, whether its answer is waited for.
    awaited: Vec<bool>,
    /// Whether any member has answered.
    heard: bool,
    patience: Duration,
    waiting: Option<Waiting>,
    /// The patience is over: later answers are taken if they are there, but not waited for.
    spent: bool,
}

/// The start of the wait for the first answer that was not there at once.
struct Waiting {
    since: Timestamp,
    /// When the last answer came.
    heard: Timestamp,
    patience: BoxFuture<'static, ()>,
    grace: Option<BoxFuture<'static, ()>>,
}

impl Waiting {
    /// The time within which every member that answers like the others has answered.
    fn soon(&self) -> Duration {
        (self.since.until(self.heard) * GRACE.0).max(GRACE.1)
    }
}

impl<T: Send + 'static> Calls<T> {
    /// Creates an empty set. All its requests together get `patience`, from when they are first waited for.
    pub(super) fn new(shared: &Arc<Shared>, patience: Duration) -> Self {
        Self {
            shared: shared.clone(),
            on_their_way: FuturesUnordered::new(),
            running: vec![false; shared.members.len()],
            awaited: vec![false; shared.members.len()],
            heard: false,
            patience,
            waiting: None,
            spent: false,
        }
    }

    /// Adds a request, which is sent when it is polled.
    pub(super) fn send(&mut self, member: usize, request: impl Future<Output = T> + Send + 'static) {
        self.running[member] = true;
        self.awaited[member] = true;
        self.on_their_way
            .push(request.map(move |answer| (member, answer)).boxed());
    }

    /// Whether a request to this member is in transit.
    pub(super) fn is_running(&self, member: usize) -> bool {
        self.running[member]
    }

    /// The members with a request in transit.
    pub(super) fn running(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.running.len()).filter(|member| self.running[*member])
    }

    fn hears(&mut self, member: usize) {
        self.running[member] = false;
        self.awaited[member] = false;
        self.heard = true;
        if let Some(waiting) = &mut self.waiting {
            waiting.heard = self.shared.runtime.now();
        }
        self.shared.members[member].silent.store(false, Ordering::Relaxed);
    }

    /// Returns an answer that is there already. Call it until there is none: it sends the requests.
    pub(super) async fn ready(&mut self) -> Option<(usize, T)> {
        match futures::poll!(self.on_their_way.next()) {
            Poll::Ready(Some((member, answer))) => {
                self.hears(member);
                Some((member, answer))
            }
            _ => None,
        }
    }

    /// Waits for the next answer. `None` if no answer is waited for any more.
    ///
    /// # Cancel safety
    /// Dropped, nothing is lost. Dropped with `self`, requests in transit may take effect, and their answers
    /// are lost.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        let next = poll_fn(|cx| {
            if let Poll::Ready(answer) = self.on_their_way.poll_next_unpin(cx) {
                return Poll::Ready(answer);
            }
            if self.spent || !self.awaited.contains(&true) {
                return Poll::Ready(None);
            }
            let only_silent = self.heard && self.only_silent();
            // Only now: members in this process have answered before, and need no timer.
            let (runtime, patience) = (&self.shared.runtime, self.patience);
            let waiting = self.waiting.get_or_insert_with(|| {
                let now = runtime.now();
                Waiting {
                    since: now,
                    heard: now,
                    patience: runtime.sleep(patience),
                    grace: None,
                }
            });
            if waiting.patience.as_mut().poll(cx).is_ready() {
                self.spent = true;
                return Poll::Ready(None);
            }
            if !only_silent {
                return Poll::Pending;
            }
            let soon = waiting.soon();
            let grace = waiting.grace.get_or_insert_with(|| runtime.sleep(soon));
            let over = grace.as_mut().poll(cx);
            if over.is_ready() {
                waiting.grace = None;
            }
            over.map(|()| None)
        })
        .await;
        match &next {
            Some((member, _)) => self.hears(*member),
            None => self.fall_silent(),
        }
        next
    }

    /// Receives answers until they decide, or no answer is waited for any more.
    pub(super) async fn hear<S>(
        &mut self,
        so_far: &mut S,
        mut take: impl FnMut(&mut S, usize, T),
        is_decided: impl Fn(&S, &Self) -> bool,
    ) {
        loop {
            while let Some((member, answer)) = self.ready().await {
                take(so_far, member, answer);
            }
            if is_decided(so_far, self) {
                return;
            }
            match self.next().await {
                Some((member, answer)) => take(so_far, member, answer),
                None => return,
            }
        }
    }

    /// Waits for the next answer for a short time. Members that do not answer are waited for as before.
    pub(super) async fn next_soon(&mut self) -> Option<(usize, T)> {
        let soon = self.waiting.as_ref().map_or(GRACE.1, Waiting::soon);
        let next = match select(self.on_their_way.next(), self.shared.runtime.sleep(soon)).await {
            Either::Left((next, _)) => next,
            Either::Right(_) => None,
        };
        if let Some((member, _)) = &next {
            self.hears(*member);
        }
        next
    }

    /// Whether a request to this member is in transit and its answer is expected.
    pub(super) fn is_expected(&self, member: usize) -> bool {
        self.awaited[member] && !self.shared.members[member].silent.load(Ordering::Relaxed)
    }

    fn only_silent(&self) -> bool {
        let mut awaited = (0..self.awaited.len()).filter(|member| self.awaited[*member]);
        awaited.all(|member| self.shared.members[member].silent.load(Ordering::Relaxed))
    }

    /// Stops waiting: members that have not answered are silent.
    pub(super) fn fall_silent(&mut self) {
        for (member, awaited) in self.awaited.iter_mut().enumerate() {
            if std::mem::take(awaited) {
                self.shared.members[member].silent.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Continues the requests in transit in the background, for the patience once more. Calls `hear` for each
    /// answer, and at the end for each member that gave none.
    pub(super) fn linger(mut self, mut hear: impl FnMut(usize, Option<T>) + Send + 'static) {
        if self.on_their_way.is_empty() {
            return;
        }
        let shared = self.shared.clone();
        let lingering = Lingering::new(&shared);
        // Starts the patience again: the answers that decided may have come at the last moment.
        self.waiting = None;
        self.spent = false;
        self.awaited.clone_from(&self.running);
        let lingers = async move {
            // Nothing waits for this, so silent members get the full time.
            self.heard = false;
            while let Some((member, answer)) = self.next().await {
                hear(member, Some(answer));
                self.heard = false;
            }
            for member in self.running().collect::<Vec<_>>() {
                hear(member, None);
            }
            drop(lingering);
        };
        shared.runtime.spawn(lingers.boxed());
    }
}

/// Counts a background task that receives answers, until it ends or is dropped: closing waits for it.
struct Lingering(Arc<Shared>);

impl Lingering {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.lingering.fetch_add(1, Ordering::AcqRel);
        Self(shared.clone())
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        self.0.lingering.fetch_sub(1, Ordering::AcqRel);
    }
}
