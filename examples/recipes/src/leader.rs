//! A service of which one instance leads and does periodic work.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::time::Duration;

use dlock::{Client, Error, ErrorKind, Held, LockName};
use tokio::time::MissedTickBehavior;

use crate::row;

/// The election, and the row that its leader counts in.
pub const NAME: &str = "scheduler";

/// Campaigns, leads and campaigns again, until `shutdown` completes. `me` is what others see of this leader.
///
/// When the leadership is lost, the work is dropped at the await where it is, and the loop goes on.
/// `shutdown` drops the work in the same way. The leadership is then resigned in the background, and
/// [`Client::close`] waits for that.
///
/// # Errors
/// Those of [`dlock::Election::lead`].
pub async fn run(client: &Client, me: &str, every: Duration, shutdown: impl Future) -> dlock::Result<()> {
    let election = client.election(NAME)?.value(me)?;
    let leading = election.lead(async |leadership| {
        let mut ticks = tokio::time::interval(every);
        // After a pause there is nothing to catch up with: the next tick is a full period later.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(e) = tick(client, &leadership).await {
                // Another instance may have more luck with the store. It goes first.
                eprintln!("{me} steps down: {e}");
                return ControlFlow::<Infallible>::Continue(());
            }
        }
    });
    tokio::select! {
        ended = leading => ended.map(|never| match never {}),
        _ = shutdown => Ok(()),
    }
}

/// The periodic work. A stale leader gets an error here, which ends its leadership.
async fn tick(client: &Client, leadership: &Held) -> dlock::Result<()> {
    let row = LockName::new(NAME)?;
    let count = match row::read(client, &row, leadership).await?.as_slice() {
        [] => 0,
        text => serde_json::from_slice::<u64>(text)
            .map_err(|e| Error::new(ErrorKind::BackendData, "the row holds no number").with_source(e))?,
    };
    row::write(client, &row, leadership, (count + 1).to_string().as_bytes()).await
}
