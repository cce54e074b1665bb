//! A job that several machines start at the same minute, and that must run once.
//!
//! `cargo run --example cron_singleton [URL]`: start it several times at once; one does the job, the others skip.
#![allow(clippy::print_stdout)] // showing is what it is for

use std::time::Duration;

use dlock::LockOptions;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| {
        format!(
            "sqlite://{}",
            std::env::temp_dir().join("dlock-examples.sqlite").display()
        )
    });
    let client = dlock::connect(url).await?;
    let options = LockOptions::new()
        .ttl(Duration::from_secs(30))
        // A job that is through in a moment must not run again on a machine that starts it a moment later.
        .min_hold(Duration::from_secs(5))
        // A job that hangs must not keep the next one from running for ever.
        .max_hold(Duration::from_secs(3600))
        .owner_label(format!("cron, process {}", std::process::id()));
    let lock = client.lock("nightly-report")?.options(options)?;
    match lock.try_acquire().await? {
        None => {
            let now = client.inspect("nightly-report").await?;
            let by = now
                .holders
                .first()
                .and_then(|h| h.owner.as_deref())
                .unwrap_or("somebody");
            println!("skipped: it is done by {by}");
        }
        Some(guard) => {
            println!("running, with token {:?}", guard.token());
            tokio::time::sleep(Duration::from_secs(1)).await;
            guard.release().await?;
            println!("done; taken for a few seconds yet");
        }
    }
    client.close().await?;
    Ok(())
}
