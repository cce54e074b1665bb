//! The fence gate: in this backend's own database, and inside a transaction of yours.
//!
//! The lock says who *should* write; the gate makes sure that nobody else *does*: a holder that was paused past its
//! lease comes back with a token that a later holder has overtaken, and is refused.
//!
//! What a bare check followed by a write cannot do (a newer holder comes in between), [`admit_in`] does: the check
//! is part of the transaction that writes.
//!
//! ```no_run
//! # async fn f(conn: &mut sqlx::SqliteConnection, token: dlock_core::Token) -> Result<(), Box<dyn std::error::Error>> {
//! use dlock_core::{Access, LockName};
//! use dlock_sql::sqlite::gate;
//! use sqlx::Connection as _;
//!
//! let stock = LockName::new("stock")?;
//! gate::create_table(conn).await?; // once; on the backend's own database it exists already
//! let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
//! if gate::admit_in(&mut tx, &stock, token, Access::Exclusive).await?.is_admitted() {
//!     sqlx::query("UPDATE stock SET n = n - 1").execute(&mut *tx).await?;
//!     tx.commit().await?;
//! }
//! # Ok(()) }
//! ```
//!
//! # In a namespace
//!
//! A backend in a namespace (`?namespace=shop` in a URL) stores its gate's resources under the namespace too, and [`admit_in`] takes
//! names as they are stored. To share what the gate remembers, ask for
//! [`Namespaced::stored_name("shop", &stock)`](dlock_core::combinators::Namespaced::stored_name); under the plain name the two gates know
//! nothing of one another.

use async_trait::async_trait;
use dlock_core::{Access, Admission, Error, ErrorKind, FenceGate, FencedValue, LockName, Result, Token};
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Row as _};

use super::failure::nothing_done;
use super::job::Needs;
use super::lock::SqliteLock;
use super::open::DEFAULT_PREFIX;
use super::schema::{LAST_TOKEN, check_prefix, create_fence};
use super::writer::Fence;

fn check_token(token: Token) -> Result<()> {
    if token.get() > LAST_TOKEN {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("SQLite keeps tokens up to {LAST_TOKEN}"),
        ));
    }
    Ok(())
}

#[async_trait]
impl FenceGate for SqliteLock {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.pass(resource, token, access, None).await
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        self.pass(resource, token, Access::Exclusive, Some(value.to_vec()))
            .await
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        self.check_name(resource)?;
        let mut needs = Needs::nothing();
        needs.resources = vec![resource.clone()];
        let name = resource.clone();
        self.link
            .call(needs, move |view| {
                view.fences.get(&name).map_or(Ok(None), |f| f.value.clone())
            })
            .await
            .map_err(|e| e.with_name(resource))
    }
}

impl SqliteLock {
    /// Check, and write if there is a value, in one transaction that waits for the disk: what a gate has refused once it refuses
    /// after a power loss too.
    async fn pass(
        &self,
        resource: &LockName,
        token: Token,
        access: Access,
        value: Option<Vec<u8>>,
    ) -> Result<Admission> {
        self.check_name(resource)?;
        check_token(token)?;
        let mut needs = Needs::write(Vec::new());
        needs.resources = vec![resource.clone()];
        needs.durable = true;
        let name = resource.clone();
        self.link
            .call(needs, move |view| {
                let fence = view.fences.entry(name).or_insert(Fence {
                    value: Ok(None),
                    dirty: false,
                });
                let stored = fence.value.clone()?;
                let mut seen = stored
                    .clone()
                    .unwrap_or_else(|| FencedValue::new(Vec::new(), None, None));
                let admission = seen.admit(token, access);
                if admission.is_admitted() {
                    if let Some(value) = value {
                        seen.value = value;
                    }
                    fence.dirty |= stored.as_ref() != Some(&seen);
                    fence.value = Ok(Some(seen));
                }
                Ok(admission)
            })
            .await
            .map_err(|e| e.with_name(resource))
    }
}

/// Makes the gate's table in a database of yours, if it is not there.
///
/// # Cancel safety
/// Cancelled, the table exists or not; call it again.
///
/// # Errors
/// `Unavailable` while another connection writes; `PermissionDenied` if the database is read-only.
pub async fn create_table(conn: &mut SqliteConnection) -> Result<()> {
    create_table_prefixed(conn, DEFAULT_PREFIX).await
}

/// As [`create_table`], for tables of another [prefix](super::Builder::table_prefix).
///
/// # Cancel safety
/// As [`create_table`].
///
/// # Errors
/// As [`create_table`], and `InvalidInput` if the prefix is not an identifier.
pub async fn create_table_prefixed(conn: &mut SqliteConnection, prefix: &str) -> Result<()> {
    check_prefix(prefix)?;
    create_fence(conn, prefix)
        .await
        .map_err(|e| nothing_done(e, "of the fence gate"))
}

/// Checks a token inside the transaction that is open on `conn`, and remembers it if that transaction commits.
///
/// In the same database, with the default table prefix and without a namespace, it shares what it remembers with the backend's own
/// gate; [in a namespace](self#in-a-namespace) under the stored name only.
/// Begin with `BEGIN IMMEDIATE`: in a deferred transaction that has read before, SQLite refuses the write if another one came
/// first. After `Refused` roll back; the transaction holds nothing that should be kept. Without an open transaction the
/// check is committed at once, and is advisory.
///
/// # Cancel safety
/// Cancelled, the token may have been noted in the transaction; roll it back.
///
/// # Errors
/// `Unavailable` if another connection holds the write lock, `BackendData` if the table is missing ([`create_table`]),
/// `InvalidInput` for a token above 2^63 - 1.
pub async fn admit_in(
    conn: &mut SqliteConnection,
    resource: &LockName,
    token: Token,
    access: Access,
) -> Result<Admission> {
    admit_in_prefixed(conn, DEFAULT_PREFIX, resource, token, access).await
}

/// As [`admit_in`], for tables of another [prefix](super::Builder::table_prefix).
///
/// The tables of a prefix exist once a backend was opened with it, and [`create_table_prefixed`] makes the gate's alone.
///
/// # Cancel safety
/// As [`admit_in`].
///
/// # Errors
/// As [`admit_in`], and `InvalidInput` if the prefix is not an identifier.
pub async fn admit_in_prefixed(
    conn: &mut SqliteConnection,
    prefix: &str,
    resource: &LockName,
    token: Token,
    access: Access,
) -> Result<Admission> {
    check_prefix(prefix)?;
    check_token(token)?;
    let table = format!("{prefix}fence");
    let (bar, exclusive) = match access {
        Access::Exclusive => ("max_any", "max(coalesce(max_exclusive, 0), excluded.max_any)"),
        _ => ("max_exclusive", "max_exclusive"),
    };
    let first = if access == Access::Exclusive { "?2" } else { "NULL" };
    // Check and note are one statement, and it begins with taking the write lock.
    let text = format!(
        "INSERT INTO {table} (resource, max_exclusive, max_any, value) VALUES (?1, {first}, ?2, x'') \
         ON CONFLICT (resource) DO UPDATE SET max_exclusive = {exclusive}, \
         max_any = max(coalesce(max_any, 0), excluded.max_any) \
         WHERE coalesce({table}.{bar}, 0) <= excluded.max_any RETURNING 1"
    );
    let at = "of the fence gate";
    let number = token.get() as i64;
    let admitted = sqlx::query(AssertSqlSafe(text))
        .bind(resource.as_bytes())
        .bind(number)
        .fetch_optional(&mut *conn)
        .await
        .map_err(|e| nothing_done(e, at).with_name(resource))?;
    if admitted.is_some() {
        return Ok(Admission::Admitted);
    }
    let highest = sqlx::query(AssertSqlSafe(format!(
        "SELECT {bar} FROM {table} WHERE resource = ?"
    )))
    .bind(resource.as_bytes())
    .fetch_one(&mut *conn)
    .await
    .and_then(|row| row.try_get::<Option<i64>, _>(0))
    .map_err(|e| nothing_done(e, at).with_name(resource))?;
    Ok(Admission::Refused {
        highest: highest.and_then(|t| Token::new(t as u64)).unwrap_or(token),
    })
}
