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

#[cfg(all(test, feature = "sqlite", feature = "tokio"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use sqlx::{Connection as _, Row as _, Sqlite, SqliteConnection};

    use super::*;

    const FIRST: &str = "CREATE TABLE IF NOT EXISTS dlock_thing (a INTEGER)";
    const SECOND: &str = "CREATE TABLE IF NOT EXISTS dlock_other (b INTEGER)";

    async fn versions(conn: &mut SqliteConnection) -> Vec<i64> {
        let rows = sqlx::query("SELECT version FROM dlock_direct")
            .fetch_all(conn)
            .await;
        rows.expect("the table of versions is there")
            .iter()
            .map(|row| row.get(0))
            .collect()
    }

    #[tokio::test]
    async fn a_next_version_is_reached_from_the_one_before_and_refused_by_it() {
        let tables = Tables::default();
        let (one, two) = ([FIRST.to_owned()], [FIRST.to_owned(), SECOND.to_owned()]);
        let old = Part {
            name: "thing",
            steps: &one,
        };
        let new = Part {
            name: "thing",
            steps: &two,
        };
        let mut conn = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        old.bring_up::<Sqlite>(&mut conn, &tables).await.unwrap();
        sqlx::query("INSERT INTO dlock_thing VALUES (5)")
            .execute(&mut conn)
            .await
            .unwrap();
        let e = new.check::<Sqlite>(&mut conn, &tables).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        new.bring_up::<Sqlite>(&mut conn, &tables).await.unwrap();
        assert_eq!(versions(&mut conn).await, [2]);
        new.check::<Sqlite>(&mut conn, &tables).await.unwrap();
        let kept = sqlx::query("SELECT a FROM dlock_thing, (SELECT count(*) FROM dlock_other)");
        assert_eq!(kept.fetch_one(&mut conn).await.unwrap().get::<i64, _>(0), 5);
        for e in [
            old.check::<Sqlite>(&mut conn, &tables).await,
            old.bring_up::<Sqlite>(&mut conn, &tables).await,
        ] {
            assert_eq!(e.unwrap_err().kind(), ErrorKind::Unsupported);
        }
        assert_eq!(versions(&mut conn).await, [2]);
    }
}
