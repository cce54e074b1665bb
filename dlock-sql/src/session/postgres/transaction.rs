//! Locks that live as long as the caller's transaction.

use std::sync::Arc;

use dlock_core::{Capabilities, LockName, Result, Token};
use sqlx::{AssertSqlSafe, Postgres, Transaction};

use super::schema::{AGE, RUN, draw};
use crate::session::dialect::Site;
use crate::session::failure::{Failed, token};
use crate::session::keys::Key;

/// Locks in a transaction of yours: taken in it, and given back by its end, be it a commit, a rollback or the
/// loss of its connection. They are those of [`SessionLock`](crate::session::SessionLock) with that prefix in
/// that schema: the two exclude one another, and their tokens come from one sequence.
///
/// # What it guarantees
///
/// * The lock is held until the transaction has ended, and what the transaction did is to be seen when the
///   next holder has the lock. So what is written *in that transaction* needs no fence and no deadline: if
///   the lock is lost, so is the write.
/// * It works through poolers that share sessions: for the time of a transaction a session is its own.
///
/// # What it does not
///
/// * There is no ttl, no renewal, and no word of a loss but the failure of the next statement. A client that
///   stands still holds the lock as long as its transaction is open: set
///   `idle_in_transaction_session_timeout`.
/// * A transaction that holds the lock is let in again, with a new token. Going back to a savepoint gives
///   back what was taken after it. An error ends a transaction, also that of a `lock_timeout` of yours.
#[derive(Clone, Debug)]
pub struct TransactionLocks {
    space: Arc<str>,
    try_lock: Arc<str>,
    lock: Arc<str>,
    at: Arc<str>,
}

impl TransactionLocks {
    pub(in crate::session) fn new(site: &Site) -> Self {
        let (token, grace) = (draw(&site.quoted), &site.grace);
        // How many seconds are left of the grace after a restart.
        let mut left = format!("greatest({} - {AGE}, 0)", grace.lasts.as_secs_f64());
        if let Some(run) = &grace.made_in {
            let run = run.replace('\'', "''");
            left = format!("CASE WHEN {RUN} = '{run}' THEN 0 ELSE {left} END");
        }
        // In one statement, as in the session locks: only the holder draws a token.
        let try_lock = format!(
            "SELECT CASE WHEN {left} > 0 THEN NULL WHEN pg_try_advisory_xact_lock($1) THEN {token} END"
        );
        // Neither is ever null, and they are evaluated in that order.
        let lock = format!(
            "SELECT CASE WHEN pg_sleep({left}) IS NULL THEN NULL WHEN pg_advisory_xact_lock($1) IS NULL \
             THEN NULL ELSE {token} END"
        );
        Self {
            space: site.space.as_str().into(),
            try_lock: try_lock.into(),
            lock: lock.into(),
            at: site.at.as_str().into(),
        }
    }

    /// Takes the lock, and waits for it as long as it takes, or as long as the `lock_timeout` of the
    /// transaction. The token is larger than that of any holder before.
    ///
    /// # Cancel safety
    /// Dropped, the lock may be taken or not, and the wait goes on in the server until the transaction is
    /// rolled back, which dropping it does: roll it back.
    ///
    /// # Errors
    /// `InvalidInput` for too long a name; `Unavailable` if the wait was ended or the connection is;
    /// otherwise as [`Config::connect`](crate::session::Config::connect). After an error the transaction is
    /// over.
    pub async fn lock(&self, tx: &mut Transaction<'_, Postgres>, name: &LockName) -> Result<Token> {
        let drawn = self.ask(tx, name, &self.lock).await?;
        self.token(name, drawn.unwrap_or(0))
    }

    /// Takes the lock if it is free; `None` if it is not.
    ///
    /// # Cancel safety
    /// Dropped, the lock may be taken or not: roll the transaction back.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn try_lock(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        name: &LockName,
    ) -> Result<Option<Token>> {
        let drawn = self.ask(tx, name, &self.try_lock).await?;
        drawn.map(|drawn| self.token(name, drawn)).transpose()
    }

    fn token(&self, name: &LockName, drawn: i64) -> Result<Token> {
        token(drawn, &self.at).map_err(|failed| failed.error.with_name(name))
    }

    async fn ask(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        name: &LockName,
        sql: &Arc<str>,
    ) -> Result<Option<i64>> {
        Capabilities::new("postgres-session").check_name(name)?;
        let key = Key::new(&self.space, name, Key::OF_POSTGRES);
        // Not prepared under a name: the next transaction may be in another session.
        let asked = sqlx::query_scalar(AssertSqlSafe(sql.clone()))
            .bind(key.as_i64())
            .persistent(false);
        let answer = asked.fetch_one(&mut **tx).await;
        answer.map_err(|e| Failed::of(e, &self.at).error.with_name(name))
    }
}
