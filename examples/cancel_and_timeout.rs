//! Giving up: by a wait limit, by dropping the future, and by losing the lock.
//!
//! `cargo run --example cancel_and_timeout`
#![allow(clippy::print_stdout)] // showing is what it is for

use std::time::Duration;

use dlock::{ErrorKind, LockOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = dlock::connect("memory://").await?;
    let lock = client.lock("printer")?;
    let guard = lock.acquire().await?;

    // A wait limit: afterwards nothing is held and nothing is queued.
    let error = lock
        .acquire_timeout(Duration::from_millis(50))
        .await
        .expect_err("it is held");
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::Timeout);

    // Dropping the future, here by `select!`: the same, at whatever point it is dropped. A drop cannot wait
    // for a store, so the entry is withdrawn in the background.
    tokio::select! {
        _ = lock.acquire() => unreachable!("it is held"),
        () = tokio::time::sleep(Duration::from_millis(50)) => println!("stopped waiting"),
    }
    let withdrawn = async {
        while client.inspect("printer").await?.waiting > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok::<(), dlock::Error>(())
    };
    tokio::time::timeout(Duration::from_secs(5), withdrawn).await??;
    guard.release().await?;

    // A body that runs under the lock is dropped where it is when the lock is lost: here an operator breaks
    // it.
    let short = LockOptions::new().ttl(Duration::from_millis(300));
    let lock = client.lock("printer")?.options(short)?;
    let printing = lock.with(|held| async move {
        println!("printing, with token {:?}", held.token());
        tokio::time::sleep(Duration::from_secs(3600)).await;
    });
    let operator = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.force_release("printer").await
    };
    let (printed, broken) = tokio::join!(printing, operator);
    println!(
        "broken by an operator: {} hold; {}",
        broken?,
        printed.expect_err("it was lost")
    );
    client.close().await?;
    Ok(())
}
