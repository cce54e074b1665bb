//! Faults of networks, written down beside what clients do.

use std::any::Any;
use std::sync::Arc;

use super::event::{Event, EventKind};
use super::recorder::History;
use crate::network::{Cut, Fault, FaultGuard, Network, Traffic};

/// A network whose faults are written down.
#[derive(Debug)]
pub(crate) struct TracedNetwork {
    net: Arc<dyn Network>,
    trace: History,
}

impl TracedNetwork {
    pub(crate) fn new(net: Arc<dyn Network>, trace: History) -> Self {
        Self { net, trace }
    }

    /// The network itself, which the harness knows.
    pub(crate) fn inner(net: &Arc<dyn Network>) -> &Arc<dyn Network> {
        let any: &dyn Any = &**net;
        any.downcast_ref().map_or(net, |traced: &Self| &traced.net)
    }

    /// Writes down that it begins. What is to be written down when it ends.
    fn began(&self, what: String) -> Event {
        let number = u32::try_from(self.trace.next_op()).unwrap_or(u32::MAX);
        self.trace.record(Event {
            note: Some(what),
            ..Event::new(EventKind::FaultBegin, number, 0, "")
        });
        Event::new(EventKind::FaultEnd, number, 0, "")
    }
}

impl Network for TracedNetwork {
    fn begin(&self, fault: Fault) -> FaultGuard {
        let (end, trace) = (self.began(format!("{fault:?}")), self.trace.clone());
        self.net.begin(fault).then(move || trace.record(end))
    }

    fn offers(&self, fault: Fault) -> bool {
        self.net.offers(fault)
    }

    fn cut(&self, how: Cut) -> usize {
        let end = self.began(format!("Cut({how:?})"));
        let count = self.net.cut(how);
        self.trace.record(end);
        count
    }

    fn traffic(&self) -> Traffic {
        self.net.traffic()
    }

    fn server(&self, n: usize) -> Option<Arc<dyn Network>> {
        let net = self.net.server(n)?;
        Some(Arc::new(Self::new(net, self.trace.clone())))
    }
}
