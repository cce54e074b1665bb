//! Why a token: a holder that was paused does not know that it lost the lock, but the resource does.
//!
//! `cargo run --example fencing_token`
#![allow(clippy::print_stdout)] // showing is what it is for

use std::time::Duration;

use dlock::{Admission, AutoRenew, LockName, LockOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = dlock::connect("memory://").await?;
    let account = LockName::new("account/7")?;
    let short = LockOptions::new()
        .ttl(Duration::from_millis(100))
        .auto_renew(AutoRenew::Off);

    let paused = client.lock(&account)?.options(short)?.acquire().await?;
    let old = paused.token().ok_or("this backend gives tokens")?;
    // A long garbage collection, a laptop lid, a debugger: longer than the lease.
    tokio::time::sleep(Duration::from_millis(300)).await;

    let next = client.lock(&account)?.acquire().await?;
    let new = next.token().ok_or("this backend gives tokens")?;
    let gate = client.gate()?;
    assert_eq!(
        gate.write(&account, new, b"balance 90").await?,
        Admission::Admitted
    );
    println!("token {new} wrote");

    match gate.write(&account, old, b"balance 100").await? {
        Admission::Refused { highest } => println!("token {old} is refused: {highest} has been here"),
        other => return Err(format!("a stale write came through: {other:?}").into()),
    }
    // The guard knows it as well, by the clock alone. The fence is for the moment between looking and
    // writing.
    assert!(!paused.is_valid());
    println!("lost, because {}", paused.lost().await);
    next.release().await?;
    client.close().await?;
    Ok(())
}
