//! The connection that listens, and the task that has it.
//!
//! What could go wrong, and why it does not:
//!
//! * *It breaks.* Those who wait are told that pushes have ended, and ask again; until there is another
//!   connection they look instead. The next one begins to listen before anybody is told of it, so nothing
//!   that is said after that is missed.
//! * *It hangs*, without an end: it is asked something after ten seconds of silence, and made anew when no
//!   answer comes. Until then those who wait are found by their own re-asks, at a third of their queue lease.
//! * *The runtime ends*: the task goes with it, and with it the client's keeper.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::runtime::yield_now;
use dlock_core::{Result, Runtime};
use futures::channel::oneshot;
use futures::future::{Either, FutureExt as _, select};
use sqlx::Executor as _;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};

use super::connection::{Db, Postgres};
use super::failure::nothing_done;
use super::pushes::Pushes;
use crate::lease::connecting::Closing;
use crate::lease::connection::runtime_ended;

/// After so much silence it is asked whether anybody is there, and has as long to answer.
const SILENCE: Duration = Duration::from_secs(10);

/// How long is waited before connecting again: this, then twice as long each time, and no longer than that.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Begins to listen; answers when it does.
pub(super) async fn listen(db: &Db) -> Result<()> {
    let Some(channel) = db.channel.clone() else {
        return Ok(());
    };
    let (send, receive) = oneshot::channel();
    let ear = Ear {
        options: db.options.clone(),
        channel,
        pushes: db.pushes.clone(),
        runtime: db.runtime.clone(),
        closing: db.closing.clone(),
        begun: Some(send),
    };
    db.runtime.spawn(ear.serve().boxed());
    match receive.await {
        Ok(begun) => begun.map_err(|e| nothing_done(e, &db.at)),
        Err(_) => Err(runtime_ended::<Postgres>()),
    }
}

struct Ear {
    options: PgConnectOptions,
    channel: Arc<str>,
    pushes: Arc<Pushes>,
    runtime: Arc<dyn Runtime>,
    closing: Closing,
    /// Who waits for the first of it.
    begun: Option<oneshot::Sender<Result<(), sqlx::Error>>>,
}

enum Heard {
    Message(String),
    Silence,
    /// The connection is gone.
    End,
    Closing,
}

impl Ear {
    async fn serve(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let connected = {
                let connecting = pin!(self.connect());
                match select(connecting, self.closing.clone()).await {
                    Either::Left((connected, _)) => connected,
                    Either::Right(_) => return,
                }
            };
            let failed = match connected {
                Ok(mut listener) => {
                    pause = FIRST_PAUSE;
                    self.pushes.connected();
                    if let Some(begun) = self.begun.take() {
                        let _ = begun.send(Ok(()));
                    }
                    let goes_on = self.hear(&mut listener).await;
                    drop(listener);
                    if !goes_on {
                        return;
                    }
                    self.pushes.disconnected();
                    None
                }
                Err(e) => Some(e),
            };
            if let (Some(e), Some(begun)) = (failed, self.begun.take()) {
                // Opening fails by this, and there is nobody to listen for.
                let _ = begun.send(Err(e));
                return;
            }
            if let Either::Right(_) = select(self.runtime.sleep(pause), self.closing.clone()).await {
                return;
            }
            yield_now().await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn connect(&self) -> Result<PgListener, sqlx::Error> {
        // A listener wants a pool. This one is for it alone.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(SILENCE)
            .connect_lazy_with(self.options.clone());
        let mut listener = PgListener::connect_with(&pool).await?;
        // It must say so when it broke, and not go on by itself.
        listener.eager_reconnect(false);
        listener.listen(&self.channel).await?;
        Ok(listener)
    }

    /// Hears until the connection breaks; `false` when the backend closes.
    async fn hear(&self, listener: &mut PgListener) -> bool {
        loop {
            match self.next(listener).await {
                Heard::Message(message) => self.pushes.hear(&message),
                Heard::Silence if self.is_there(listener).await => {}
                Heard::Silence | Heard::End => return true,
                Heard::Closing => return false,
            }
        }
    }

    async fn next(&self, listener: &mut PgListener) -> Heard {
        let received = pin!(listener.try_recv());
        let either = select(received, self.runtime.sleep(SILENCE));
        match select(either, self.closing.clone()).await {
            Either::Left((Either::Left((Ok(Some(n)), _)), _)) => Heard::Message(n.payload().to_owned()),
            Either::Left((Either::Left(_), _)) => Heard::End,
            Either::Left((Either::Right(_), _)) => Heard::Silence,
            Either::Right(_) => Heard::Closing,
        }
    }

    async fn is_there(&self, listener: &mut PgListener) -> bool {
        let asked = pin!(listener.execute("SELECT 1"));
        matches!(
            select(asked, self.runtime.sleep(SILENCE)).await,
            Either::Left((Ok(_), _))
        )
    }
}
