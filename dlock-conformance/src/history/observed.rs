//! The other operations of lanes: writing to a fenced resource, and watching.

use dlock_core::{Admission, Change, Error, FencedValue, LockName, Result, Token};
use futures::StreamExt;
use futures::stream::BoxStream;

use super::event::{Event, EventKind, Op, OpOutcome, Told};
use super::lane::{Lane, Return};
use super::recorder::History;
use crate::shown::shown;
use crate::verdict::{Failure, Seen, Verdict};

impl Lane {
    /// Writes to a fenced resource with that token, and the token's digits as value, recorded.
    ///
    /// # Errors
    /// Those of the gate; `Broken` if the subject has none.
    pub async fn write(&self, resource: &LockName, token: Token) -> Verdict<Admission> {
        let gate = self.client.gate().ok_or_else(no_gate)?;
        let flight = self.begin(Event {
            op: Some(Op::Write),
            token: Some(token.get()),
            ..self.event(EventKind::Invoke, resource)
        });
        let result = gate
            .write(resource, token, token.get().to_string().as_bytes())
            .await;
        flight.end(&result, |admission| {
            Return::outcome(match admission.is_admitted() {
                true => OpOutcome::Ok,
                false => OpOutcome::Held,
            })
        });
        result.seen("a writer writes")
    }

    /// Reads a fenced resource that only [`write`](Self::write) writes to, recorded. The token whose write it
    /// found.
    ///
    /// # Errors
    /// Those of the gate; `Broken` if the subject has none.
    pub async fn read(&self, resource: &LockName) -> Verdict<Option<u64>> {
        let gate = self.client.gate().ok_or_else(no_gate)?;
        let mut flight = self.begin(Event {
            op: Some(Op::Read),
            ..self.event(EventKind::Invoke, resource)
        });
        let result = gate.read(resource).await;
        flight.event.token = result.as_ref().ok().and_then(|found| written_by(found.as_ref()?));
        let token = flight.event.token;
        flight.end(&result, |_| Return::outcome(OpOutcome::Ok));
        result.seen("a reader reads")?;
        Ok(token)
    }

    /// Subscribes to the changes of a name, recorded. Changes are recorded as they are taken from the
    /// [`Watching`].
    ///
    /// # Errors
    /// Those of the subject; `Broken` if it cannot be watched.
    pub async fn watch(&self, name: &LockName) -> Verdict<Watching> {
        let Some(observe) = self.client.observe() else {
            return Err(Failure::Broken(
                "watching is claimed, and the subject does not offer it".to_owned(),
            ));
        };
        let flight = self.begin(Event {
            op: Some(Op::Watch),
            ..self.event(EventKind::Invoke, name)
        });
        let line = Event {
            kind: EventKind::Watch,
            op: None,
            ..flight.event.clone()
        };
        let result = observe.watch(name).await;
        flight.end(&result, |_| Return::outcome(OpOutcome::Ok));
        Ok(Watching {
            history: self.history.clone(),
            line,
            changes: result.seen("a watcher subscribes")?,
        })
    }

    fn event(&self, kind: EventKind, name: &LockName) -> Event {
        Event::new(kind, self.id, self.history.next_op(), name.to_string())
    }
}

fn no_gate() -> Failure {
    Failure::Broken("a gate is claimed, and the subject does not offer one".to_owned())
}

fn written_by(found: &FencedValue) -> Option<u64> {
    std::str::from_utf8(&found.value).ok()?.parse().ok()
}

/// A stream of changes. Each change is recorded as it is taken.
pub struct Watching {
    history: History,
    /// What every event of it has in common.
    line: Event,
    changes: BoxStream<'static, Result<Change>>,
}

impl Watching {
    /// The next change; `None` at the end of the stream.
    ///
    /// Cancel safe: a change that was not taken is the next one.
    pub async fn next(&mut self) -> Option<Result<Change>> {
        let item = self.changes.next().await;
        let (told, error) = match &item {
            Some(Ok(change)) => (told(change), None),
            Some(Err(e)) => (Some(Told::Over), Some(e)),
            None => (Some(Told::Over), None),
        };
        if let Some(told) = told {
            self.history.record(Event {
                told: Some(told),
                err_kind: error.map(|e: &Error| format!("{:?}", e.kind())),
                ..self.line.clone()
            });
        }
        item
    }
}

/// `None` for a kind of change that the kit does not know yet.
fn told(change: &Change) -> Option<Told> {
    Some(match change {
        Change::Snapshot { now, skipped } => Told::Snapshot {
            holders: now.holders.iter().map(|h| h.id.to_string()).collect(),
            skipped: *skipped,
        },
        Change::Granted(holder) => Told::Granted(holder.id.to_string(), holder.token.map(Token::get)),
        Change::Released { id } | Change::Expired { id } | Change::Forced { id } => {
            Told::Ended(id.to_string())
        }
        _ => return None,
    })
}

shown!(Watching, it => "Watching({} by operation {})", it.line.name, it.line.op_id);
