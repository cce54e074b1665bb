//! The fence gate inside a transaction of yours: check and write are one.
//!
//! The lock says who *should* write; the gate makes sure that nobody else *does*: a holder that was paused past its lease comes back with a
//! token that a later holder has overtaken, and is refused.
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
//! * *A newer holder comes between check and commit*: it waits for our row, and then sees our token, which is below its own: it goes on after us.
//! * *We come after a newer holder has checked, before it committed*: we wait for its row, and then see its token: refused. Had it rolled back, nothing
//!   of it is there, and we may write.
//! * *The transaction cannot see what is newest* (`REPEATABLE READ` and above in PostgreSQL): reading the locked row is refused as
//!   [`Serialization`](super::Failure::Serialization) if somebody changed it since the transaction began to read. MySQL reads the newest whenever it locks. In
//!   SQLite the first statement here takes the file's write lock, or fails for the same reason.
//! * *The commit's answer is lost*: it is stored with the token or not at all. The same token may come again.
//! * *Two resources in one transaction, in different orders*: a deadlock, which the server resolves. Begin again.

use dlock_core::{Access, Admission, ErrorKind, FencedValue, LockName, Token};
use sqlx::Transaction;

use super::database::{Store, Value, all_own, execute_own};
use super::failure::{Error, Result};
use super::tables::Tables;
use super::version::create;

/// SQL's integers are signed.
const LAST_TOKEN: u64 = i64::MAX as u64;

/// Makes the gate's table, if it is not there. It takes the right to create tables; at work, `SELECT`, `INSERT` and `UPDATE` on
/// it are enough.
///
/// # Cancel safety
/// Cancelled, the table exists or not; call it again.
///
/// # Errors
/// `PermissionDenied` if this user may not create tables; others as they come.
pub async fn create_table<DB: Store>(conn: &mut DB::Connection, tables: &Tables) -> Result<()> {
    create::<DB>(conn, &DB::fence_table(&tables.fence().to_string())).await
}

/// Checks a token inside a transaction, and remembers it if that commits.
///
/// Against `admitted`, write what is to be written and commit. After `refused` roll back. It waits for whoever uses the resource at the moment.
///
/// Table and rule are those of the backends' own gates, so that both remember the same. In a namespace (`?namespace=shop` in a URL) the
/// resource goes by its [stored name](dlock_core::combinators::Namespaced::stored_name).
///
/// Three or four statements.
///
/// # Cancel safety
/// Cancelled, the token may have been noted in the transaction; roll it back.
///
/// # Errors
/// `InvalidInput` for a token above 2^63 - 1, before any I/O; any [`Failure`](super::Failure), after which the transaction must be rolled back.
pub async fn admit_in<DB: Store>(
    tx: &mut Transaction<'_, DB>,
    tables: &Tables,
    resource: &LockName,
    token: Token,
    access: Access,
) -> Result<Admission> {
    if token.get() > LAST_TOKEN {
        let e = Error::new(
            ErrorKind::InvalidInput,
            "a SQL database keeps tokens up to 2^63 - 1",
        );
        return Err(e.with_name(resource));
    }
    let table = tables.fence().to_string();
    let admitted = admit_in_table::<DB>(tx, &table, resource, token, access).await;
    admitted.map_err(|e| e.with_name(resource))
}

/// The same in a table of that name, which stands in the statements as it is: checked, or quoted.
pub(crate) async fn admit_in_table<DB: Store>(
    conn: &mut DB::Connection,
    table: &str,
    resource: &LockName,
    token: Token,
    access: Access,
) -> Result<Admission> {
    let name = || Value::Bytes(resource.as_bytes().to_vec());
    // First that there is a row: one that is not there cannot be locked, and two who both find none are a deadlock in MySQL.
    let text = format!(
        "INSERT INTO {table} (resource, max_exclusive, max_any, value) VALUES (?, NULL, NULL, ?) {}",
        DB::or_nothing("resource")
    );
    let values = vec![name(), Value::Bytes(Vec::new())];
    execute_own::<DB>(conn, &text, &values).await.map_err(Error::of)?;
    let text = format!(
        "SELECT max_exclusive, max_any FROM {table} WHERE resource = ?{}",
        DB::LOCKING
    );
    let rows = all_own::<DB>(conn, &text, &[name()]).await.map_err(Error::of)?;
    let row = rows.first().ok_or_else(|| {
        let text = "the row of a resource of the fence gate vanished while it was locked; does something else delete from that table?";
        Error::new(ErrorKind::BackendData, text)
    })?;
    let stored = |at| {
        let number = DB::number(row, at).map_err(Error::of)?;
        number.map(read).transpose()
    };
    let mut seen = FencedValue::new(Vec::new(), stored(0)?, stored(1)?);
    let before = seen.clone();
    let admission = seen.admit(token, access);
    if admission.is_admitted() && seen != before {
        let number = |t: Option<Token>| Value::Perhaps(t.map(|t| t.get() as i64));
        let text = format!("UPDATE {table} SET max_exclusive = ?, max_any = ? WHERE resource = ?");
        let values = vec![number(seen.max_exclusive), number(seen.max_any), name()];
        execute_own::<DB>(conn, &text, &values).await.map_err(Error::of)?;
    }
    Ok(admission)
}

fn read(number: i64) -> Result<Token> {
    let token = u64::try_from(number).ok().and_then(Token::new);
    token.ok_or_else(|| {
        let text = format!("a row of the fence gate's table was not written by dlock: its token is {number}");
        Error::new(ErrorKind::BackendData, text)
    })
}
