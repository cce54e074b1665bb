//! The recipes keep what they say, on SQLite files that several clients share.
#![allow(clippy::unwrap_used)] // a test

mod backend;
mod failure;
mod leader;
mod once;
mod page;
mod process;
mod shop;

use std::time::Duration;

use dlock::{Client, LockOptions};

/// How long anything may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store that the clients of one test share.
struct Store(tempfile::TempDir);

impl Store {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.0.path().join("locks.sqlite").display())
    }

    async fn client(&self) -> Client {
        let defaults = LockOptions::new().wait_limit(PATIENCE);
        dlock::connect(self.url()).defaults(defaults).await.unwrap()
    }
}

/// What the future gives, soon enough.
async fn soon<T>(of: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, of).await.expect("it hangs")
}
