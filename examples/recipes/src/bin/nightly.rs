//! A job for the crontab of every machine. It is done once for each day that is given:
//!
//! `0 3 * * *  DLOCK_URL=... nightly "$(date +\%F)"`
#![allow(clippy::print_stdout)] // showing is what it is for

use std::time::Duration;

use dlock_recipes::backend;
use dlock_recipes::once::{Failed, once};

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let day = std::env::args().nth(1).ok_or("usage: nightly YYYY-MM-DD")?;
    let client = backend::connect().await?;
    let hour = Duration::from_secs(3600);
    let done = once(&client, "nightly-report", &day, hour, async |held| {
        println!("running for {day}, with token {:?}", held.token());
        Ok(())
    })
    .await;
    client.close().await?;
    println!("{:?}", done?);
    Ok(())
}
