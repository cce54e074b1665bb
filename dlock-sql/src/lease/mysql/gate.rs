//! The fence gate: check and write in one statement.

use std::sync::Arc;

use dlock_core::{Access, Admission, FencedValue, LockName, Result, Token};

use super::Db;
use super::call::bytes;
use super::state::{get, token};

/// The statement makes the row, or checks and writes it: nobody reads a row that was made and not written
/// yet. What it was checked against comes back as the insert id. A new row is checked against nothing.
pub(super) async fn admit(
    db: &Arc<Db>,
    resource: &LockName,
    token: Token,
    access: Access,
    value: Option<&[u8]>,
) -> Result<Admission> {
    let (p, key, t) = (&db.sql.prefix, bytes(resource.as_bytes()), token.get());
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
    let (_, told) = db.tell(upsert).await?;
    Ok(match Token::new(told.id) {
        Some(highest) if highest > token => Admission::Refused { highest },
        _ => Admission::Admitted,
    })
}

pub(super) async fn read(db: &Arc<Db>, resource: &LockName) -> Result<Option<FencedValue>> {
    let (p, key) = (&db.sql.prefix, bytes(resource.as_bytes()));
    let text = format!("SELECT value, max_exclusive, max_any FROM {p}fence WHERE resource = {key}");
    let rows = db.read_text(text).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    Ok(Some(FencedValue::new(
        get(row, 0)?,
        token(row, 1)?,
        token(row, 2)?,
    )))
}
