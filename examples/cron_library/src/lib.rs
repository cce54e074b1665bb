//! A job of `tokio-cron-scheduler` that every machine starts, and one machine does.

use std::time::Duration;

use dlock::Client;
use dlock_recipes::once::{Done, Failed, once};
use tokio_cron_scheduler::{Job, JobSchedulerError};

/// The job with a cron expression, in UTC: `0 0 3 * * *` is 3 o'clock. `period` is called at each start, and
/// `told` with the outcome of each run.
///
/// The library starts a job even while its last run goes on. The lock keeps those apart too.
///
/// # Errors
/// If `cron` is not a cron expression.
pub fn job(
    client: Client,
    cron: &str,
    period: impl Fn() -> String + Clone + Send + Sync + 'static,
    told: impl Fn(Result<Done, Failed>) + Clone + Send + Sync + 'static,
) -> Result<Job, JobSchedulerError> {
    Job::new_async(cron, move |_id, _scheduler| {
        let (client, period, told) = (client.clone(), period(), told.clone());
        Box::pin(async move {
            let hour = Duration::from_secs(3600);
            told(once(&client, "nightly-report", &period, hour, |_held| report()).await);
        })
    })
}

/// The work. Its writes should go through a gate: see `row.rs`.
async fn report() -> Result<(), Failed> {
    println!("reporting");
    Ok(())
}
