//! MySQL and MariaDB.

use sqlx::MySql;
use sqlx::SqlSafeStr as _;
use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlRow};

use super::*;
use crate::direct::failure::Failure;

/// In any isolation: what is read there is read by locking, and that is always what is newest.
const BEGIN: &str = "START TRANSACTION READ WRITE";

impl Store for MySql {}

impl Dialect for MySql {
    const INTEGER: &'static str = "SIGNED";
    const RECOVERS: bool = false;
    const TODAY: &'static str = "UTC_TIMESTAMP(6)";
    const LOCKING: &'static str = " FOR UPDATE";

    // Not INSERT IGNORE: that locks a row that is there for readers, and two who then want to write it are a
    // deadlock. This one locks it for a writer at once.
    fn or_nothing(key: &str) -> String {
        format!("ON DUPLICATE KEY UPDATE {key} = {key}")
    }

    fn placeholder(_: usize) -> String {
        "?".to_owned()
    }

    fn bytes(bytes: &[u8]) -> String {
        format!("X'{}'", hex(bytes))
    }

    fn text(text: &str) -> String {
        format!("CONVERT(X'{}' USING utf8mb4)", hex(text.as_bytes()))
    }

    // InnoDB: the other engines know no transactions. VARBINARY, which is compared byte for byte.
    fn fence_table(table: &str) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (resource VARBINARY(1024) NOT NULL PRIMARY KEY, \
             max_exclusive BIGINT, max_any BIGINT, value LONGBLOB NOT NULL) ENGINE = InnoDB"
        )
    }

    fn version_table(table: &str) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (part VARCHAR(32) CHARACTER SET ascii NOT NULL PRIMARY KEY, \
             version BIGINT NOT NULL) ENGINE = InnoDB"
        )
    }

    fn reentrant_table(table: &str) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (name VARBINARY(1024) NOT NULL PRIMARY KEY, holds BIGINT \
             NOT NULL, \
             owner_label VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL, owner_id VARBINARY(16) NOT NULL, \
             token BIGINT NOT NULL, \
             last_change VARBINARY(16) NOT NULL, since DATETIME(6), expires_at DATETIME(6)) ENGINE = InnoDB"
        )
    }

    // UTC, which has no hour twice. It is when the statement began, perhaps before it waited: that makes who
    // holds look alive for longer, and what is written end sooner, but never before ttl has gone since the
    // client sent it.
    fn remaining() -> dlock_core::Result<String> {
        Ok("TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at)".to_owned())
    }

    fn lasting(ttl: Duration, extend: Extend) -> dlock_core::Result<String> {
        let end = format!("UTC_TIMESTAMP(6) + INTERVAL {} MICROSECOND", micros(ttl));
        Ok(match extend {
            Extend::Anew => format!("expires_at = {end}"),
            Extend::AtLeast => format!("expires_at = GREATEST(expires_at, {end})"),
        })
    }

    /// A wait that is over takes back its statement and no more, so the transaction goes on.
    ///
    /// MariaDB is told the limit in the statement. MySQL knows no such word: there it is a variable of the
    /// session, which is put back afterwards.
    fn lock<'a>(
        conn: &'a mut MySqlConnection,
        _: &'static str,
        select: String,
        arguments: MySqlArguments,
        wait: Wait,
        prepared: Prepared,
    ) -> Done<'a, Option<Vec<MySqlRow>>> {
        Box::pin(async move {
            let (mut clause, mut back, mut prepared) = (" FOR UPDATE".to_owned(), None, prepared);
            match wait {
                Wait::Block => {}
                Wait::NoWait => clause.push_str(" NOWAIT"),
                Wait::SkipLocked => clause.push_str(" SKIP LOCKED"),
                Wait::AtMost(limit) => {
                    let seconds = whole(limit, Duration::from_secs(1));
                    let asked = "SELECT @@version LIKE '%MariaDB%'".to_owned();
                    let shown = Self::ask(&mut *conn, asked).await?;
                    let is_maria = shown.first().map(|row| sqlx::Row::try_get::<i64, _>(row, 0));
                    if is_maria.transpose()? == Some(1) {
                        clause.push_str(&format!(" WAIT {seconds}"));
                        // The text has a number in it.
                        prepared = Prepared::Once;
                    } else {
                        let set = format!(
                            "SET @dlock_wait = @@SESSION.innodb_lock_wait_timeout; \
                             SET SESSION innodb_lock_wait_timeout = {seconds}"
                        );
                        Self::ask(&mut *conn, set).await?;
                        back = Some("SET SESSION innodb_lock_wait_timeout = @dlock_wait");
                    }
                }
            }
            let sql = AssertSqlSafe(format!("{select}{clause}")).into_sql_str();
            let found = Self::all(&mut *conn, sql, arguments, prepared).await;
            if let Some(back) = back {
                let done = Self::ask(&mut *conn, back.to_owned()).await;
                // A connection that is gone has no variables either; the first error tells why.
                if found.is_ok() {
                    done?;
                }
            }
            match found {
                Err(e)
                    if matches!(wait, Wait::NoWait | Wait::AtMost(_))
                        && Failure::of(&e) == Failure::LockTimeout =>
                {
                    Ok(None)
                }
                found => found.map(Some),
            }
        })
    }

    speaks!(MySqlArguments, MySqlConnection, MySqlRow);
}
