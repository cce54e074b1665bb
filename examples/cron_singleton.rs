//! A job that several machines start at the same minute, and that must run once.
//!
//! `cargo run --example cron_singleton [URL]`: start it several times at once; one does the job, the others
//! skip.
//!
//! Exit code 0: the job is done, by this process or by another. Anything else: it is not known to be, such as
//! after a lost lock.
#![allow(clippy::print_stdout)] // showing is what it is for

use std::time::Duration;

use dlock::{ErrorKind, LockOptions};

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
        // Only the first has anything to do: no waiting.
        .wait_limit(Duration::ZERO)
        // A job that is through in a moment must not run again on a machine that starts it a moment later.
        .min_hold(Duration::from_secs(5))
        // A job that hangs must not keep the next one from running for ever.
        .max_hold(Duration::from_secs(3600))
        .owner_label(format!("cron, process {}", std::process::id()));
    let lock = client.lock("nightly-report")?.options(options)?;
    // When the lock is lost, by that hour or otherwise, the job is dropped where it is: from then on another
    // machine may run it.
    let done = lock
        .with(|held| async move {
            println!("running, with token {:?}", held.token());
            tokio::time::sleep(Duration::from_secs(1)).await;
        })
        .await;
    match done {
        Ok(()) => println!("done; taken for a few seconds yet"),
        Err(e) if e.kind() == ErrorKind::Timeout => {
            let now = client.inspect("nightly-report").await?;
            let by = now
                .holders
                .first()
                .and_then(|h| h.owner.as_deref())
                .unwrap_or("somebody");
            println!("skipped: it is done by {by}");
        }
        // Lost in the middle, or the store is away: a scheduler that looks at the exit code learns of it.
        Err(e) => return Err(e.into()),
    }
    client.close().await?;
    Ok(())
}
