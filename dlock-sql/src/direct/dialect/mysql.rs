//! MySQL and MariaDB.

use sqlx::MySql;
use sqlx::SqlSafeStr as _;
use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlRow};

use super::*;
use crate::direct::failure::Failure;

impl Dialect for MySql {
    // In any isolation: what is read here is read by locking, and that is always what is newest.
    const BEGIN: &'static str = "START TRANSACTION READ WRITE";
    const TODAY: &'static str = "UTC_TIMESTAMP(6)";
    const INTEGER: &'static str = "SIGNED";
    // Compared byte for byte.
    const KEY: &'static str = "VARBINARY(1024)";
    const BYTES: &'static str = "LONGBLOB";
    const TEXT: &'static str = "VARCHAR(255) CHARACTER SET utf8mb4";
    const TIMES: &'static str = "since DATETIME(6), expires_at DATETIME(6)";
    // The other engines know no transactions.
    const OPTIONS: &'static str = " ENGINE = InnoDB";

    // Not INSERT IGNORE: that locks a row that is there for readers, and two who then want to write it are a
    // deadlock. This one locks it for a writer at once.
    fn or_nothing(key: &str) -> String {
        format!("ON DUPLICATE KEY UPDATE {key} = {key}")
    }

    fn text(text: &str) -> String {
        format!("CONVERT(X'{}' USING utf8mb4)", hex(text.as_bytes()))
    }

    // UTC, which has no hour twice. It is when the statement began, perhaps before it waited: that makes who
    // holds look alive for longer, and what is written end sooner, but never before ttl has gone since the
    // client sent it.
    fn remaining() -> dlock_core::Result<String> {
        Ok("TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at)".to_owned())
    }

    // Rounded down: the holder takes a margin off, which is more.
    fn expiry_after(ttl: Duration) -> String {
        format!("UTC_TIMESTAMP(6) + INTERVAL {} MICROSECOND", ttl.as_micros())
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
        mut prepared: Prepared,
    ) -> Done<'a, Option<Vec<MySqlRow>>> {
        Box::pin(async move {
            let (mut clause, mut back) = (String::new(), None);
            match wait {
                Wait::Block => {}
                Wait::NoWait => clause.push_str(" NOWAIT"),
                Wait::SkipLocked => clause.push_str(" SKIP LOCKED"),
                Wait::AtMost(limit) => {
                    let seconds = whole(limit, Duration::from_secs(1));
                    let asked = "SELECT @@version LIKE '%MariaDB%'".to_owned();
                    let shown = Self::ask(&mut *conn, asked).await?;
                    let is_maria = shown.first().map(|row| Self::read_number(row, 0)).transpose()?;
                    if is_maria == Some(Some(1)) {
                        clause = format!(" WAIT {seconds}");
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
            let sql = AssertSqlSafe(format!("{select}{}{clause}", Self::LOCKING)).into_sql_str();
            let found = Self::all(&mut *conn, sql, arguments, prepared).await;
            if let Some(back) = back {
                let done = Self::ask(&mut *conn, back.to_owned()).await;
                // A connection that is gone has no variables either; the first error tells why.
                if found.is_ok() {
                    done?;
                }
            }
            let has_end = matches!(wait, Wait::NoWait | Wait::AtMost(_));
            match found {
                Err(e) if has_end && Failure::of(&e) == Failure::LockTimeout => Ok(None),
                found => found.map(Some),
            }
        })
    }

    driver_calls!(MySqlArguments, MySqlConnection, MySqlRow);
}
