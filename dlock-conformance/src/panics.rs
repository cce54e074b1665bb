//! Records the text and the place of a panic, since the unwinding payload has no place.

use crate::lock::lock;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};

static ANYWHERE: AtomicU64 = AtomicU64::new(0);
static LATEST: Mutex<Option<Seen>> = Mutex::new(None);

thread_local! {
    static HERE: Cell<u64> = const { Cell::new(0) };
    static LAST: RefCell<Option<Seen>> = const { RefCell::new(None) };
}

/// A panic that was caught.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) text: String,
    pub(crate) file: String,
    pub(crate) line: u32,
}

/// Notes where panics happen, in addition to the existing hook.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let place = info.location();
            let seen = Seen {
                text: text(info.payload()),
                file: place.map_or_else(String::new, |l| l.file().to_owned()),
                line: place.map_or(0, std::panic::Location::line),
            };
            if !seen.file.contains("dlock-conformance") {
                ANYWHERE.fetch_add(1, Ordering::Relaxed);
                let _ = HERE.try_with(|here| here.set(here.get() + 1));
                *lock(&LATEST) = Some(seen.clone());
            }
            // A panic while this thread's storage is gone is still printed by the hook before ours.
            let _ = LAST.try_with(|last| *last.borrow_mut() = Some(seen));
            before(info);
        }));
    });
}

/// How many panics there were outside of the kit: in the process, or on this thread alone, where a simulation
/// runs.
pub(crate) fn count(this_thread: bool) -> u64 {
    if this_thread {
        HERE.try_with(Cell::get).unwrap_or(0)
    } else {
        ANYWHERE.load(Ordering::Relaxed)
    }
}

/// The latest of those, for a report.
pub(crate) fn latest() -> Option<Seen> {
    lock(&LATEST).clone()
}

/// The panic that was caught on this thread just now.
pub(crate) fn caught(payload: &(dyn Any + Send)) -> Seen {
    let text = text(payload);
    let noted = LAST.try_with(|last| last.borrow_mut().take()).ok().flatten();
    match noted {
        Some(seen) if seen.text == text => seen,
        // Resumed from another thread: the text is all there is.
        _ => Seen {
            text,
            file: String::new(),
            line: 0,
        },
    }
}

fn text(payload: &(dyn Any + Send)) -> String {
    let owned = || payload.downcast_ref::<String>().map(String::as_str);
    let text = payload.downcast_ref::<&str>().copied().or_else(owned);
    text.unwrap_or("a panic without a text").to_owned()
}
