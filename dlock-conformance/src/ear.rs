//! Collects `tracing` events while a rule listens.
//!
//! Background tasks emit losses and renewals on any thread, so only a subscriber for the whole process gets
//! them. The first rule that listens installs it. It ignores everything while no rule listens.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, ThreadId};

use crate::lock::lock;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

static OPEN: AtomicUsize = AtomicUsize::new(0);
static EARS: Mutex<Vec<Listener>> = Mutex::new(Vec::new());

/// An event or a span, as it was emitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Told {
    /// Its name, or the place in the source if it has none.
    pub name: String,
    /// Its target.
    pub target: String,
    /// Its fields, as text.
    pub fields: BTreeMap<String, String>,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.target)?;
        self.fields.iter().try_for_each(|(k, v)| write!(f, " {k}={v}"))
    }
}

type Heard = Arc<Mutex<Vec<Told>>>;

struct Listener {
    /// Only that thread: a simulation runs on one thread, and others may run beside it.
    thread: Option<ThreadId>,
    heard: Heard,
}

/// Listens until it is dropped. From [`Cx::listen`](crate::Cx::listen).
#[derive(Debug)]
pub struct Ear {
    heard: Heard,
}

impl Ear {
    /// `None` where the process has a subscriber already.
    pub(crate) fn open(this_thread: bool) -> Option<Self> {
        static INSTALLED: OnceLock<bool> = OnceLock::new();
        let install = || tracing::subscriber::set_global_default(Switchboard(AtomicU64::new(1))).is_ok();
        if !INSTALLED.get_or_init(install) {
            return None;
        }
        let heard = Heard::default();
        lock(&EARS).push(Listener {
            thread: this_thread.then(|| thread::current().id()),
            heard: Arc::clone(&heard),
        });
        OPEN.fetch_add(1, Ordering::SeqCst);
        Some(Self { heard })
    }

    /// The events so far.
    pub fn heard(&self) -> Vec<Told> {
        lock(&self.heard).clone()
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::SeqCst);
        lock(&EARS).retain(|l| !Arc::ptr_eq(&l.heard, &self.heard));
    }
}

/// Passes events on to the current listener.
struct Switchboard(AtomicU64);

impl Visit for Told {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name().to_owned(), value.to_owned());
    }
}

fn pass_on(metadata: Option<&Metadata<'_>>, record: impl FnOnce(&mut Told)) {
    let mut told = Told {
        name: metadata
            .map_or("a later field of a span", Metadata::name)
            .to_owned(),
        target: metadata.map_or("", Metadata::target).to_owned(),
        fields: BTreeMap::new(),
    };
    record(&mut told);
    let here = thread::current().id();
    for listener in lock(&EARS).iter() {
        if listener.thread.is_none_or(|thread| thread == here) {
            lock(&listener.heard).push(told.clone());
        }
    }
}

impl Subscriber for Switchboard {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // It changes: asked each time.
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        OPEN.load(Ordering::Relaxed) > 0
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        pass_on(Some(span.metadata()), |told| span.record(told));
        Id::from_u64(self.0.fetch_add(1, Ordering::Relaxed).max(1))
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        pass_on(None, |told| values.record(told));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        pass_on(Some(event.metadata()), |told| event.record(told));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
