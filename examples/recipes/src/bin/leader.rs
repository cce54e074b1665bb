//! One instance of a service with a leader: `DLOCK_URL=... cargo run -p dlock-recipes --bin leader`

use std::error::Error;
use std::time::Duration;

use dlock_recipes::{backend, leader, shutdown};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = backend::connect().await?;
    let me = format!("process {}", std::process::id());
    let led = leader::run(&client, &me, Duration::from_secs(1), shutdown::requested()).await;
    // Resigns, if it leads: the next one leads at once, and not after a ttl.
    client.close().await?;
    Ok(led?)
}
