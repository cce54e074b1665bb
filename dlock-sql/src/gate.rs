//! The fence gate of every SQL store: check a token against the row of its resource, and write, in one
//! transaction.
//!
//! The row is locked before it is read, and stays locked until the transaction of the caller ends. So nothing
//! comes between the check and the commit.

use dlock_core::{Access, Admission, FencedValue};
use dlock_core::{Error, ErrorKind, LockName, Result, Token};

use crate::direct::Store;
use crate::failure::{foreign, invalid};
use crate::keys::read_token;

/// SQL's integers are signed.
pub(crate) const LAST_TOKEN: u64 = i64::MAX as u64;

/// Refuses what SQL cannot store.
pub(crate) fn check_token(token: Token) -> Result<()> {
    if token.get() <= LAST_TOKEN {
        return Ok(());
    }
    Err(invalid("a SQL database keeps tokens up to 2^63 - 1"))
}

/// The statement that makes the table.
pub(crate) fn table<DB: Store>(table: &str) -> String {
    let (name, n, bytes, options) = (DB::KEY, DB::NUMBER, DB::BYTES, DB::OPTIONS);
    format!(
        "CREATE TABLE IF NOT EXISTS {table} (resource {name} NOT NULL PRIMARY KEY, max_exclusive {n}, \
         max_any {n}, value {bytes} NOT NULL){options}"
    )
}

/// Checks a token inside the transaction on `conn`, and notes it in `table`, with the value if there is one.
///
/// The outer error is the database's. The inner one is of this row alone: a token that SQL cannot store, or a
/// row that dlock did not write. The name of the table stands in the statements as it is, so it was checked
/// or is quoted.
pub(crate) async fn admit<DB: Store>(
    conn: &mut DB::Connection,
    table: &str,
    resource: &LockName,
    token: Token,
    access: Access,
    value: Option<&[u8]>,
) -> Result<Result<Admission>, sqlx::Error> {
    if let Err(e) = check_token(token) {
        return Ok(Err(e));
    }
    let name = DB::bytes(resource.as_bytes());
    // First that there is a row: one that is not there cannot be locked, and two who both find none are a
    // deadlock in MySQL. One request, and two statements: the second one reads what was committed while the
    // first one waited.
    let lock = format!(
        "INSERT INTO {table} (resource, max_exclusive, max_any, value) VALUES ({name}, NULL, NULL, {}) {}; \
         SELECT max_exclusive, max_any FROM {table} WHERE resource = {name}{}",
        DB::bytes(&[]),
        DB::or_nothing("resource"),
        DB::LOCKING,
    );
    let rows = DB::ask(conn, lock).await?;
    let Some(row) = rows.first() else {
        let text = "the row of a resource of the fence gate vanished while it was locked; does something \
                    else delete from that table?";
        return Ok(Err(Error::new(ErrorKind::BackendData, text)));
    };
    let mut seen = match read::<DB>(row, Vec::new()) {
        Ok(seen) => seen,
        Err(e) => return Ok(Err(e)),
    };
    let before = seen.clone();
    let admission = seen.admit(token, access);
    if admission.is_admitted() && (seen != before || value.is_some()) {
        let number = |token: Option<Token>| token.map_or("NULL".to_owned(), |t| t.get().to_string());
        let value = value.map_or(String::new(), |v| format!(", value = {}", DB::bytes(v)));
        let (max_exclusive, max_any) = (number(seen.max_exclusive), number(seen.max_any));
        let set = format!("max_exclusive = {max_exclusive}, max_any = {max_any}{value}");
        let note = format!("UPDATE {table} SET {set} WHERE resource = {name}");
        DB::ask(conn, note).await?;
    }
    Ok(Ok(admission))
}

/// What a row says of tokens and value.
pub(crate) fn value<DB: Store>(rows: &[DB::Row]) -> Result<Option<FencedValue>> {
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let Ok(Some(value)) = DB::read(row, 2) else {
        return Err(foreign("the value of a fence is of another type"));
    };
    read::<DB>(row, value).map(Some)
}

/// The tokens are the first two columns.
fn read<DB: Store>(row: &DB::Row, value: Vec<u8>) -> Result<FencedValue> {
    let token = |at| -> Result<Option<Token>> {
        let stored: Option<i64> =
            DB::read(row, at).map_err(|_| foreign("the token of a fence is no number"))?;
        stored.map(read_token).transpose()
    };
    Ok(FencedValue::new(value, token(0)?, token(1)?))
}
