//! The resource side of fencing.

use std::sync::Arc;

use dlock_core::{Access, Admission, LockName, Result, Token};

use super::call::Value;
use super::{Db, Postgres};
use crate::lease::call::get;
use crate::lease::dialect::Gate;
use crate::lease::keys::read_token;

/// Checks, notes, and writes if it shall; it begins with locking the row. A row if it was admitted.
const PASS: &str = "INSERT INTO {p}fence AS f (resource, max_exclusive, max_any, value) \
    VALUES ($1, CASE WHEN $4 THEN $2 END, $2, $3) ON CONFLICT (resource) DO UPDATE SET \
    max_exclusive = greatest(f.max_exclusive, excluded.max_exclusive), \
    max_any = greatest(f.max_any, excluded.max_any), \
    value = CASE WHEN $5 THEN excluded.value ELSE f.value END \
    WHERE coalesce(CASE WHEN $4 THEN f.max_any ELSE f.max_exclusive END, 0) <= excluded.max_any RETURNING 1";

/// What a token has to reach.
const BAR: &str =
    "SELECT CASE WHEN $2 THEN f.max_any ELSE f.max_exclusive END FROM {p}fence AS f WHERE f.resource = $1";

impl Gate for Postgres {
    async fn admit(
        db: &Arc<Db>,
        resource: &LockName,
        token: Token,
        access: Access,
        value: Option<&[u8]>,
    ) -> Result<Admission> {
        let name = Value::Bytes(resource.as_bytes());
        let exclusive = Value::Truth(access == Access::Exclusive);
        let values = [
            name.clone(),
            Value::Long(token.get() as i64),
            Value::Bytes(value.unwrap_or_default()),
            exclusive.clone(),
            Value::Truth(value.is_some()),
        ];
        if !db.ask(&db.sql.fill(PASS), &values).await?.1.rows.is_empty() {
            return Ok(Admission::Admitted);
        }
        // The token that was in the way. Where none is any more, somebody has removed the row since: then it
        // is the one that was refused.
        let bar = db.read_rows(&db.sql.fill(BAR), &[name, exclusive]).await?;
        let bar = bar.first().and_then(|row| get::<Option<_>, _>(row, 0).ok());
        let highest = bar.flatten().and_then(|n| read_token(n).ok()).unwrap_or(token);
        Ok(Admission::Refused { highest })
    }

    fn tables(&self) -> &str {
        &self.sql.prefix
    }
}
