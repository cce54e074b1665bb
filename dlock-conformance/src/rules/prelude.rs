//! What nearly every rule uses.

pub(super) use std::sync::Arc;
pub(super) use std::time::Duration;

pub(super) use dlock_core::{ErrorKind, LockName};

pub(super) use super::steps::{
    all, answered, end_of, every, granted_within, if_known, is_lost, ms, not_run, refused, token_of,
};
pub(super) use crate::claims::Need;
pub(super) use crate::cx::Cx;
pub(super) use crate::lock::lock;
pub(super) use crate::rule::{rule, rules};
pub(super) use crate::subject::{Ask, Held, Subject};
pub(super) use crate::verdict::{Failure, Seen, Verdict};
pub(super) use crate::{ensure, fail, inconclusive};

/// A client that tasks share.
pub(super) type Client = Arc<dyn Subject>;
