//! The fence gate: in this backend's own tables, and inside a transaction of yours.
//!
//! The lock says who *should* write; the gate makes sure that nobody else *does*: a holder that was paused
//! past its lease comes back with a token that a later holder has overtaken, and is refused.
//!
//! What a bare check followed by a write cannot do (a newer holder comes in between), [`admit_in`] does: the
//! check is part of the transaction that writes, and keeps the resource's row locked until that ends.
//!
//! ```no_run
//! # async fn f(pool: sqlx::PgPool, locks: dlock_sql::lease::postgres::PostgresLease, token: dlock_core::Token) -> Result<(), Box<dyn std::error::Error>> {
//! use dlock_core::{Access, LockName};
//!
//! let stock = LockName::new("stock")?;
//! let gate = locks.transaction_gate();
//! let mut tx = pool.begin().await?;
//! if gate.admit_in(&mut tx, &stock, token, Access::Exclusive).await?.is_admitted() {
//!     sqlx::query("UPDATE stock SET n = n - 1").execute(&mut *tx).await?;
//!     tx.commit().await?;
//! }
//! # Ok(()) }
//! ```
//!
//! A backend in a namespace stores its gate's resources under the namespace too, and [`admit_in`] takes names
//! as they are stored: see [`Namespaced::stored_name`](dlock_core::combinators::Namespaced::stored_name).
//!
//! [`admit_in`]: TransactionGate::admit_in

use std::sync::Arc;

use async_trait::async_trait;
use dlock_core::spi::Lock as _;
use dlock_core::{Access, Admission, Error, FenceGate, FencedValue, LockName, Result, Token};
use sqlx::Row as _;
use sqlx::postgres::{PgConnection, PgRow};

use super::call::{Value, run};
use super::connection::Db;
use super::failure::{foreign, nothing_done};
use super::lock::PostgresLease;
use super::reply::read_token;
use crate::lease::request::{check_name, check_token};

#[async_trait]
impl FenceGate for PostgresLease {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        let pass = usize::from(access == Access::Exclusive);
        self.pass(resource, token, pass, &[]).await
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        self.pass(resource, token, 2, value).await
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        let read = async {
            check_name(self.capabilities(), resource)?;
            let name = Value::Bytes(resource.as_bytes());
            let rows = self.db.read(&self.db.sql.read_fence, &[name]).await?;
            rows.first().map(read_fence).transpose()
        };
        read.await.map_err(|e| e.with_name(resource))
    }
}

fn read_fence(row: &PgRow) -> Result<FencedValue> {
    let bad = |_: sqlx::Error| foreign("a resource of the fence gate");
    let token = |at: usize| -> Result<Option<Token>> {
        let stored: Option<i64> = row.try_get(at).map_err(bad)?;
        stored
            .map(|n| read_token(n).ok_or_else(|| foreign("a token below one")))
            .transpose()
    };
    Ok(FencedValue::new(
        row.try_get(0).map_err(bad)?,
        token(1)?,
        token(2)?,
    ))
}

/// The token that was in the way. Where none is any more, somebody has removed the row since: then it is the
/// one that was refused.
fn refused(rows: &[PgRow], token: Token) -> Admission {
    let stored = rows.first().and_then(|row| row.try_get::<Option<i64>, _>(0).ok());
    let highest = stored.flatten().and_then(read_token).unwrap_or(token);
    Admission::Refused { highest }
}

impl PostgresLease {
    /// The gate, for transactions of yours in the same database.
    pub fn transaction_gate(&self) -> TransactionGate {
        TransactionGate(self.db.clone())
    }

    /// Check, and write if it is to be written, in one statement, which is a transaction.
    async fn pass(&self, resource: &LockName, token: Token, pass: usize, value: &[u8]) -> Result<Admission> {
        let passed = async {
            check_name(self.capabilities(), resource)?;
            check_token(token)?;
            let sql = &self.db.sql;
            let name = Value::Bytes(resource.as_bytes());
            let values = [name.clone(), Value::Long(token.get() as i64), Value::Bytes(value)];
            let (_, rows) = self.db.ask(&sql.pass[pass], &values).await?;
            if !rows.is_empty() {
                return Ok(Admission::Admitted);
            }
            let rows = self.db.read(&sql.bar[pass.min(1)], &[name]).await?;
            Ok::<_, Error>(refused(&rows, token))
        };
        passed.await.map_err(|e| e.with_name(resource))
    }
}

/// Checks tokens inside transactions of yours. Cheap to clone.
#[derive(Clone)]
pub struct TransactionGate(Arc<Db>);

impl std::fmt::Debug for TransactionGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionGate").finish_non_exhaustive()
    }
}

impl TransactionGate {
    /// Checks a token inside the transaction that is open on `conn`, and remembers it if that transaction
    /// commits. It shares what it remembers with the backend's own gate.
    ///
    /// After `Refused` roll back; the transaction holds nothing that should be kept. Without an open
    /// transaction the check is committed at once, and is advisory. Under `repeatable read` and above, the
    /// server refuses the statement if another transaction was admitted since this one began: that is
    /// `Unavailable`, and the transaction is to be begun anew.
    ///
    /// # Cancel safety
    /// Cancelled, the token may have been noted in the transaction; roll it back.
    ///
    /// # Errors
    /// `Unavailable` as said, or if the row is locked for longer than the server's `lock_timeout`;
    /// `BackendData` if `conn` leads to a database without the tables; `InvalidInput` for a token above 2^63
    /// - 1. The transaction is to be rolled back after each.
    pub async fn admit_in(
        &self,
        conn: &mut PgConnection,
        resource: &LockName,
        token: Token,
        access: Access,
    ) -> Result<Admission> {
        let db = &self.0;
        let admitted = async {
            check_token(token)?;
            let pass = usize::from(access == Access::Exclusive);
            let name = Value::Bytes(resource.as_bytes());
            let values = [name.clone(), Value::Long(token.get() as i64), Value::Bytes(&[])];
            let failed = |e| nothing_done(e, &db.at);
            let rows = run(conn, db.way, &db.sql.pass[pass], &values)
                .await
                .map_err(failed)?;
            if !rows.is_empty() {
                return Ok(Admission::Admitted);
            }
            let rows = run(conn, db.way, &db.sql.bar[pass], &[name])
                .await
                .map_err(failed)?;
            Ok::<_, Error>(refused(&rows, token))
        };
        admitted.await.map_err(|e| e.with_name(resource))
    }
}
