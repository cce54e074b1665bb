//! Runs the job at 3 o'clock in UTC, on one of the machines that run this:
//! `DLOCK_URL=... cargo run --manifest-path examples/cron_library/Cargo.toml`

use std::error::Error;

use chrono::Utc;
use dlock_recipes::{backend, shutdown};
use tokio_cron_scheduler::JobScheduler;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = backend::connect().await?;
    let today = || Utc::now().date_naive().to_string();
    let job = cron_library::job(client.clone(), "0 0 3 * * *", today, |done| println!("{done:?}"))?;
    let mut scheduler = JobScheduler::new().await?;
    scheduler.add(job).await?;
    scheduler.start().await?;
    shutdown::requested().await?;
    scheduler.shutdown().await?;
    // Cancels a job that still runs. Its period is not recorded, so another machine does it.
    client.close().await?;
    Ok(())
}
