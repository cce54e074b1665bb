//! A job that every machine starts, and that is done once in each period.

use std::error::Error;
use std::time::Duration;

use dlock::{Client, Held, LockName, LockOptions};

use crate::row;

/// What became of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It was done now.
    Now,
    /// It was done before, here or elsewhere.
    Before,
}

/// What the work failed with, or the lock.
pub type Failed = Box<dyn Error + Send + Sync>;

/// Does the job unless it was done in that period or a later one. Periods are compared as text: `2026-11-27`.
///
/// Later callers wait for the first one, find its record and return. If it failed or crashed there is no
/// record, and the next caller does the job. So the work runs twice if it crashed after its last write and
/// before the record.
///
/// # Errors
/// Those of the work, and those of the lock and the gate. Call it again: it finds out whether the job was
/// recorded.
pub async fn once<W>(
    client: &Client,
    job: &str,
    period: &str,
    longest: Duration,
    work: impl FnOnce(Held) -> W,
) -> Result<Done, Failed>
where
    W: Future<Output = Result<(), Failed>>,
{
    let row = &LockName::new(job)?;
    // A job that hangs is cancelled. Until then the other callers wait.
    let options = LockOptions::new().max_hold(longest).wait_limit(longest);
    let lock = client.lock(row)?.options(options)?;
    lock.with(|held| async move {
        if row::read(client, row, &held).await?.as_slice() >= period.as_bytes() {
            return Ok(Done::Before);
        }
        work(held.clone()).await?;
        row::write(client, row, &held, period.as_bytes()).await?;
        Ok(Done::Now)
    })
    .await?
}
