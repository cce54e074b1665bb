//! The fence gate: in this backend's own tables, and inside a transaction of yours.
//!
//! The lock says who *should* write; the gate makes sure that nobody else *does*: a holder that was paused
//! past its lease comes back with a token that a later holder has overtaken, and is refused.
//!
//! What a bare check followed by a write cannot do (a newer holder comes in between), [`admit_in`] does: the
//! check is part of the transaction that writes, and keeps the resource's row locked until that ends.
//!
//! ```no_run
//! # async fn f(pool: sqlx::MySqlPool, locks: dlock_sql::lease::mysql::MysqlLease, token: dlock_core::Token) -> Result<(), Box<dyn std::error::Error>> {
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
//!
//! The backend's own gate is one statement: it locks the row, and changes it where the token is admitted.
//! Where the token is not, nothing is set.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use dlock_core::spi::Lock as _;
use dlock_core::{Access, Admission, Error, FenceGate, FencedValue, LockName, Result, Token};
use sqlx::Row as _;
use sqlx::mysql::{MySql, MySqlConnection, MySqlRow};

use super::connection::Db;
use super::failure::foreign;
use super::lock::{MysqlLease, bind, values};
use super::text::bytes;
use crate::direct::gate::admit_in_table;
use crate::lease::request::{check_name, check_token};

#[async_trait]
impl FenceGate for MysqlLease {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.pass(resource, token, access, None).await
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        self.pass(resource, token, Access::Exclusive, Some(value)).await
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        let read = async {
            check_name(self.capabilities(), resource)?;
            let mut args = values();
            bind(&mut args, resource.as_bytes())?;
            let rows = self.db.read(&self.db.sql.read_fence, args).await?;
            rows.first().map(read_fence).transpose()
        };
        read.await.map_err(|e: Error| e.with_name(resource))
    }
}

fn read_fence(row: &MySqlRow) -> Result<FencedValue> {
    let bad = |_: sqlx::Error| foreign("a resource of the fence gate");
    let token = |at: usize| -> Result<Option<Token>> {
        let stored: Option<i64> = row.try_get(at).map_err(bad)?;
        Ok(stored.and_then(|n| u64::try_from(n).ok()).and_then(Token::new))
    };
    Ok(FencedValue::new(
        row.try_get(0).map_err(bad)?,
        token(1)?,
        token(2)?,
    ))
}

impl MysqlLease {
    /// The gate, for transactions of yours in the same database.
    pub fn transaction_gate(&self) -> TransactionGate {
        TransactionGate(self.db.clone())
    }

    /// One statement makes the row, or checks and writes it: nobody reads a row that was made and not written
    /// yet. What it was checked against comes back as the insert id. A new row is checked against nothing.
    async fn pass(
        &self,
        resource: &LockName,
        token: Token,
        access: Access,
        value: Option<&[u8]>,
    ) -> Result<Admission> {
        let passed = async {
            check_name(self.capabilities(), resource)?;
            check_token(token)?;
            let (p, key, t) = (&self.db.sql.prefix, bytes(resource.as_bytes()), token.get());
            // Assignments are made from left to right, so what decides is changed last.
            let (exclusive, set) = match access {
                Access::Exclusive => {
                    let passes = format!("COALESCE(max_any, 0) <= {t}");
                    let value = value.map_or(String::new(), |v| {
                        format!("value = IF({passes}, {}, value), ", bytes(v))
                    });
                    let set = format!(
                        "{value}max_exclusive = IF({passes}, GREATEST(COALESCE(max_exclusive, 0), {t}), \
                            max_exclusive), \
                         max_any = GREATEST(LAST_INSERT_ID(COALESCE(max_any, 0)), {t})"
                    );
                    (t.to_string(), set)
                }
                _ => {
                    let set = format!(
                        "max_any = IF(LAST_INSERT_ID(COALESCE(max_exclusive, 0)) <= {t}, \
                            GREATEST(COALESCE(max_any, 0), {t}), max_any)"
                    );
                    ("NULL".to_owned(), set)
                }
            };
            let value = bytes(value.unwrap_or_default());
            let upsert = format!(
                "INSERT INTO {p}fence (resource, max_exclusive, max_any, value) \
                 VALUES ({key}, {exclusive}, {t} + LAST_INSERT_ID(0), {value}) ON DUPLICATE KEY UPDATE {set}"
            );
            let (_, told) = self.db.tell(upsert).await?;
            Ok::<_, Error>(match Token::new(told.id) {
                Some(highest) if highest > token => Admission::Refused { highest },
                _ => Admission::Admitted,
            })
        };
        passed.await.map_err(|e| e.with_name(resource))
    }
}

/// Checks tokens inside transactions of yours. Cheap to clone.
#[derive(Clone)]
pub struct TransactionGate(Arc<Db>);

impl fmt::Debug for TransactionGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionGate").finish_non_exhaustive()
    }
}

impl TransactionGate {
    /// Checks a token inside the transaction that is open on `conn`, and remembers it if that transaction
    /// commits. It shares what it remembers with the backend's own gate, and is the rule of
    /// [`direct::gate`](crate::direct::gate).
    ///
    /// After `Refused` roll back; the transaction holds nothing that should be kept. Without an open
    /// transaction the check is committed at once, and is advisory. In any isolation level the newest is
    /// read: the row is locked for that. Two or three statements.
    ///
    /// # Cancel safety
    /// Cancelled, the token may have been noted in the transaction; roll it back.
    ///
    /// # Errors
    /// `Timeout` if the row is locked for longer than `innodb_lock_wait_timeout`; `Unavailable` if the
    /// transaction was chosen to end a deadlock, which has rolled it back already; `BackendData` if `conn`
    /// leads to a database without the tables; `InvalidInput` for a token above 2^63 - 1. The transaction is
    /// to be rolled back after each.
    pub async fn admit_in(
        &self,
        conn: &mut MySqlConnection,
        resource: &LockName,
        token: Token,
        access: Access,
    ) -> Result<Admission> {
        let table = format!("{}fence", self.0.sql.prefix);
        let admitted = async {
            check_token(token)?;
            Ok(admit_in_table::<MySql>(conn, &table, resource, token, access).await?)
        };
        admitted.await.map_err(|e: Error| e.with_name(resource))
    }
}
