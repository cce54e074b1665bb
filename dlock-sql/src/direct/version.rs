//! Which version of its own tables dlock finds in a database.
//!
//! The table `…direct` has a row for each part that has a version. A step leads from one version to the next
//! and is never changed after a release. Each can be taken twice, so two programs that make the tables at
//! once do no harm; the version is written last.

use dlock_core::ErrorKind;

use super::dialect::Store;
use super::failure::{Error, Result};
use super::tables::{Tables, create};

/// A part of the tables, and the steps that this program knows: as many as its version.
pub(super) struct Part<'a> {
    pub(super) name: &'static str,
    pub(super) steps: Vec<String>,
    pub(super) tables: &'a Tables,
}

impl Part<'_> {
    /// Takes the steps that are missing.
    pub(super) async fn bring_up<DB: Store>(&self, conn: &mut DB::Connection) -> Result<()> {
        let (table, part) = (self.tables.version(), DB::text(self.name));
        let (text, number, options) = (DB::TEXT, DB::NUMBER, DB::OPTIONS);
        let columns = format!("part {text} NOT NULL PRIMARY KEY, version {number} NOT NULL");
        create::<DB>(
            conn,
            &format!("CREATE TABLE IF NOT EXISTS {table} ({columns}){options}"),
        )
        .await?;
        let or_nothing = DB::or_nothing("part");
        let first = format!("INSERT INTO {table} (part, version) VALUES ({part}, 0) {or_nothing}");
        DB::ask(conn, first).await.map_err(Error::of)?;
        let version = self.read::<DB>(conn).await?;
        for (n, step) in self.steps.iter().enumerate().skip(version) {
            create::<DB>(conn, step).await?;
            let next = n + 1;
            let text = format!("UPDATE {table} SET version = {next} WHERE part = {part} AND version = {n}");
            DB::ask(conn, text).await.map_err(Error::of)?;
        }
        Ok(())
    }

    /// Whether the tables are as this program knows them.
    pub(super) async fn check<DB: Store>(&self, conn: &mut DB::Connection) -> Result<()> {
        let (version, known) = (self.read::<DB>(conn).await?, self.steps.len());
        if version < known {
            let advice = format!("needs {known}: call `create_table`, as a user who may make tables");
            return Err(self.unsupported(version, &advice));
        }
        Ok(())
    }

    /// The stored version, which is not above ours.
    async fn read<DB: Store>(&self, conn: &mut DB::Connection) -> Result<usize> {
        let (table, part) = (self.tables.version(), DB::text(self.name));
        let text = format!("SELECT version FROM {table} WHERE part = {part}");
        let rows = DB::ask(conn, text).await.map_err(Error::of)?;
        let Some(row) = rows.first() else { return Ok(0) };
        let stored = DB::read_number(row, 0).map_err(Error::of)?;
        let version = stored.and_then(|n| usize::try_from(n).ok()).ok_or_else(|| {
            let text = format!("the table `{table}` was not written by dlock: {stored:?} is no version");
            Error::new(ErrorKind::BackendData, text)
        })?;
        let known = self.steps.len();
        if version > known {
            let advice = "a newer dlock has used the database; update this program";
            return Err(self.unsupported(version, &format!("knows up to {known}: {advice}")));
        }
        Ok(version)
    }

    fn unsupported(&self, version: usize, advice: &str) -> Error {
        let (tables, name) = (self.tables, self.name);
        let text =
            format!("the tables `{tables}*` of `{name}` have version {version}, this program {advice}");
        Error::new(ErrorKind::Unsupported, text)
    }
}

#[cfg(all(test, feature = "sqlite", feature = "tokio"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use sqlx::{Connection as _, Row as _, Sqlite, SqliteConnection};

    use super::*;

    #[tokio::test]
    async fn a_version_is_reached_from_the_one_before_and_refused_by_it() {
        let steps = ["thing", "other"].map(|t| format!("CREATE TABLE IF NOT EXISTS {t} (a INTEGER)"));
        let (name, tables) = ("thing", &Tables::default());
        let part = |steps: &[String]| Part {
            name,
            steps: steps.to_vec(),
            tables,
        };
        let (old, new) = (part(&steps[..1]), part(&steps[..]));
        let conn = &mut SqliteConnection::connect("sqlite::memory:").await.unwrap();
        old.bring_up::<Sqlite>(conn).await.unwrap();
        sqlx::query("INSERT INTO thing VALUES (5)")
            .execute(&mut *conn)
            .await
            .unwrap();
        let e = new.check::<Sqlite>(conn).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        new.bring_up::<Sqlite>(conn).await.unwrap();
        new.check::<Sqlite>(conn).await.unwrap();
        let kept = sqlx::query("SELECT a, version FROM thing, dlock_direct, (SELECT count(*) FROM other)");
        let kept = kept.fetch_one(&mut *conn).await.unwrap();
        assert_eq!((kept.get::<i64, _>(0), kept.get::<i64, _>(1)), (5, 2));
        for e in [
            old.check::<Sqlite>(conn).await,
            old.bring_up::<Sqlite>(conn).await,
        ] {
            assert_eq!(e.unwrap_err().kind(), ErrorKind::Unsupported);
        }
        assert_eq!(new.read::<Sqlite>(conn).await.unwrap(), 2);
    }
}
