//! Which version of dlock's own tables a database has.
//!
//! The table `…direct` has a row for each part that has a version. A step leads from one version to the next and is never changed after a release. Each can be
//! taken twice, so two programs that make the tables at once do no harm; the version is written last.

use dlock_core::ErrorKind;

use super::database::{Store, Value, all_own, execute_own};
use super::failure::{Error, Failure, Result};
use super::tables::Tables;

/// A part, and the steps that this program knows: as many as its version.
pub(super) struct Part<'a> {
    pub(super) name: &'static str,
    pub(super) steps: &'a [String],
}

impl Part<'_> {
    /// Takes the steps that are missing.
    pub(super) async fn bring_up<DB: Store>(&self, conn: &mut DB::Connection, tables: &Tables) -> Result<()> {
        let table = tables.direct();
        create::<DB>(conn, &DB::version_table(&table.to_string())).await?;
        let text = format!(
            "INSERT INTO {table} (part, version) VALUES (?, 0) {}",
            DB::or_nothing("part")
        );
        execute_own::<DB>(conn, &text, &[self.key()])
            .await
            .map_err(Error::of)?;
        let version = self.read::<DB>(conn, tables).await?;
        self.refuse_newer(version, tables)?;
        for (n, step) in (0i64..).zip(self.steps).filter(|(n, _)| *n >= version) {
            create::<DB>(conn, step).await?;
            let text = format!("UPDATE {table} SET version = ? WHERE part = ? AND version = ?");
            let values = [Value::Number(n + 1), self.key(), Value::Number(n)];
            execute_own::<DB>(conn, &text, &values).await.map_err(Error::of)?;
        }
        Ok(())
    }

    /// Whether the tables are as this program knows them.
    pub(super) async fn check<DB: Store>(&self, conn: &mut DB::Connection, tables: &Tables) -> Result<()> {
        let version = self.read::<DB>(conn, tables).await?;
        self.refuse_newer(version, tables)?;
        if version < self.known() {
            let text = format!(
                "the tables `{tables}*` of `{}` have version {version}, this program needs {}: call `create_table`, as a user who may make tables",
                self.name,
                self.known()
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        Ok(())
    }

    fn key(&self) -> Value {
        Value::Text(self.name.to_owned())
    }

    fn known(&self) -> i64 {
        i64::try_from(self.steps.len()).unwrap_or(i64::MAX)
    }

    async fn read<DB: Store>(&self, conn: &mut DB::Connection, tables: &Tables) -> Result<i64> {
        let text = format!("SELECT version FROM {} WHERE part = ?", tables.direct());
        let rows = all_own::<DB>(conn, &text, &[self.key()])
            .await
            .map_err(Error::of)?;
        let Some(row) = rows.first() else { return Ok(0) };
        let version = DB::number(row, 0).map_err(Error::of)?;
        version.ok_or_else(|| {
            let text = format!(
                "the table `{}` was not written by dlock: a version is NULL",
                tables.direct()
            );
            Error::new(ErrorKind::BackendData, text)
        })
    }

    fn refuse_newer(&self, version: i64, tables: &Tables) -> Result<()> {
        if version <= self.known() {
            return Ok(());
        }
        let text = format!(
            "the tables `{tables}*` of `{}` have version {version}, this program knows up to {}: a newer dlock has used the database; update this program",
            self.name,
            self.known()
        );
        Err(Error::new(ErrorKind::Unsupported, text))
    }
}

/// Runs a `CREATE TABLE IF NOT EXISTS`. PostgreSQL does not keep two of them at once from one another: the later one fails, and finds the table
/// the next time.
pub(super) async fn create<DB: Store>(conn: &mut DB::Connection, text: &str) -> Result<()> {
    let mut done = execute_own::<DB>(conn, text, &[]).await;
    if matches!(&done, Err(e) if Failure::of(e) == Failure::Constraint) {
        done = execute_own::<DB>(conn, text, &[]).await;
    }
    done.map_err(Error::of)
}
