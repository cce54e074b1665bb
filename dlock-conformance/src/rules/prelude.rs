//! What many rules use.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(super) use std::sync::{Arc, Mutex};
pub(super) use std::time::Duration;

pub(super) use dlock_core::{ErrorKind, LockName, Timestamp, Token};
pub(super) use futures::future::{join_all, try_join_all};

pub(super) use super::steps::{
    all, answered, end_of, every, granted_within, if_known, is_lost, ms, not_run, refused, token_of,
};
pub(super) use crate::claims::Need;
pub(super) use crate::cx::Cx;
pub(super) use crate::lock::lock;
pub(super) use crate::network::{Cut, Direction, Fault, FaultGuard, Network};
pub(super) use crate::rng::Rng;
pub(super) use crate::rule::{rule, rules};
pub(super) use crate::subject::{Ask, Held, Subject};
pub(super) use crate::task::Task;
pub(super) use crate::verdict::{Failure, Seen, Verdict};
pub(super) use crate::{ensure, fail, inconclusive};

/// A client that tasks share.
pub(super) type Client = Arc<dyn Subject>;
