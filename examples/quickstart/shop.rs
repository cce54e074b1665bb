//! The process that starts the others, kills and stops them, and looks whether everything promised happened.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::buyer::{LEASE, STOCK, connect, items_left, write};
use crate::process::{Process, expect};

/// How much later than promised is still on time, on a busy machine.
const SLACK: Duration = Duration::from_secs(3);

/// How much earlier than the store says a lease may end: it was looked at a moment before the kill.
const MARGIN: Duration = Duration::from_millis(50);

const BUYERS: usize = 5;
const ITEMS: u8 = 2;

pub(crate) fn with_lock() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio.block_on(stock_up(directory.path()))?;

    println!("{BUYERS} buyers, {ITEMS} items, one lock:");
    let mut buyers = start_together(directory.path(), "buyer")?;
    let mut sales = Vec::new();
    for buyer in &mut buyers {
        let line = buyer.line()?;
        let (token, what) = token_and(&line)?;
        sales.push((token, buyer.pid(), what.to_owned()));
        buyer.finish()?;
    }
    sales.sort_unstable();
    for (token, pid, what) in &sales {
        println!("  process {pid} held the lock with token {token}: {what}");
    }
    let sold = sales.iter().filter(|s| s.2 == "bought").count();
    expect(
        sold == usize::from(ITEMS),
        &format!("{sold} items were sold, {ITEMS} were there"),
    )?;
    expect(
        sales.windows(2).all(|w| w[0].0 < w[1].0),
        "two holders had the same token",
    )?;
    expect(
        sales.iter().take(sold).all(|s| s.2 == "bought"),
        "somebody found it sold out before it was",
    )?;
    let left = tokio.block_on(async { items_left(&connect(directory.path()).await?).await })?;
    expect(left == 0, &format!("{left} items are left"))?;
    let mut highest = sales.last().map_or(0, |s| s.0);
    println!("  exactly {ITEMS} sold\n");

    println!("a holder with a lease of {LEASE:?} is killed:");
    let killed = Process::start("killed", directory.path())?;
    let (token, _) = expect_newer(&killed.line()?, &mut highest)?;
    let (looked, left) = tokio.block_on(lease_left(directory.path(), token))?;
    println!(
        "  process {} holds the lock with token {token}, for another {:.2} s ... SIGKILL",
        killed.pid(),
        left.as_secs_f64()
    );
    killed.signal(Signal::KILL)?;
    let mut next = Process::start("buyer", directory.path())?;
    next.line()?;
    next.go()?;
    let (token, _) = expect_newer(&next.line()?, &mut highest)?;
    let took = looked.elapsed();
    println!(
        "  process {} holds it with token {token}, {:.2} s later\n",
        next.pid(),
        took.as_secs_f64()
    );
    next.finish()?;
    // What the store said was left of the lease; a renewal on its way at the kill can only have made it
    // longer.
    expect(
        took + MARGIN > left,
        "the lock was given away before the lease ran out",
    )?;
    expect(
        took < LEASE + SLACK,
        "the lock was not free when the lease had run out",
    )?;

    println!("a holder is paused for longer than its lease:");
    let mut paused = Process::start("paused", directory.path())?;
    let (token, _) = expect_newer(&paused.line()?, &mut highest)?;
    println!(
        "  process {} holds the lock with token {token} ... SIGSTOP",
        paused.pid()
    );
    paused.signal(Signal::STOP)?;
    let newer = tokio.block_on(sell_meanwhile(directory.path()))?;
    expect(newer > highest, "a later holder did not get a larger token")?;
    println!("  this process holds it with token {newer}, and writes ... SIGCONT");
    paused.signal(Signal::CONT)?;
    paused.go()?;
    let told = paused.line()?;
    let (_, told) = token_and(&told)?;
    expect(
        told.starts_with("told"),
        "the paused holder was not told that it lost the lock",
    )?;
    println!("  process {} is {told}", paused.pid());
    let refused = paused.line()?;
    expect(
        refused.ends_with(&format!("refused by {newer}")),
        "the late write was not refused",
    )?;
    println!("  its late write with token {token} is refused: {newer} has been here");
    paused.finish()?;
    let left = tokio.block_on(async { items_left(&connect(directory.path()).await?).await })?;
    expect(left == 1, "the late write changed the stock")?;
    println!("\nevery promise was kept");
    Ok(())
}

pub(crate) fn without_lock() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("stock.txt");
    std::fs::write(&file, ITEMS.to_string())?;
    println!("{BUYERS} buyers, {ITEMS} items, no lock:");
    let mut sold = 0;
    for mut buyer in start_together(directory.path(), "unlocked")? {
        let line = buyer.line()?;
        println!("  process {}: {line}", buyer.pid());
        sold += usize::from(line == "bought");
        buyer.finish()?;
    }
    let left = std::fs::read_to_string(&file)?;
    println!("  {sold} items were sold of {ITEMS}, and the books say that {left} is left");
    expect(
        sold > usize::from(ITEMS),
        "nothing was oversold this time: the buyers did not meet",
    )?;
    println!("OVERSOLD by {}", sold - usize::from(ITEMS));
    Ok(())
}

/// Puts the items into the fenced resource, under the lock.
async fn stock_up(directory: &Path) -> Result<(), Box<dyn Error>> {
    let client = connect(directory).await?;
    let guard = client.lock(STOCK)?.acquire().await?;
    expect(
        write(&client, &guard, ITEMS).await?.is_admitted(),
        "the fence refused the first write",
    )?;
    guard.release().await?;
    Ok(client.close().await?)
}

/// Looks into the store: when, and how long the lease with that token lasts from then on unless it is
/// renewed.
async fn lease_left(directory: &Path, token: u64) -> Result<(Instant, Duration), Box<dyn Error>> {
    let client = connect(directory).await?;
    let looked = Instant::now();
    let now = client.inspect(STOCK).await?;
    client.close().await?;
    match &now.holders[..] {
        [holder] if holder.token.is_some_and(|t| t.get() == token) => Ok((looked, holder.expires_in)),
        others => Err(format!("the store does not say that token {token} holds it, but {others:?}").into()),
    }
}

/// Takes the lock after the paused holder's lease and writes; returns the token.
async fn sell_meanwhile(directory: &Path) -> Result<u64, Box<dyn Error>> {
    let client = connect(directory).await?;
    let guard = client.lock(STOCK)?.acquire_timeout(LEASE + SLACK).await?;
    expect(
        write(&client, &guard, 1).await?.is_admitted(),
        "the fence refused the newest holder",
    )?;
    let token = guard.token().ok_or("SQLite gives tokens")?.get();
    guard.release().await?;
    client.close().await?;
    Ok(token)
}

/// Starts the buyers and lets them go when all are up.
fn start_together(directory: &Path, role: &str) -> Result<Vec<Process>, Box<dyn Error>> {
    let mut all = Vec::new();
    for _ in 0..BUYERS {
        all.push(Process::start(role, directory)?);
    }
    for process in &mut all {
        expect(process.line()? == "ready", "a buyer did not get ready")?;
    }
    for process in &mut all {
        process.go()?;
    }
    Ok(all)
}

/// Takes apart `token 7 bought`.
fn token_and(line: &str) -> Result<(u64, &str), Box<dyn Error>> {
    let rest = line
        .strip_prefix("token ")
        .ok_or_else(|| format!("not understood: {line}"))?;
    let (token, what) = rest
        .split_once(' ')
        .ok_or_else(|| format!("not understood: {line}"))?;
    Ok((token.parse()?, what))
}

/// A later holder has a larger token than everybody before.
fn expect_newer<'a>(line: &'a str, highest: &mut u64) -> Result<(u64, &'a str), Box<dyn Error>> {
    let (token, what) = token_and(line)?;
    expect(
        token > *highest,
        &format!("token {token} is not larger than {highest}"),
    )?;
    *highest = token;
    Ok((token, what))
}
