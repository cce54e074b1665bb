//! What all connections of a client have in common.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::Runtime;

use crate::pushes::Pushes;
use crate::scripts::Script;
use crate::server::Demands;
use crate::single::{Role, Single, Source};

/// How lines to servers are made.
#[derive(Clone)]
pub(crate) struct Way {
    pub(crate) demands: Demands,
    pub(crate) timeout: Duration,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) scripts: Arc<[Script]>,
    pub(crate) pushes: Arc<Pushes>,
}

impl Way {
    /// To one server.
    pub(crate) fn line(&self, source: Source) -> Arc<Single> {
        self.line_for(source, Role::Everything)
    }

    pub(crate) fn line_for(&self, source: Source, role: Role) -> Arc<Single> {
        let (runtime, scripts, pushes) = (self.runtime.clone(), self.scripts.clone(), self.pushes.clone());
        Single::new(
            source,
            role,
            self.demands.clone(),
            self.timeout,
            runtime,
            scripts,
            pushes,
        )
    }
}
