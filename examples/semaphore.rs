//! At most three at once, wherever they run.
//!
//! `cargo run --example semaphore`
#![allow(clippy::print_stdout)] // showing is what it is for

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = dlock::connect("memory://").await?;
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut workers = Vec::new();
    for _ in 0..10 {
        let licences = client.semaphore("licences", 3)?;
        let (inside, most) = (inside.clone(), most.clone());
        workers.push(tokio::spawn(async move {
            let permit = licences.acquire().await?;
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            permit.release().await
        }));
    }
    for worker in workers {
        worker.await??;
    }
    println!(
        "ten workers, three licences: at most {} at once",
        most.load(Ordering::SeqCst)
    );
    assert_eq!(most.load(Ordering::SeqCst), 3);

    // Everybody gives the same number; another one is an error and not a second semaphore.
    let _one = client.semaphore("licences", 3)?.acquire().await?;
    let error = client
        .semaphore("licences", 4)?
        .try_acquire()
        .await
        .expect_err("three are not four");
    println!("with four licences: {error}");
    client.close().await?;
    Ok(())
}
