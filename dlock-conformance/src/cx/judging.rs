//! The history of a run, and how it is judged.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlock_core::{Capability, Nature};

use super::Cx;
use crate::checker::{self, Check, Judgement};
use crate::fail;
use crate::history::{Asked, Ends, Event, EventKind, History, Lane, Model};
use crate::lock::lock;
use crate::nanos::nanos;
use crate::report::timeline;
use crate::subject::Subject;
use crate::verdict::{Failure, Verdict};

impl Cx {
    /// The history of this run.
    pub fn history(&self) -> &History {
        &self.0.history
    }

    /// A lane of the history that works through that client. One per task: a lane does one thing at a time.
    pub fn lane(&self, client: &Arc<dyn Subject>) -> Lane {
        Lane::new(self.0.history.clone(), Arc::clone(client))
    }

    /// The model of the history, from the claims: leases (which a fault may end, for a session store), and
    /// tokens if fencing is claimed.
    pub fn model(&self) -> Model {
        let caps = &self.0.run.claims.capabilities;
        Model {
            ends: match caps.nature {
                Nature::Lease => Ends::Lease,
                _ => Ends::LeaseOrFault,
            },
            skew: self.0.run.claims.skew,
            fenced: caps.has(Capability::Fencing),
        }
    }

    /// Judges the history by the checkers of [`Check::Exclusion`].
    ///
    /// # Errors
    /// `Broken` with one sentence and a timeline of the smallest part of the history that is still illegal;
    /// `Inconclusive` if the search ran out of budget; `Kit` if the history is malformed or the checkers
    /// contradict each other.
    pub fn check_history(&self) -> Verdict {
        self.check(Check::Exclusion)
    }

    /// Judges the history by other checkers: the order of a queue, what watchers saw, and so on.
    pub fn check(&self, check: Check) -> Verdict {
        let (events, model) = (self.0.history.events(), self.model());
        let judgement = check.judge(&events, &model, checker::wgl::BUDGET);
        lock(&self.0.asked).push(Asked { model, check });
        match judgement.map_err(Failure::Kit)? {
            Judgement::Legal => Ok(()),
            Judgement::Unknown(why) => Err(Failure::Inconclusive(why)),
            Judgement::Illegal(violation) => {
                fail!("{violation}\n{}", timeline::of(&violation, &events, &model))
            }
        }
    }

    /// The result of the history breaks no claim, so it is not judged again.
    pub(crate) fn forgive(&self) {
        lock(&self.0.asked).clear();
    }

    // --- what was seen ---

    /// Counts evidence that a pass of this run needs.
    pub fn evidence(&self, counter: &'static str) {
        self.evidence_by(counter, 1);
    }

    /// Counts `n` of them.
    pub fn evidence_by(&self, counter: &'static str, n: u64) {
        *lock(&self.0.evidence).entry(counter).or_default() += n;
    }

    /// How many of them were counted so far.
    pub(crate) fn counted(&self, counter: &'static str) -> u64 {
        lock(&self.0.evidence).get(counter).copied().unwrap_or(0)
    }

    /// Adds a line to the report of this run, for example a measured number.
    pub fn note(&self, line: impl fmt::Display) {
        lock(&self.0.notes).push(line.to_string());
    }

    /// Whether connecting a client failed.
    pub(crate) fn is_unconnected(&self) -> bool {
        self.0.unconnected.load(Ordering::Relaxed)
    }

    pub(crate) fn take_evidence(&self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut lock(&self.0.evidence))
    }

    /// The history; of a rule that `failed` without one, what its clients did.
    pub(crate) fn take_history(&self, failed: bool) -> Vec<Event> {
        if !failed || !self.0.history.is_empty() {
            return self.0.history.events();
        }
        let mut events = self.0.trace.events();
        // When it had failed its guards and its calls were dropped, and its faults ended.
        while events
            .pop_if(|e| e.is_drop() || e.kind == EventKind::FaultEnd)
            .is_some()
        {}
        events
    }

    /// Which calls had not returned at that time, in words.
    pub(crate) fn hanging(&self, after: Duration) -> String {
        timeline::hanging(&self.0.trace.events(), nanos(after))
    }

    /// What the history says of a run that failed before it was judged.
    pub(crate) fn afterthought(&self) -> String {
        let events = self.take_history(true);
        if events.is_empty() || !lock(&self.0.asked).is_empty() {
            return String::new();
        }
        let model = self.model();
        if self.0.history.is_empty() {
            return format!("\nwhat happened last:\n{}", timeline::latest(&events, &model));
        }
        match Check::Exclusion.judge(&events, &model, checker::wgl::BUDGET / 10) {
            Ok(Judgement::Illegal(violation)) => {
                let drawing = timeline::of(&violation, &events, &model);
                format!("\nits history, judged as a whole, is illegal too: {violation}\n{drawing}")
            }
            _ => format!("\nwhat happened last:\n{}", timeline::latest(&events, &model)),
        }
    }

    /// The checks that judged the history, or the default ones if the rule `failed` before it got to them. A
    /// rule that passed may have good reason not to judge it.
    pub(crate) fn take_asked(&self, failed: bool) -> Vec<Asked> {
        let asked = std::mem::take(&mut *lock(&self.0.asked));
        if !asked.is_empty() || !failed || self.0.history.is_empty() {
            return asked;
        }
        vec![Asked {
            model: self.model(),
            check: Check::Exclusion,
        }]
    }

    pub(crate) fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.0.notes))
    }

    pub(crate) fn take_clients(&self) -> Vec<Arc<dyn Subject>> {
        std::mem::take(&mut lock(&self.0.clients))
    }
}
