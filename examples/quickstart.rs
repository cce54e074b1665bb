//! Run it in two terminals: only one at a time does the work.
//!
//! `cargo run --example quickstart [URL]`

use std::time::Duration;

use dlock::LockOptions;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| {
        let file = std::env::temp_dir().join("dlock-quickstart.sqlite");
        format!("sqlite://{}", file.display())
    });
    let client = dlock::connect(url).await?;
    let options = LockOptions::new()
        .ttl(Duration::from_secs(5))
        .wait_limit(Duration::from_secs(60));
    let lock = client.lock("nightly-report")?.options(options)?;

    say("waiting for the lock `nightly-report`");
    let guard = lock.acquire().await?;
    let token = guard.token().map_or("none".to_owned(), |token| token.to_string());
    say(&format!(
        "held, with fencing token {token}; valid for {:.1?} yet, and renewed meanwhile",
        guard.remaining()
    ));

    for step in 1..=3 {
        // Work in steps, and look between them whether the lock is still ours.
        tokio::time::sleep(Duration::from_secs(1)).await;
        if let Some(reason) = guard.loss() {
            return Err(format!("lost the lock in step {step}, so this stops here: {reason}").into());
        }
        say(&format!("step {step} of 3 done"));
    }

    guard.release().await?;
    say("released");
    client.close().await?;
    Ok(())
}

#[allow(clippy::print_stdout)] // this is what the example is for
fn say(what: &str) {
    println!("[{}] {what}", std::process::id());
}
