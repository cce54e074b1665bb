//! Histories: what the clients saw. They are the only input of the checkers.
//!
//! A rule takes a [`Lane`] per task with [`Cx::lane`](crate::Cx::lane), works through it, and ends with
//! [`Cx::check_history`](crate::Cx::check_history). Histories are stored as JSON lines, so a corrected
//! checker can judge old runs again.

mod event;
mod lane;
mod observed;
mod recorder;
mod spans;
mod stored;
mod traced;
mod traced_network;
mod validate;

pub use event::{Event, EventKind, Op, OpOutcome, Told};
pub use lane::{Lane, Recorded};
pub use observed::Watching;
pub use recorder::History;
pub use spans::{Ends, Model, Span, spans};
pub use stored::{Asked, Head, load, store};
pub(crate) use traced::Traced;
pub(crate) use traced_network::TracedNetwork;
pub use validate::{Invalid, validate};

pub use crate::mode::ModeTag;
