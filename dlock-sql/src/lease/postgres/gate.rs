//! The fence gate: check and write in one statement.

use std::sync::Arc;

use dlock_core::{Access, Admission, FencedValue, LockName, Result, Token};
use sqlx::Row as _;

use super::Db;
use super::call::Value;
use crate::lease::failure::foreign_column;
use crate::lease::keys::read_token;

pub(super) async fn admit(
    db: &Arc<Db>,
    resource: &LockName,
    token: Token,
    access: Access,
    value: Option<&[u8]>,
) -> Result<Admission> {
    let exclusive = usize::from(access == Access::Exclusive);
    let pass = &db.sql.pass[exclusive + usize::from(value.is_some())];
    let name = Value::Bytes(resource.as_bytes());
    let value = Value::Bytes(value.unwrap_or_default());
    let values = [name.clone(), Value::Long(token.get() as i64), value];
    if !db.ask(pass, &values).await?.1.rows.is_empty() {
        return Ok(Admission::Admitted);
    }
    // The token that was in the way. Where none is any more, somebody has removed the row since: then it is
    // the one that was refused.
    let bar = db.read_rows(&db.sql.bar[exclusive], &[name]).await?;
    let bar = bar
        .rows
        .first()
        .and_then(|row| row.try_get::<Option<i64>, _>(0).ok());
    let highest = bar.flatten().and_then(|n| read_token(n).ok()).unwrap_or(token);
    Ok(Admission::Refused { highest })
}

pub(super) async fn read(db: &Arc<Db>, resource: &LockName) -> Result<Option<FencedValue>> {
    let name = [Value::Bytes(resource.as_bytes())];
    let rows = db.read_rows(&db.sql.read_fence, &name).await?;
    let Some(row) = rows.rows.first() else {
        return Ok(None);
    };
    let token = |column: usize| {
        let stored: Option<i64> = row.try_get(column).map_err(foreign_column)?;
        stored.map(read_token).transpose()
    };
    let value = row.try_get(0).map_err(foreign_column)?;
    Ok(Some(FencedValue::new(value, token(1)?, token(2)?)))
}
