//! One process of the service. It campaigns, and schedules while it leads.

use std::error::Error;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock::{Access, Client, Held, LockOptions};

/// The election, and the resource that only its leader may write.
pub(crate) const SCHEDULER: &str = "scheduler";

/// How long a leader that says nothing more still leads.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// Between two writes.
const TICK: Duration = Duration::from_millis(50);

static TOLD_TO_END: AtomicBool = AtomicBool::new(false);

pub(crate) fn run(url: &str) -> Result<(), Box<dyn Error>> {
    // It ends as soon as it leads, when a line has come.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
        TOLD_TO_END.store(true, Ordering::Relaxed);
    });
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio.block_on(async {
        let client = dlock::connect(url).await?;
        let election = client
            .election(SCHEDULER)?
            .value(std::process::id().to_string())?
            .options(LockOptions::new().ttl(LEASE))?;
        election
            .lead(async |leadership| match schedule(&client, &leadership).await {
                Ok(done) => done,
                // Another one may have more luck with the store, and goes first.
                Err(e) => {
                    eprintln!("candidate {}: {e}", std::process::id());
                    ControlFlow::Continue(())
                }
            })
            .await?;
        Ok(client.close().await?)
    })
}

/// The work of a leader. It is cancelled at an `await` when the leadership is lost.
async fn schedule(client: &Client, leadership: &Held) -> dlock::Result<ControlFlow<()>> {
    let token = leadership.token().expect("Redis gives tokens");
    let gate = client.gate()?;
    // The leader before may stand still in the midst of a write. From here on the gate keeps it out; only
    // then is what stands there read.
    if !gate
        .admit(SCHEDULER, token, Access::Exclusive)
        .await?
        .is_admitted()
    {
        return Ok(ControlFlow::Continue(()));
    }
    let _over = Over(token.get());
    while !TOLD_TO_END.load(Ordering::Relaxed) {
        let value = gate.read(SCHEDULER).await?.map(|fenced| fenced.value);
        let count = value.and_then(|bytes| String::from_utf8(bytes).ok()?.parse().ok());
        let count: u64 = count.unwrap_or(0) + 1;
        if !gate
            .write(SCHEDULER, token, count.to_string().as_bytes())
            .await?
            .is_admitted()
        {
            return Ok(ControlFlow::Continue(()));
        }
        say(format_args!("token {token} wrote {count}"));
        tokio::time::sleep(TICK).await;
    }
    Ok(ControlFlow::Break(()))
}

/// Says that the work of a leader has ended, whichever way.
struct Over(u64);

impl Drop for Over {
    fn drop(&mut self) {
        say(format_args!("token {} over", self.0));
    }
}

fn say(line: std::fmt::Arguments<'_>) {
    println!("{line}");
    // Nobody reads any more: then nobody misses it.
    let _ = std::io::stdout().flush();
}
