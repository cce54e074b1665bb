//! Which database, and how long one waits for others to be done with it.

use std::path::Path;
use std::time::Duration;

use dlock_core::{Runtime, Timestamp};
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;

use crate::sqlite::boot::BootId;
use crate::sqlite::schema::Statements;

/// Which database, and how it is used.
#[derive(Debug)]
pub(in crate::sqlite) struct Database {
    pub(in crate::sqlite) options: SqliteConnectOptions,
    /// The path, for messages.
    pub(in crate::sqlite) at: String,
    pub(in crate::sqlite) sql: Statements,
    pub(in crate::sqlite) boot: BootId,
    /// Nobody but this connection sees it, and it ends with it.
    pub(in crate::sqlite) private: bool,
    /// Whether we may choose the journal mode.
    pub(in crate::sqlite) ours: bool,
    /// How long a transaction waits for the write lock.
    pub(in crate::sqlite) busy_budget: Duration,
}

impl Database {
    pub(super) fn path(&self) -> &Path {
        self.options.get_filename()
    }

    /// How to connect without a log, and without waiting in a way that cannot be cancelled.
    pub(in crate::sqlite) fn quiet(&self) -> SqliteConnectOptions {
        let options = self.options.clone().disable_statement_logging();
        options.busy_timeout(Duration::ZERO)
    }
}

/// Waits a little longer each time, with jitter, until the budget is used up. SQLite's own busy handler
/// sleeps in coarse steps and cannot be cancelled, so it is switched off.
pub(super) struct Patience<'a> {
    runtime: &'a dyn Runtime,
    until: Timestamp,
    step: u32,
}

impl<'a> Patience<'a> {
    pub(super) fn new(runtime: &'a dyn Runtime, budget: Duration) -> Self {
        Self {
            runtime,
            until: Timestamp::now() + budget,
            step: 0,
        }
    }

    pub(super) async fn wait(&mut self) -> bool {
        if Timestamp::now() >= self.until {
            return false;
        }
        let mut random = [0u8];
        self.runtime.fill_random(&mut random);
        let micros = (100u64 << self.step.min(6)) * (128 + u64::from(random[0])) / 256;
        self.step += 1;
        self.runtime.sleep(Duration::from_micros(micros)).await;
        true
    }
}
