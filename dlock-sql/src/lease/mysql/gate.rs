//! The resource side of fencing.

use std::sync::Arc;

use dlock_core::{Access, Admission, LockName, Result, Token};

use super::{Db, Mysql, bytes};
use crate::lease::dialect::Gate;

impl Gate for Mysql {
    /// The statement makes the row, or checks and writes it: nobody reads a row that was made and not written
    /// yet. What it was checked against comes back as the insert id. A new row is checked against nothing.
    async fn admit(
        db: &Arc<Db>,
        resource: &LockName,
        asked: Token,
        access: Access,
        value: Option<&[u8]>,
    ) -> Result<Admission> {
        let (p, key, t) = (&db.sql.prefix, bytes(resource.as_bytes()), asked.get());
        // Assignments are made from left to right, so what decides is changed last.
        let (exclusive, set) = match access {
            Access::Exclusive => {
                let passes = format!("COALESCE(max_any, 0) <= {t}");
                let written = value.map_or(String::new(), |v| {
                    format!("value = IF({passes}, {}, value), ", bytes(v))
                });
                let set = format!(
                    "{written}max_exclusive = IF({passes}, GREATEST(COALESCE(max_exclusive, 0), {t}), \
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
        let first = bytes(value.unwrap_or_default());
        let upsert = format!(
            "INSERT INTO {p}fence (resource, max_exclusive, max_any, value) \
             VALUES ({key}, {exclusive}, {t} + LAST_INSERT_ID(0), {first}) ON DUPLICATE KEY UPDATE {set}"
        );
        let (_, told) = db.tell(upsert).await?;
        Ok(match Token::new(told.done.last_insert_id()) {
            Some(highest) if highest > asked => Admission::Refused { highest },
            _ => Admission::Admitted,
        })
    }

    fn tables(&self) -> &str {
        &self.sql.prefix
    }
}
