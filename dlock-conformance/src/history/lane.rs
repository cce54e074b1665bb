//! Operations that are recorded as they happen.

use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{LockName, Result};

use super::event::{DROPPED, Event, EventKind, Op, OpOutcome};
use super::recorder::History;
use crate::lock::lock;
use crate::mode::ModeTag;
use crate::nanos::nanos;
use crate::shown::shown;
use crate::subject::{Ask, Held, Subject};

/// One line of work: at most one operation in flight, each recorded at its begin and its end.
///
/// Its operations are those of the client, with their errors and their cancel safety. One whose future is
/// dropped is recorded as a return with unknown outcome at that moment.
pub struct Lane {
    pub(super) history: History,
    pub(super) client: Arc<dyn Subject>,
    pub(super) id: u32,
    /// The operation in flight and its name, for observations from other tasks.
    in_flight: Mutex<Option<(u64, String)>>,
}

/// A guard whose acquire was recorded. Renew, release and drop it through a [`Lane`]; otherwise use it like
/// any [`Held`].
pub struct Recorded {
    held: Box<dyn Held>,
    op_id: u64,
    name: String,
}

impl Lane {
    pub(crate) fn new(history: History, client: Arc<dyn Subject>) -> Self {
        let id = history.next_lane();
        let in_flight = Mutex::default();
        Self {
            history,
            client,
            id,
            in_flight,
        }
    }

    /// The client that it works through.
    pub fn client(&self) -> &Arc<dyn Subject> {
        &self.client
    }

    /// [`Subject::try_acquire`], recorded.
    pub async fn try_acquire(&self, name: &LockName, ask: &Ask) -> Result<Option<Recorded>> {
        let acquire = async { self.client.try_acquire(name, ask).await };
        let held = self.asking(Op::Try, name, ask, acquire).await?;
        held.iter().for_each(|held| self.granted(held));
        Ok(held)
    }

    /// [`Subject::acquire`], recorded.
    pub async fn acquire(&self, name: &LockName, ask: &Ask) -> Result<Recorded> {
        self.wait(name, ask, None).await
    }

    /// [`Subject::acquire_timeout`], recorded.
    pub async fn acquire_timeout(&self, name: &LockName, ask: &Ask, limit: Duration) -> Result<Recorded> {
        self.wait(name, ask, Some(limit)).await
    }

    async fn wait(&self, name: &LockName, ask: &Ask, limit: Option<Duration>) -> Result<Recorded> {
        let acquire = async { self.client.wait(name, ask, limit).await.map(Some) };
        let held = self.asking(Op::Acquire, name, ask, acquire).await?;
        let held = held.expect("an acquire that answers Ok answers a guard");
        self.granted(&held);
        Ok(held)
    }

    /// [`Held::renew`], recorded.
    pub async fn renew(&self, held: &Recorded) -> Result<()> {
        let renew = async { held.held.renew().await };
        let result = self.answering(Op::Renew, held, renew).await;
        if result.is_ok() {
            self.believe(held);
        }
        result
    }

    /// [`Held::release`], recorded.
    pub async fn release(&self, held: &Recorded) -> Result<()> {
        // Its belief up to here counts: until the release no other client may believe the same.
        self.believe(held);
        // The call itself may send the request already, as that to a child process does: the begin is written
        // down before it, or the hold would seem to last longer than it does.
        let release = async { held.held.release().await };
        self.answering(Op::Release, held, release).await
    }

    /// A renewal or a release, written down.
    pub(super) async fn answering(
        &self,
        op: Op,
        held: &Recorded,
        answer: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let flight = self.invoke(op, &held.name, Some(held.op_id), None);
        let result = answer.await;
        flight.end(&result, |()| Return::ok((op == Op::Renew).then_some(&*held.held)));
        result
    }

    /// Drops the guard, recorded.
    pub fn drop_guard(&self, held: Recorded) {
        self.point(EventKind::Dropped, &held, None);
        drop(held.held);
    }

    /// A guard whose answer came late, as from a process that was stopped, is never believed in: that is
    /// recorded as well.
    fn granted(&self, held: &Recorded) {
        let left = if held.held.is_valid() {
            held.held.remaining()
        } else {
            Duration::ZERO
        };
        self.point(EventKind::GrantedBeliefUntil, held, Some(left));
    }

    /// Records how long the holder still believes. Acquire, renewal and release do this; for guards with
    /// auto-renewal, also call it in between.
    pub fn believe(&self, held: &Recorded) {
        if held.held.is_valid() {
            self.point(EventKind::GrantedBeliefUntil, held, Some(held.held.remaining()));
        }
    }

    /// Records that the holder learned of its loss.
    pub fn lost(&self, held: &Recorded) {
        self.point(EventKind::Lost, held, None);
    }

    /// Records that the acquire in flight was seen in the queue: from here on no later waiter may be granted
    /// before it. Call it from another task. It does nothing if no acquire is in flight.
    pub fn queued(&self) {
        let in_flight = lock(&self.in_flight);
        // Under the lock, so that the operation cannot return in the meantime.
        if let Some((op_id, name)) = &*in_flight {
            self.history
                .record(Event::new(EventKind::Queued, self.id, *op_id, &**name));
        }
    }

    /// An acquire, written down, with nothing asked of its guard.
    pub(super) async fn asking(
        &self,
        op: Op,
        name: &LockName,
        ask: &Ask,
        acquire: impl Future<Output = Result<Option<Box<dyn Held>>>>,
    ) -> Result<Option<Recorded>> {
        let text = name.to_string();
        let flight = self.invoke(op, &text, None, Some(ask));
        let op_id = flight.event.op_id;
        let result = acquire.await;
        flight.end(&result, |granted| match granted {
            Some(held) => Return::ok(Some(&**held)),
            None => Return::outcome(OpOutcome::Held),
        });
        Ok(result?.map(|held| Recorded {
            held,
            op_id,
            name: text,
        }))
    }

    fn invoke(&self, op: Op, name: &str, of: Option<u64>, ask: Option<&Ask>) -> Flight<'_> {
        let owner = ask.and_then(|a| a.reentrant);
        self.begin(Event {
            op: Some(op),
            of,
            mode: ask.map(|a| ModeTag::from(a.mode)),
            ttl_ns: ask.map(|a| nanos(a.ttl)),
            priority: ask.map(|a| a.priority).filter(|p| *p != Ask::USUAL_PRIORITY),
            owner: owner.map(|owner| format!("{}/{owner}", self.history.number_of(&self.client))),
            ..Event::new(EventKind::Invoke, self.id, self.history.next_op(), name)
        })
    }

    pub(super) fn begin(&self, event: Event) -> Flight<'_> {
        self.history.record(event.clone());
        *lock(&self.in_flight) = Some((event.op_id, event.name.clone()));
        Flight {
            lane: self,
            event,
            ended: false,
        }
    }

    pub(super) fn point(&self, kind: EventKind, held: &Recorded, ttl: Option<Duration>) {
        self.history.record(Event {
            ttl_ns: ttl.map(nanos),
            ..self.event_of(kind, held)
        });
    }

    pub(super) fn event_of(&self, kind: EventKind, held: &Recorded) -> Event {
        Event {
            of: Some(held.op_id),
            grant_id: Some(held.held.id()),
            token: held.held.token().map(dlock_core::Token::get),
            ..Event::new(kind, self.id, held.op_id, &*held.name)
        }
    }
}

/// An operation in flight. If this is dropped before its end, it is recorded as unknown: the request may have
/// been sent.
pub(super) struct Flight<'a> {
    lane: &'a Lane,
    pub(super) event: Event,
    ended: bool,
}

pub(super) struct Return {
    outcome: OpOutcome,
    grant: Option<(String, Option<u64>, u64)>,
    error: Option<String>,
}

impl Return {
    pub(super) fn outcome(outcome: OpOutcome) -> Self {
        Self {
            outcome,
            grant: None,
            error: None,
        }
    }

    fn ok(held: Option<&dyn Held>) -> Self {
        Self {
            grant: held.map(|h| (h.id(), h.token().map(dlock_core::Token::get), nanos(h.ttl()))),
            ..Self::outcome(OpOutcome::Ok)
        }
    }
}

impl Flight<'_> {
    /// With that answer, or its error.
    pub(super) fn end<T>(mut self, answer: &Result<T>, how: impl FnOnce(&T) -> Return) {
        let how = answer.as_ref().map(how).unwrap_or_else(|e| Return {
            error: Some(format!("{:?}", e.kind())),
            ..Return::outcome(OpOutcome::of(e))
        });
        self.finish(how, None);
    }

    fn finish(&mut self, how: Return, note: Option<&str>) {
        self.ended = true;
        let (grant_id, token, ttl_ns) = match how.grant {
            Some((id, token, ttl)) => (Some(id), token, Some(ttl)),
            None => (None, None, None),
        };
        let mut in_flight = lock(&self.lane.in_flight);
        *in_flight = None;
        self.lane.history.record(Event {
            kind: EventKind::Return,
            grant_id,
            // That of a write is its own.
            token: token.or(self.event.token),
            ttl_ns,
            outcome: Some(how.outcome),
            err_kind: how.error,
            note: note.map(str::to_owned),
            ..self.event.clone()
        });
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.finish(Return::outcome(OpOutcome::Unknown), Some(DROPPED));
        }
    }
}

impl Deref for Recorded {
    type Target = dyn Held;

    fn deref(&self) -> &(dyn Held + 'static) {
        &*self.held
    }
}

shown!(Recorded, it => "Recorded({} by operation {})", it.name, it.op_id);

shown!(Lane, it => "Lane({})", it.id);
