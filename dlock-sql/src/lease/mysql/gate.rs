//! The fence gate, in this backend's own tables.
//!
//! One statement that ends with the row locked and changed where the token is admitted: it says so by the insert id. Where the token is not, nothing is set.

use async_trait::async_trait;
use dlock_core::spi::{Access, Admission, FenceGate, FencedValue, Lock as _};
use dlock_core::{Error, LockName, Result, Token};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use super::failure::foreign;
use super::lock::{MysqlLease, bind, values};
use super::text::bytes;
use crate::lease::check::{check_name, check_token};

#[async_trait]
impl FenceGate for MysqlLease {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.pass(resource, token, access, None).await
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        self.pass(resource, token, Access::Exclusive, Some(value)).await
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        let read = async {
            check_name(self.capabilities(), resource)?;
            let mut args = values();
            bind(&mut args, resource.as_bytes())?;
            let rows = self.link.read(&self.link.sql.read_fence, args).await?;
            rows.first().map(read_fence).transpose()
        };
        read.await.map_err(|e: Error| e.with_name(resource))
    }
}

fn read_fence(row: &MySqlRow) -> Result<FencedValue> {
    let bad = |_: sqlx::Error| foreign("a resource of the fence gate");
    let token = |at: usize| -> Result<Option<Token>> {
        let stored: Option<i64> = row.try_get(at).map_err(bad)?;
        Ok(stored.and_then(|n| u64::try_from(n).ok()).and_then(Token::new))
    };
    Ok(FencedValue::new(
        row.try_get(0).map_err(bad)?,
        token(1)?,
        token(2)?,
    ))
}

impl MysqlLease {
    /// The row is made first, empty, if it is not there; then one statement checks and writes.
    async fn pass(
        &self,
        resource: &LockName,
        token: Token,
        access: Access,
        value: Option<&[u8]>,
    ) -> Result<Admission> {
        let passed = async {
            check_name(self.capabilities(), resource)?;
            check_token(token)?;
            let (p, key, t) = (&self.link.sql.prefix, bytes(resource.as_bytes()), token.get());
            let bar = match access {
                Access::Exclusive => "max_any",
                _ => "max_exclusive",
            };
            let value = value.map_or(String::new(), |v| format!("value = {}, ", bytes(v)));
            let exclusive = match access {
                Access::Exclusive => format!("max_exclusive = GREATEST(COALESCE(max_exclusive, 0), {t}), "),
                _ => String::new(),
            };
            // Found rows are counted, whether or not anything in them is another than before: the driver asks for that.
            let update = format!(
                "UPDATE {p}fence SET {value}{exclusive}max_any = GREATEST(COALESCE(max_any, 0), {t}) \
                 WHERE resource = {key} AND COALESCE({bar}, 0) <= {t}"
            );
            if self.link.tell(update.clone()).await? > 0 {
                return Ok(Admission::Admitted);
            }
            let make = format!("INSERT IGNORE INTO {p}fence VALUES ({key}, NULL, NULL, X'')");
            if self.link.tell(make).await? > 0 && self.link.tell(update).await? > 0 {
                return Ok(Admission::Admitted);
            }
            let rows = self
                .link
                .read_text(format!("SELECT {bar} FROM {p}fence WHERE resource = {key}"))
                .await?;
            let stored = rows.first().and_then(|row| row.try_get::<Option<i64>, _>(0).ok());
            let stored = stored.flatten().and_then(|n| u64::try_from(n).ok());
            let highest = stored.and_then(Token::new).unwrap_or(token);
            Ok::<_, Error>(Admission::Refused { highest })
        };
        passed.await.map_err(|e| e.with_name(resource))
    }
}
