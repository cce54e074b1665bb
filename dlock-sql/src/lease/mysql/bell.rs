//! A doorbell: a client that hands a lock to a waiter of another client makes that one poll.
//!
//! The server pushes nothing. But a statement that sleeps can be ended by another session of the same account
//! (`KILL QUERY`), without any privilege. So a client that waits has a connection that only sleeps, with the
//! number of the client in the text of its statement. A client that offers it a lease finds the statement in
//! the list of processes, and ends it.
//!
//! What could go wrong, and costs no more than the time to the next look:
//! * *The statement is not there*: not yet, not just then, at another server of a cluster, or under another
//!   account, whose statements are not listed.
//! * *The bell cannot connect, or breaks*: waiters poll as often as without one until there is another.
//! * *It rings for nothing*: one poll.
//! * *Ringing takes two seconds*, as it does now and then in MariaDB 10.11 while several ring at once. So it
//!   has a connection of its own, or requests would wait for it.
//!
//! No other statement is ever ended: numbers of connections are not reused while a server runs, and the
//! connection with that number was only sleeping a moment ago.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::spi::Signal;
use dlock_core::{RequestId, Runtime, Timestamp};
use futures::StreamExt as _;
use futures::channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use sqlx::mysql::{MySqlConnection, MySqlDatabaseError};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use super::Db;
use crate::lease::connection::within;

/// The shortest and the longest pause between a waiter's polls, without a bell and with one.
const LOOKS: [(Duration, Duration); 2] = [
    (Duration::from_millis(5), Duration::from_millis(100)),
    (Duration::from_millis(20), Duration::from_millis(200)),
];

/// How long the statement sleeps. Without a waiter by then, the bell ends.
const SLEEP: Duration = Duration::from_secs(5);

/// After a bell has failed there is no other for so long.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// The error of a statement that was ended.
const INTERRUPTED: u16 = 1317;

/// The bells of a database, one for each client of this process that has waited lately.
#[derive(Default)]
pub(super) struct Bells {
    /// Whether each sleeps.
    hung: Mutex<HashMap<u128, bool>>,
    /// The time of the last poll.
    looked: AtomicU64,
    /// The clients to wake, while there is a connection for that.
    ringing: Mutex<Option<UnboundedSender<u128>>>,
    clients: Mutex<Vec<UnboundedSender<Signal>>>,
}

impl Bells {
    /// What one more client hears.
    pub(super) fn rings(&self) -> BoxStream<'static, Signal> {
        let (send, rings) = mpsc::unbounded();
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        // Those who left are not kept for want of a ring.
        clients.retain(|client| !client.is_closed());
        clients.push(send);
        rings.boxed()
    }

    pub(super) fn are_wanted(&self) {
        self.looked.store(Timestamp::now().as_nanos(), Ordering::Relaxed);
    }

    fn hung(&self) -> MutexGuard<'_, HashMap<u128, bool>> {
        self.hung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rang(&self) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|client| client.unbounded_send(Signal::Changed).is_ok());
    }
}

fn mark(client: u128) -> String {
    format!("/*dlock bell {client:032x}*/")
}

impl Db {
    /// A client begins to wait, and has a bell from soon on. Answers how often it is to look.
    pub(super) fn hang_bell(self: &Arc<Self>, client: u128) -> (Duration, Duration) {
        self.bells.are_wanted();
        let mut hung = self.bells.hung();
        let sleeps = hung.get(&client).copied();
        if sleeps.is_none() {
            hung.insert(client, false);
            let (connecting, bells, runtime) = (
                self.connecting(Vec::new()),
                self.bells.clone(),
                self.runtime.clone(),
            );
            // Nothing in it keeps the backend from being dropped, and it ends with that.
            self.spawn(async move {
                if sleep(connecting, &bells, &*runtime, client).await.is_err() {
                    bells.hung().insert(client, false);
                    runtime.sleep(AFTER_FAILURE).await;
                    bells.hung().remove(&client);
                }
            });
        }
        LOOKS[usize::from(sleeps.unwrap_or(false))]
    }

    /// Wakes those who were offered a lease, and are not of this process.
    pub(super) fn ring(self: &Arc<Self>, offered: &[RequestId]) {
        let mut clients: Vec<_> = offered.iter().map(RequestId::client).collect();
        clients.sort_unstable();
        clients.dedup();
        let hung = self.bells.hung();
        let (ours, others): (Vec<_>, Vec<_>) = clients.into_iter().partition(|c| hung.contains_key(c));
        drop(hung);
        if !ours.is_empty() {
            self.bells.rang();
        }
        for client in others {
            let mut ringing = self.bells.ringing.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(ringing) = &*ringing
                && ringing.unbounded_send(client).is_ok()
            {
                continue;
            }
            let (send, whom) = mpsc::unbounded();
            // It is read from below.
            let _ = send.unbounded_send(client);
            *ringing = Some(send);
            let (connecting, runtime) = (self.connecting(Vec::new()), self.runtime.clone());
            self.spawn(async move {
                let mut whom = whom;
                if ring(connecting, &mut whom, &*runtime).await.is_err() {
                    runtime.sleep(AFTER_FAILURE).await;
                }
            });
        }
    }
}

/// Ends sleeping statements, until there was no client to wake for a while. No request waits for that.
async fn ring(
    connecting: BoxFuture<'static, sqlx::Result<MySqlConnection>>,
    whom: &mut UnboundedReceiver<u128>,
    runtime: &dyn Runtime,
) -> sqlx::Result<()> {
    let mut conn = connecting.await?;
    while let Some(Some(client)) = within(runtime.sleep(SLEEP), whom.next()).await {
        let mut clients = vec![client];
        while let Ok(client) = whom.try_recv() {
            clients.push(client);
        }
        clients.sort_unstable();
        clients.dedup();
        let marks: Vec<_> = clients
            .into_iter()
            .map(|c| format!("info LIKE '{}%'", mark(c)))
            .collect();
        let find = format!(
            "SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE {}",
            marks.join(" OR ")
        );
        for sleeper in conn.fetch_all(sqlx::raw_sql(AssertSqlSafe(find))).await? {
            let id: i64 = sleeper.try_get(0)?;
            let end = format!("KILL QUERY {id}");
            match conn.execute(sqlx::raw_sql(AssertSqlSafe(end))).await {
                // It may have gone meanwhile.
                Ok(_) | Err(sqlx::Error::Database(_)) => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(())
}

/// Sleeps, and rings when that is ended, as long as there is a waiter.
async fn sleep(
    connecting: BoxFuture<'static, sqlx::Result<MySqlConnection>>,
    bells: &Bells,
    runtime: &dyn Runtime,
    client: u128,
) -> sqlx::Result<()> {
    let mut conn = connecting.await?;
    // A statement that is meant to take long is no news for the log of slow ones.
    conn.execute(sqlx::raw_sql("SET SESSION long_query_time = 3600"))
        .await?;
    let text = format!("{} DO SLEEP({})", mark(client), SLEEP.as_secs());
    bells.hung().insert(client, true);
    loop {
        let since = Timestamp::now();
        let slept = within(
            runtime.sleep(SLEEP * 2),
            conn.execute(sqlx::raw_sql(AssertSqlSafe(text.clone()))),
        );
        match slept.await {
            Some(Err(e)) if !is_interrupted(&e) => return Err(e),
            // Some servers call it an error, and some do not.
            Some(_) if Timestamp::now().since(since) < SLEEP => bells.rang(),
            Some(_) => {}
            None => return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
        // A new waiter looks first, and then finds it gone.
        let mut hung = bells.hung();
        let looked = Timestamp::from_nanos(bells.looked.load(Ordering::Relaxed));
        if Timestamp::now().since(looked) > SLEEP {
            hung.remove(&client);
            return Ok(());
        }
    }
}

fn is_interrupted(e: &sqlx::Error) -> bool {
    let told = e.as_database_error();
    told.and_then(|e| e.try_downcast_ref::<MySqlDatabaseError>())
        .is_some_and(|e| e.number() == INTERRUPTED)
}
