//! Checks that a history is well-formed before it is judged.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::event::{Event, EventKind, Op, OpOutcome};

/// Why a history is malformed: a fault of the kit, never of the subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The index of the event.
    pub at: usize,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {} of the history: {}", self.at, self.why)
    }
}

/// Times never go back; a lane has one operation in flight; each return has its invoke and repeats what that
/// said; renewals, releases and point events name an acquire that was granted, of the same lock.
///
/// # Errors
/// The first event that breaks this.
pub fn validate(events: &[Event]) -> Result<(), Invalid> {
    let mut checker = Validator::default();
    for (at, event) in events.iter().enumerate() {
        checker.event(event).map_err(|why| Invalid { at, why })?;
    }
    Ok(())
}

#[derive(Default)]
struct Validator<'a> {
    now: u64,
    in_flight: HashMap<u32, &'a Event>,
    seen: HashSet<u64>,
    granted: HashMap<u64, &'a str>,
}

impl<'a> Validator<'a> {
    fn event(&mut self, event: &'a Event) -> Result<(), String> {
        if event.t_mono_ns < self.now {
            let at = event.t_mono_ns;
            return Err(format!("its time {at} is before that of the event before it"));
        }
        self.now = event.t_mono_ns;
        let (op, lane) = (event.op_id, event.lane);
        match event.kind {
            EventKind::Invoke => self.invoke(event),
            EventKind::Return => self.ret(event),
            EventKind::GrantedBeliefUntil | EventKind::Lost | EventKind::Dropped => self.of_a_grant(event),
            EventKind::Queued => match self.in_flight.get(&event.lane) {
                Some(acquire) if acquire.op_id == event.op_id => Ok(()),
                _ => Err(format!(
                    "operation {op} is queued but not in flight in lane {lane}"
                )),
            },
            EventKind::Watch if event.told.is_none() => {
                Err("it does not say what the watcher saw".to_owned())
            }
            EventKind::Watch | EventKind::FaultBegin | EventKind::FaultEnd => Ok(()),
        }
    }

    fn invoke(&mut self, event: &'a Event) -> Result<(), String> {
        let op = event.op.ok_or("an invoke does not name its operation")?;
        let (number, lane) = (event.op_id, event.lane);
        if !self.seen.insert(number) {
            return Err(format!("operation {number} is invoked twice"));
        }
        if matches!(op, Op::Renew | Op::Release) {
            self.of_a_grant(event)?;
        }
        if event.is_acquire() && event.mode.is_none() {
            return Err("an acquire does not name its mode".to_owned());
        }
        if op == Op::Write && event.token.is_none() {
            return Err("a write does not name its token".to_owned());
        }
        match self.in_flight.insert(lane, event) {
            Some(Event { op_id: other, .. }) => Err(format!(
                "lane {lane} begins operation {number} while {other} is in flight"
            )),
            None => Ok(()),
        }
    }

    fn ret(&mut self, event: &'a Event) -> Result<(), String> {
        let (number, lane) = (event.op_id, event.lane);
        let in_flight = self.in_flight.remove(&lane);
        let Some(invoke) = in_flight.filter(|invoke| invoke.op_id == number) else {
            return Err(format!(
                "operation {number} returns in lane {lane} but is not in flight there"
            ));
        };
        if (invoke.op, &invoke.name, invoke.of) != (event.op, &event.name, event.of) {
            return Err(format!(
                "the return of operation {number} does not match its invoke"
            ));
        }
        let outcome = event.outcome.ok_or("a return does not name its outcome")?;
        if outcome == OpOutcome::Ok && event.is_acquire() {
            if event.ttl_ns.is_none() {
                return Err("a grant does not name its ttl".to_owned());
            }
            self.granted.insert(event.op_id, &event.name);
        }
        Ok(())
    }

    fn of_a_grant(&self, event: &Event) -> Result<(), String> {
        let (of, name) = (event.of.ok_or("it does not name its grant")?, &event.name);
        match self.granted.get(&of) {
            Some(granted) if granted == name => Ok(()),
            Some(granted) => Err(format!("operation {of} was granted `{granted}`, not `{name}`")),
            None => Err(format!("operation {of} was granted nothing")),
        }
    }
}
