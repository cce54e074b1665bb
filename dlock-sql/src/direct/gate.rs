//! The fence gate inside your own transaction: the check and your write are atomic. A holder that was paused
//! past its lease comes back with a stale token, and is refused.
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # async fn f(pool: sqlx::PgPool, token: dlock_core::Token) -> Result<(), Box<dyn std::error::Error>> {
//! use dlock_core::{Access, LockName};
//! use dlock_sql::direct::{Tables, gate};
//!
//! let (tables, stock) = (Tables::default(), LockName::new("stock")?);
//! let mut tx = pool.begin().await?;
//! if gate::admit_in(&mut tx, &tables, &stock, token, Access::Exclusive).await?.is_admitted() {
//!     sqlx::query("UPDATE stock SET n = n - 1").execute(&mut *tx).await?;
//!     tx.commit().await?;
//! } // else it is rolled back: our lock was lost
//! # Ok(()) }
//! ```
//!
//! # Why nothing comes between
//!
//! The row of the resource is locked before it is read, and the lock ends with the transaction.
//!
//! * *A newer holder comes between check and commit*: it waits for the row, and goes on afterwards.
//! * *A newer holder has checked and not committed*: this one waits for the row, sees the newer token, and is
//!   refused; unless the newer one rolls back, which leaves nothing.
//! * *The transaction cannot see the newest row*: PostgreSQL from `REPEATABLE READ` on, and SQLite if it has
//!   read before, refuse as [`Serialization`](super::Failure::Serialization); MySQL reads the newest whenever
//!   it locks (MariaDB with `innodb_snapshot_isolation` refuses).
//! * *The answer of the commit is lost*: token and write are stored together or not at all. The same token
//!   may be repeated.
//! * *Two resources in different orders*: a deadlock, which the server resolves. Begin again.

use dlock_core::{Access, Admission, LockName, Token};
use sqlx::Transaction;

use super::dialect::Store;
use super::failure::{Error, Result};
use super::tables::{Tables, create};
use crate::gate::{admission, pass};

/// Creates the gate's table if it is missing (a lease backend creates it too). That needs the right to create
/// tables; later `SELECT`, `INSERT` and `UPDATE` on it suffice.
///
/// # Cancel safety If the future is dropped, the table may exist or not; call it again.
///
/// # Errors `PermissionDenied` if this user may not create tables; any other failure of the database.
pub async fn create_table<DB: Store>(conn: &mut DB::Connection, tables: &Tables) -> Result<()> {
    create::<DB>(conn, &crate::gate::table::<DB>(&tables.fence())).await
}

/// Checks a token inside a transaction, and remembers it if that commits. Waits for other users of the
/// resource.
///
/// If it is admitted, write and commit; if it is refused, roll back. The table and the rule are those of the
/// backends' gates. In a namespace (`?namespace=shop` in a URL) use a resource's [stored
/// name](dlock_core::combinators::Namespaced::stored_name). One request.
///
/// # Cancel safety If the future is dropped, the token may have been noted in the transaction; roll it back.
///
/// # Errors
/// `InvalidInput` for a token above 2^63 - 1, before any I/O. Any [`Failure`](super::Failure), after which
/// the transaction must be rolled back.
pub async fn admit_in<DB: Store>(
    tx: &mut Transaction<'_, DB>,
    tables: &Tables,
    resource: &LockName,
    token: Token,
    access: Access,
) -> Result<Admission> {
    let admitted = async {
        let text = pass::<DB>(&tables.fence(), (resource, token, access, None))?;
        Ok(admission::<DB>(&DB::ask(tx, text).await?, token, access)?)
    };
    admitted.await.map_err(|e: Error| e.with_name(resource))
}
