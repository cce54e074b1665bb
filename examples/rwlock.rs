//! Readers together, a writer alone, and a writer who becomes a reader without letting another writer in
//! between.
//!
//! `cargo run --example rwlock`
#![allow(clippy::print_stdout)] // showing is what it is for

use dlock::Upgrade;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = dlock::connect("memory://").await?;
    let prices = client.rwlock("prices")?;

    let (one, two) = (prices.read().acquire().await?, prices.read().acquire().await?);
    println!("two readers, tokens {:?} and {:?}", one.token(), two.token());
    assert!(
        prices.write().try_acquire().await?.is_none(),
        "readers keep a writer out"
    );

    // An upgrade never waits, so two readers who both want it cannot wait for one another.
    assert_eq!(one.try_upgrade().await?, Upgrade::Busy);
    two.release().await?;
    assert_eq!(one.try_upgrade().await?, Upgrade::Done);
    println!("the last reader became the writer, with token {:?}", one.token());

    let reading = tokio::spawn({
        let prices = prices.clone();
        async move { prices.read().acquire().await }
    });
    one.downgrade().await?;
    let three = reading.await??;
    println!(
        "the writer became a reader, and a waiting reader came in: token {:?}",
        three.token()
    );
    drop(one);
    three.release().await?;
    client.close().await?;
    Ok(())
}
