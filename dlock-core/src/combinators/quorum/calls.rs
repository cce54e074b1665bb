//! Asking several members at once, and who is waited for.
//!
//! All requests set out together. Nobody is waited for once the answers that are there decide; what has not
//! answered by then is polled on in the background, so that a request is not cut off half-way and its answer
//! is heard. A member that has not answered within the patience counts as *silent*: from then on it is asked
//! like the others, and waited for only a little longer than they are.

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

/// Where only silent ones are left: they have as many times as long as the others took to answer, and at
/// least that.
const GRACE: (u32, Duration) = (4, Duration::from_millis(5));

/// Requests on their way, at most one for each member.
pub(super) struct Calls<T> {
    shared: Arc<Shared>,
    on_their_way: FuturesUnordered<BoxFuture<'static, (usize, T)>>,
    /// Of each member, whether a request to it is on its way.
    running: Vec<bool>,
    /// And whether it is waited for.
    awaited: Vec<bool>,
    /// Somebody has answered.
    heard: bool,
    patience: Duration,
    waiting: Option<Waiting>,
    /// The patience has run out: what comes from now on is taken if it is there, and not waited for.
    spent: bool,
}

/// From when the first answer that was not there at once is waited for.
struct Waiting {
    since: Timestamp,
    /// When the last answer came.
    heard: Timestamp,
    patience: BoxFuture<'static, ()>,
    grace: Option<BoxFuture<'static, ()>>,
}

impl Waiting {
    /// Within that time from now, whoever answers like the others has answered.
    fn soon(&self) -> Duration {
        (self.since.until(self.heard) * GRACE.0).max(GRACE.1)
    }
}

impl<T: Send + 'static> Calls<T> {
    /// None yet. They are given that long from when they are first waited for, all together.
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

    /// Sends one more, as soon as it is polled.
    pub(super) fn send(&mut self, member: usize, request: impl Future<Output = T> + Send + 'static) {
        self.running[member] = true;
        self.awaited[member] = true;
        self.on_their_way
            .push(request.map(move |answer| (member, answer)).boxed());
    }

    /// Whether a request to that member is on its way.
    pub(super) fn is_running(&self, member: usize) -> bool {
        self.running[member]
    }

    /// The members whose requests are on their way.
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

    /// An answer that is there already. To be asked until there is none: it is what sends the requests.
    pub(super) async fn ready(&mut self) -> Option<(usize, T)> {
        match futures::poll!(self.on_their_way.next()) {
            Poll::Ready(Some((member, answer))) => {
                self.hears(member);
                Some((member, answer))
            }
            _ => None,
        }
    }

    /// The next answer; `None` if nobody is waited for any more.
    ///
    /// # Cancel safety
    /// Dropped, nothing is lost but the wait. Dropped with `self`, requests that are on their way may take
    /// effect, unheard.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        let next = poll_fn(|cx| {
            if let Poll::Ready(answer) = self.on_their_way.poll_next_unpin(cx) {
                return Poll::Ready(answer);
            }
            if self.spent || !self.awaited.contains(&true) {
                return Poll::Ready(None);
            }
            let only_silent = self.heard && self.only_silent();
            // Only now: members in this process have answered before, and cost no timer.
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

    /// Hears answers until they decide, or nobody is waited for any more.
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

    /// The next answer, if it comes soon; whoever gives none is waited for as before.
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

    /// Whether a request to that member is on its way, and an answer is to be expected.
    pub(super) fn is_expected(&self, member: usize) -> bool {
        self.awaited[member] && !self.shared.members[member].silent.load(Ordering::Relaxed)
    }

    fn only_silent(&self) -> bool {
        let mut awaited = (0..self.awaited.len()).filter(|member| self.awaited[*member]);
        awaited.all(|member| self.shared.members[member].silent.load(Ordering::Relaxed))
    }

    /// Nobody is waited for any more: whoever has not answered is silent.
    pub(super) fn fall_silent(&mut self) {
        for (member, awaited) in self.awaited.iter_mut().enumerate() {
            if std::mem::take(awaited) {
                self.shared.members[member].silent.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Goes on with what is on its way, in the background, for as long again as the patience. `hear` is told
    /// each answer, and in the end of each member that gave none.
    pub(super) fn linger(mut self, mut hear: impl FnMut(usize, Option<T>) + Send + 'static) {
        if self.on_their_way.is_empty() {
            return;
        }
        let shared = self.shared.clone();
        let lingering = Lingering::new(&shared);
        // Anew: the answers that decided may have come at the last moment.
        self.waiting = None;
        self.spent = false;
        self.awaited.clone_from(&self.running);
        let lingers = async move {
            // Nobody waits for this, so the silent ones have all of their time.
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

/// Counts what is heard out in the background, until its task ends or is dropped: closing waits for that.
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
