//! One lock over five independent Redis servers, held by the client that a majority grants it to: two of them
//! may fail.
//!
//! `cargo run --features redis --example redlock` starts five servers of its own, and stops them. With
//! `-- redis://a redis://b redis://c` it uses those, three or more.
//!
//! 1. A client gets the lock, with a token. Another one does not.
//! 2. A server is killed. The lock is held on, renewed at the others.
//! 3. It is released, and the other one gets it, with a larger token.
//! 4. A write with the old token, by a holder that was asleep, is refused by the resource.
#![allow(clippy::print_stdout)] // showing is what it is for

#[path = "redlock/servers.rs"]
mod servers;

use std::error::Error;
use std::time::Duration;

use dlock::{Admission, Client, LockOptions};
use servers::Servers;

const TTL: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    if !urls.is_empty() {
        return show(&urls, None).await;
    }
    let mut servers = Servers::start(5)?;
    show(&servers.urls(), Some(&mut servers)).await
}

/// Every process lists the same servers, in the same order. Of real ones that keep nothing over a restart,
/// give `?rejoin_after=` too: docs/redis.md.
async fn connect(urls: &[String]) -> dlock::Result<Client> {
    dlock::quorum(urls).defaults(LockOptions::new().ttl(TTL)).await
}

async fn show(urls: &[String], servers: Option<&mut Servers>) -> Result<(), Box<dyn Error>> {
    let (one, other) = (connect(urls).await?, connect(urls).await?);

    let guard = one.lock("stock/42")?.acquire().await?;
    let old = guard.token().ok_or("Redis gives tokens")?;
    println!("held with token {old}, for {:?} yet", guard.remaining());
    if other.lock("stock/42")?.try_acquire().await?.is_some() {
        return Err("two hold one lock".into());
    }
    println!("the other client is refused");

    if let Some(servers) = servers {
        servers.kill(0)?;
        println!("one of {} servers is killed", urls.len());
    }
    tokio::time::sleep(TTL * 2).await;
    if let Some(why) = guard.loss() {
        return Err(format!("lost, because {why}").into());
    }
    println!("two ttls later it is held yet, for {:?}", guard.remaining());
    guard.release().await?;

    let next = other.lock("stock/42")?.acquire().await?;
    let new = next.token().ok_or("Redis gives tokens")?;
    println!("released, and had by the other client with token {new}");

    // What the lock protects looks at tokens by itself: a table with a column for it, a file server. Here it
    // is in memory.
    let resource = dlock::connect("memory://").await?;
    let (gate, stock) = (resource.gate()?, "stock/42");
    if gate.write(stock, new, b"1 left").await? != Admission::Admitted {
        return Err("the holder's own write was refused".into());
    }
    match gate.write(stock, old, b"2 left").await? {
        Admission::Refused { highest } => println!("token {old} is refused: {highest} has been here"),
        other => return Err(format!("a stale write came through: {other:?}").into()),
    }
    next.release().await?;
    one.close().await?;
    other.close().await?;
    Ok(())
}
