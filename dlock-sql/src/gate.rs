//! The fence gate of every SQL store: check a token against the row of its resource, and write, in one
//! transaction.
//!
//! The row is locked before it is read, and stays locked until the transaction of the caller ends. So nothing
//! comes between the check and the commit.

use dlock_core::{Access, Admission, FencedValue};
use dlock_core::{Error, ErrorKind, LockName, Result, Token};

use crate::direct::Store;

/// SQL's integers are signed.
const LAST_TOKEN: u64 = i64::MAX as u64;

/// Refuses what SQL cannot store.
pub(crate) fn check_token(token: Token) -> Result<()> {
    if token.get() <= LAST_TOKEN {
        return Ok(());
    }
    let text = "a SQL database keeps tokens up to 2^63 - 1";
    Err(Error::new(ErrorKind::InvalidInput, text))
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
            else delete \
                    from that table?";
        return Ok(Err(Error::new(ErrorKind::BackendData, text)));
    };
    let mut seen = match tokens::<DB>(row, 0) {
        Ok((max_exclusive, max_any)) => FencedValue::new(Vec::new(), max_exclusive, max_any),
        Err(e) => return Ok(Err(e)),
    };
    let before = seen.clone();
    let admission = seen.admit(token, access);
    if admission.is_admitted() && (seen != before || value.is_some()) {
        let number = |token: Option<Token>| token.map_or("NULL".to_owned(), |t| t.get().to_string());
        let value = value.map_or(String::new(), |v| format!(", value = {}", DB::bytes(v)));
        let (max_exclusive, max_any) = (number(seen.max_exclusive), number(seen.max_any));
        let note = format!(
            "UPDATE {table} SET max_exclusive = {max_exclusive}, max_any = {max_any}{value} WHERE resource \
             = {name}"
        );
        DB::ask(conn, note).await?;
    }
    Ok(Ok(admission))
}

/// What is stored of a resource. Errors as of [`admit`].
#[cfg(feature = "sqlite")]
pub(crate) async fn read<DB: Store>(
    conn: &mut DB::Connection,
    table: &str,
    resource: &LockName,
) -> Result<Result<Option<FencedValue>>, sqlx::Error> {
    let name = DB::bytes(resource.as_bytes());
    let text = format!("SELECT value, max_exclusive, max_any FROM {table} WHERE resource = {name}");
    let rows = DB::ask(conn, text).await?;
    let Some(row) = rows.first() else {
        return Ok(Ok(None));
    };
    let Ok(Some(value)) = DB::read_bytes(row, 0) else {
        return Ok(Err(foreign("its value is of another type")));
    };
    Ok(tokens::<DB>(row, 1)
        .map(|(max_exclusive, max_any)| Some(FencedValue::new(value, max_exclusive, max_any))))
}

type Tokens = (Option<Token>, Option<Token>);

fn tokens<DB: Store>(row: &DB::Row, at: usize) -> Result<Tokens> {
    let token = |at| -> Result<Option<Token>> {
        let stored = DB::read_number(row, at).map_err(|_| foreign("a token is no number"))?;
        let token = |n| u64::try_from(n).ok().and_then(Token::new);
        stored
            .map(|n| token(n).ok_or_else(|| foreign("a token is below one")))
            .transpose()
    };
    Ok((token(at)?, token(at + 1)?))
}

fn foreign(what: &str) -> Error {
    let text = format!("a row of the fence gate's table was not written by dlock: {what}");
    Error::new(ErrorKind::BackendData, text)
}
