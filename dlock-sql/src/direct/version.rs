//! Which version of dlock's own tables a database has.
//!
//! The table `…direct` has a row for each part that has a version. A step leads from one version to the next
//! and is never changed after a release. Each can be taken twice, so two programs that make the tables at
//! once do no harm; the version is written last.

use dlock_core::ErrorKind;

use super::dialect::Store;
use super::failure::{Error, Failure, Result};
use super::tables::Tables;

/// A part of the tables, and the steps that this program knows: as many as its version.
pub(super) struct Part<'a> {
    pub(super) name: &'static str,
    pub(super) steps: &'a [String],
    pub(super) tables: &'a Tables,
}

impl Part<'_> {
    /// Takes the steps that are missing.
    pub(super) async fn bring_up<DB: Store>(&self, conn: &mut DB::Connection) -> Result<()> {
        let (table, part) = (self.tables.version(), DB::text(self.name));
        create::<DB>(conn, &DB::version_table(&table)).await?;
        let or_nothing = DB::or_nothing("part");
        let first = format!("INSERT INTO {table} (part, version) VALUES ({part}, 0) {or_nothing}");
        DB::ask(conn, first).await.map_err(Error::of)?;
        let version = self.read::<DB>(conn).await?;
        for (n, step) in (0i64..).zip(self.steps).filter(|(n, _)| *n >= version) {
            create::<DB>(conn, step).await?;
            let next = n + 1;
            let text = format!("UPDATE {table} SET version = {next} WHERE part = {part} AND version = {n}");
            DB::ask(conn, text).await.map_err(Error::of)?;
        }
        Ok(())
    }

    /// Whether the tables are as this program knows them.
    pub(super) async fn check<DB: Store>(&self, conn: &mut DB::Connection) -> Result<()> {
        let version = self.read::<DB>(conn).await?;
        if version < self.known() {
            let advice = format!(
                "needs {}: call `create_table`, as a user who may make tables",
                self.known()
            );
            return Err(self.unsupported(version, &advice));
        }
        Ok(())
    }

    fn known(&self) -> i64 {
        i64::try_from(self.steps.len()).unwrap_or(i64::MAX)
    }

    /// The stored version, which is not above ours.
    async fn read<DB: Store>(&self, conn: &mut DB::Connection) -> Result<i64> {
        let (table, part) = (self.tables.version(), DB::text(self.name));
        let text = format!("SELECT version FROM {table} WHERE part = {part}");
        let rows = DB::ask(conn, text).await.map_err(Error::of)?;
        let Some(row) = rows.first() else { return Ok(0) };
        let version = DB::read_number(row, 0).map_err(Error::of)?.ok_or_else(|| {
            let text = format!("the table `{table}` was not written by dlock: a version is NULL");
            Error::new(ErrorKind::BackendData, text)
        })?;
        if version > self.known() {
            let advice = format!(
                "knows up to {}: a newer dlock has used the database; update this program",
                self.known()
            );
            return Err(self.unsupported(version, &advice));
        }
        Ok(version)
    }

    fn unsupported(&self, version: i64, advice: &str) -> Error {
        let (tables, name) = (self.tables, self.name);
        let text = format!(
            "the tables `{tables}*` of `{name}` have version {version}, this program \
            {advice}"
        );
        Error::new(ErrorKind::Unsupported, text)
    }
}

/// Runs a `CREATE TABLE IF NOT EXISTS`. PostgreSQL does not keep two of them at once from one another: the
/// later one fails, and finds the table the next time.
pub(super) async fn create<DB: Store>(conn: &mut DB::Connection, text: &str) -> Result<()> {
    let mut done = DB::ask(conn, text.to_owned()).await;
    if matches!(&done, Err(e) if Failure::of(e) == Failure::Constraint) {
        done = DB::ask(conn, text.to_owned()).await;
    }
    done.map(drop).map_err(Error::of)
}

#[cfg(all(test, feature = "sqlite", feature = "tokio"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use sqlx::{Connection as _, Row as _, Sqlite, SqliteConnection};

    use super::*;

    async fn versions(conn: &mut SqliteConnection) -> Vec<i64> {
        let rows = sqlx::query("SELECT version FROM dlock_direct")
            .fetch_all(conn)
            .await;
        rows.unwrap().iter().map(|row| row.get(0)).collect()
    }

    #[tokio::test]
    async fn a_next_version_is_reached_from_the_one_before_and_refused_by_it() {
        let tables = &Tables::default();
        let steps = [
            "CREATE TABLE IF NOT EXISTS dlock_thing (a INTEGER)".to_owned(),
            "CREATE TABLE IF NOT EXISTS dlock_other (b INTEGER)".to_owned(),
        ];
        let part = |steps| Part {
            name: "thing",
            steps,
            tables,
        };
        let (old, new) = (part(&steps[..1]), part(&steps[..]));
        let mut conn = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        old.bring_up::<Sqlite>(&mut conn).await.unwrap();
        let insert = sqlx::query("INSERT INTO dlock_thing VALUES (5)");
        insert.execute(&mut conn).await.unwrap();
        let e = new.check::<Sqlite>(&mut conn).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        new.bring_up::<Sqlite>(&mut conn).await.unwrap();
        assert_eq!(versions(&mut conn).await, [2]);
        new.check::<Sqlite>(&mut conn).await.unwrap();
        let kept = sqlx::query("SELECT a FROM dlock_thing, (SELECT count(*) FROM dlock_other)");
        assert_eq!(kept.fetch_one(&mut conn).await.unwrap().get::<i64, _>(0), 5);
        for e in [
            old.check::<Sqlite>(&mut conn).await,
            old.bring_up::<Sqlite>(&mut conn).await,
        ] {
            assert_eq!(e.unwrap_err().kind(), ErrorKind::Unsupported);
        }
        assert_eq!(versions(&mut conn).await, [2]);
    }
}
