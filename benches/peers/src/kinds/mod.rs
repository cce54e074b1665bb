//! The libraries for Rust, one file each.

pub(crate) mod distributed_lock;
pub(crate) mod ours;
pub(crate) mod raw;
pub(crate) mod redisson;
pub(crate) mod rslock;

use std::time::Duration;

/// What a lock is taken for, where that has to be said: nothing here lasts as long.
const TTL: Duration = Duration::from_secs(30);
