//! The processes that want something: each is a client of its own, as a service on another machine would be.

use std::error::Error;
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Duration;

use dlock::{Admission, AutoRenew, Client, Guard, LockOptions};

/// The lock, and the resource that it guards.
pub(crate) const STOCK: &str = "stock";

/// How long the lease of a holder lives that is going to be killed or paused.
pub(crate) const LEASE: Duration = Duration::from_millis(1500);

/// How long a purchase takes. Long enough that buyers without a lock meet.
const THINKING: Duration = Duration::from_millis(30);

pub(crate) fn run(role: &str, directory: &Path) -> Result<(), Box<dyn Error>> {
    if role == "unlocked" {
        return buy_without_lock(&directory.join("stock.txt"));
    }
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    tokio.block_on(async {
        let client = connect(directory).await?;
        match role {
            "buyer" => buy(&client).await,
            "killed" => hold_until_killed(&client).await,
            "paused" => hold_while_paused(&client).await,
            _ => Err(format!("there is no role {role}").into()),
        }
    })
}

pub(crate) async fn connect(directory: &Path) -> Result<Client, Box<dyn Error>> {
    let file = directory.join("shop.sqlite");
    Ok(dlock::connect(format!("sqlite://{}", file.display())).await?)
}

/// Buys one item under the lock, if there is one.
async fn buy(client: &Client) -> Result<(), Box<dyn Error>> {
    ready()?;
    let options = LockOptions::new()
        .ttl(Duration::from_secs(10))
        .wait_limit(Duration::from_secs(30));
    let guard = client.lock(STOCK)?.options(options)?.acquire().await?;
    let token = guard.token().ok_or("SQLite gives tokens")?;
    let left = items_left(client).await?;
    tokio::time::sleep(THINKING).await;
    if left == 0 {
        say(&format!("token {token} soldout"));
    } else {
        // Check and write in one step: had somebody with a newer token been here, this would change nothing.
        match write(client, &guard, left - 1).await? {
            Admission::Admitted => say(&format!("token {token} bought")),
            _ => return Err("the fence refused a holder in good standing".into()),
        }
    }
    guard.release().await?;
    Ok(())
}

/// Holds the lock, renewing it, until somebody kills this process.
async fn hold_until_killed(client: &Client) -> Result<(), Box<dyn Error>> {
    let guard = client
        .lock(STOCK)?
        .options(LockOptions::new().ttl(LEASE))?
        .acquire()
        .await?;
    say(&format!(
        "token {} held",
        guard.token().ok_or("SQLite gives tokens")?
    ));
    guard.lost().await;
    Err("the lock was lost before anybody killed this process".into())
}

/// Holds the lock while this process is stopped for longer than the lease, and then writes late.
async fn hold_while_paused(client: &Client) -> Result<(), Box<dyn Error>> {
    let options = LockOptions::new().ttl(LEASE).auto_renew(AutoRenew::Off);
    let guard = client.lock(STOCK)?.options(options)?.acquire().await?;
    let lost = guard.lost();
    let token = guard.token().ok_or("SQLite gives tokens")?;
    say(&format!("token {token} held"));
    // Stopped here; the line comes when the process goes on.
    tokio::task::spawn_blocking(wait_for_line).await??;
    if guard.is_valid() {
        return Err("the guard thinks that it is valid, after its lease".into());
    }
    say(&format!("token {token} told: {}", lost.await));
    match write(client, &guard, 99).await? {
        Admission::Refused { highest } => say(&format!("token {token} refused by {highest}")),
        _ => return Err("the fence let a late write through".into()),
    }
    Ok(())
}

/// How many items the fenced resource says are left.
pub(crate) async fn items_left(client: &Client) -> Result<u8, Box<dyn Error>> {
    let stock = client.gate()?.read(STOCK).await?;
    Ok(stock.and_then(|s| s.value.first().copied()).unwrap_or(0))
}

/// Writes how many are left, unless somebody with a newer token has written.
pub(crate) async fn write(client: &Client, guard: &Guard, left: u8) -> Result<Admission, Box<dyn Error>> {
    let token = guard.token().ok_or("SQLite gives tokens")?;
    Ok(client.gate()?.write(STOCK, token, &[left]).await?)
}

/// What happens without a lock: between looking and taking, others look too.
fn buy_without_lock(file: &Path) -> Result<(), Box<dyn Error>> {
    ready()?;
    let left: u32 = std::fs::read_to_string(file)?.trim().parse()?;
    std::thread::sleep(THINKING);
    if left == 0 {
        say("soldout");
    } else {
        std::fs::write(file, (left - 1).to_string())?;
        say("bought");
    }
    Ok(())
}

/// Says that this process is up, and waits for the start.
fn ready() -> Result<(), Box<dyn Error>> {
    say("ready");
    Ok(wait_for_line()?)
}

fn wait_for_line() -> std::io::Result<()> {
    std::io::stdin().lock().read_line(&mut String::new()).map(|_| ())
}

fn say(line: &str) {
    println!("{line}");
    // Nobody reads any more: then nobody misses it.
    let _ = std::io::stdout().flush();
}
