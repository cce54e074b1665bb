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
    Err(invalid("a token in a SQL database is at most 2^63 - 1"))
}

/// The statement that makes the table.
pub(crate) fn table<DB: Store>(table: &str) -> String {
    let (name, n, bytes, options) = (DB::KEY, DB::NUMBER, DB::BYTES, DB::OPTIONS);
    format!(
        "CREATE TABLE IF NOT EXISTS {table} (resource {name} NOT NULL PRIMARY KEY, max_exclusive {n}, \
         max_any {n}, value {bytes} NOT NULL){options}"
    )
}

/// That the tokens of a row are as a dlock writes them.
const SOUND: &str = "COALESCE(max_exclusive, 1) > 0 AND COALESCE(max_any, 1) > 0 \
    AND COALESCE(max_exclusive, 0) <= COALESCE(max_any, 0)";

/// What comes to the gate: for which resource, and what one who has it alone wants to write.
pub(crate) type Pass<'a> = (&'a LockName, Token, Access, Option<&'a [u8]>);

/// Statements that check a token against the row of its resource in `table`, and note it. They go in one
/// request, inside a transaction, and answer the row as it was: see [`admission`]. The name of the table
/// stands in them as it is, so it was checked or is quoted.
///
/// First that there is a row: one that is not there cannot be locked, and two who both find none are a
/// deadlock in MySQL. The second statement reads what was committed while the first one waited. The third is
/// the rule of [`FencedValue::admit`], and changes nothing where nothing is new or no dlock wrote.
///
/// # Errors
/// `InvalidInput` for a token that SQL cannot store.
pub(crate) fn pass<DB: Store>(table: &str, (resource, token, access, value): Pass<'_>) -> Result<String> {
    check_token(token)?;
    let (bar, own, both) = match access {
        Access::Exclusive => ("max_any", "max_exclusive", format!("max_any = {token}, ")),
        _ => ("max_exclusive", "max_any", String::new()),
    };
    let (written, is_new) = match value {
        Some(value) => (format!(", value = {}", DB::bytes(value)), String::new()),
        None => (String::new(), format!(" AND COALESCE({own}, 0) < {token}")),
    };
    let (name, none) = (DB::bytes(resource.as_bytes()), DB::bytes(&[]));
    let (or_nothing, locking) = (DB::or_nothing("resource"), DB::LOCKING);
    Ok(format!(
        "INSERT INTO {table} (resource, max_exclusive, max_any, value) VALUES ({name}, NULL, NULL, {none}) \
         {or_nothing}; SELECT max_exclusive, max_any FROM {table} WHERE resource = {name}{locking}; \
         UPDATE {table} SET {both}{own} = {token}{written} \
         WHERE resource = {name} AND {SOUND} AND COALESCE({bar}, 0) <= {token}{is_new}"
    ))
}

/// What [`pass`] has done, by the row that it answers.
pub(crate) fn admission<DB: Store>(rows: &[DB::Row], token: Token, access: Access) -> Result<Admission> {
    let gone = "the row of this resource in the fence gate was deleted meanwhile; try again";
    let row = rows.first();
    let row = row.ok_or_else(|| Error::new(ErrorKind::Unavailable, gone))?;
    Ok(read::<DB>(row, Vec::new())?.admit(token, access))
}

/// What a row says of tokens and value.
pub(crate) fn value<DB: Store>(rows: &[DB::Row]) -> Result<Option<FencedValue>> {
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let Ok(Some(value)) = DB::read(row, 2) else {
        return Err(foreign("the value behind a fence gate has another type"));
    };
    read::<DB>(row, value).map(Some)
}

/// The tokens are the first two columns.
fn read<DB: Store>(row: &DB::Row, value: Vec<u8>) -> Result<FencedValue> {
    let token = |at| -> Result<Option<Token>> {
        let stored: Option<i64> =
            DB::read(row, at).map_err(|_| foreign("a token of a fence gate is not a number"))?;
        stored.map(read_token).transpose()
    };
    let (max_exclusive, max_any) = (token(0)?, token(1)?);
    match max_exclusive <= max_any {
        true => Ok(FencedValue::new(value, max_exclusive, max_any)),
        false => Err(foreign("the tokens of a fence gate contradict one another")),
    }
}
