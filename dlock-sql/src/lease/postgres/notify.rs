//! The connection that listens, and the task that has it.
//!
//! * *It breaks.* Waiters are told that pushes have ended, and ask again; until there is another connection
//!   they look instead. The next one begins to listen before any waiter is told of it, so nothing that is
//!   said after that is missed.
//! * *It hangs*: it is asked something after ten seconds of silence, and made anew when no answer comes.
//!   Until then waiters are found by their own re-asks, at a third of their queue lease.
//! * *The runtime ends*: the task goes with it, and with it the client's keeper.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::runtime::yield_now;
use dlock_core::{Result, Runtime};
use futures::channel::oneshot;
use sqlx::Executor as _;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};

use super::Db;
use super::wait::Pushes;
use crate::lease::connection::within;
use crate::lease::failure::{nothing_done, runtime_ended};

/// After that much silence the server is pinged, and has as long to answer.
const SILENCE: Duration = Duration::from_secs(10);

/// How long is waited before connecting again: this, then twice as long each time, and no longer than that.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Begins to listen; answers when it does.
pub(super) async fn listen(db: &Arc<Db>) -> Result<()> {
    let Some(channel) = db.channel.clone() else {
        return Ok(());
    };
    let (send, begun) = oneshot::channel();
    let (options, pushes, runtime) = (db.options.clone(), db.pushes.clone(), db.runtime.clone());
    // Nothing in it keeps the backend from being dropped.
    db.spawn(async move {
        let (mut begun, mut pause) = (Some(send), FIRST_PAUSE);
        loop {
            match (connect(&options, &channel).await, begun.take()) {
                (Ok(mut listener), first) => {
                    pause = FIRST_PAUSE;
                    pushes.connected();
                    first.map(|begun| begun.send(Ok(())));
                    hear(&mut listener, &pushes, &*runtime).await;
                    drop(listener);
                    pushes.disconnected();
                }
                // Opening fails by this, and there is no waiter yet.
                (Err(e), Some(begun)) => return drop(begun.send(Err(e))),
                (Err(_), None) => {}
            }
            runtime.sleep(pause).await;
            yield_now().await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    });
    match begun.await {
        Ok(begun) => begun.map_err(|e| nothing_done(e, &db.at)),
        Err(_) => Err(runtime_ended()),
    }
}

async fn connect(options: &PgConnectOptions, channel: &str) -> Result<PgListener, sqlx::Error> {
    // A listener wants a pool. This one is for it alone.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(SILENCE)
        .connect_lazy_with(options.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    // It must report a break, and not reconnect on its own.
    listener.eager_reconnect(false);
    listener.listen(channel).await?;
    Ok(listener)
}

/// Hears until the connection breaks.
async fn hear(listener: &mut PgListener, pushes: &Pushes, runtime: &dyn Runtime) {
    loop {
        match within(runtime.sleep(SILENCE), listener.try_recv()).await {
            Some(Ok(Some(message))) => pushes.hear(message.payload()),
            Some(_) => return,
            None => {
                let asked = within(runtime.sleep(SILENCE), listener.execute("SELECT 1")).await;
                if !matches!(asked, Some(Ok(_))) {
                    return;
                }
            }
        }
    }
}
