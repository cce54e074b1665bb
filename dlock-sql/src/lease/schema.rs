//! The tables are made, or brought to the version of this program.
//!
//! Two programs that open at once each read the version first. One that finds an old version takes a lock of
//! the server, reads again, and migrates from there. One that finds the present version needs no right to
//! create tables.

use std::sync::Arc;

use dlock_core::{Error, ErrorKind, Result};

use super::call::{Statement, run};
use super::dialect::{Connection, Dialect};
use super::failure::{known_version, nothing_done};
use crate::direct::{Dialect as Driver, Store};
use crate::failure::unavailable;
use crate::gate;

/// The tables of this program, by texts with all names filled in.
pub(in crate::lease) struct Tables {
    /// What the name of each begins with, with the schema.
    pub(in crate::lease) prefix: String,
    /// The table of the gate.
    pub(in crate::lease) fence: String,
    /// Answers a row if there are tables.
    pub(in crate::lease) there: String,
    /// Keeps others from making them; answers 1.
    pub(in crate::lease) lock: String,
    /// Step `n` leads from version `n` to `n + 1`. A step is never changed after a release; a new version
    /// adds one.
    pub(in crate::lease) steps: Vec<String>,
    /// Ends what `lock` began. Where it is not come to, the end of the connection does that.
    pub(in crate::lease) unlock: String,
}

/// The connection by which a database is opened. Where that fails it is closed.
pub(in crate::lease) struct Opening<D: Dialect> {
    pub(in crate::lease) conn: Connection<D>,
    pub(in crate::lease) at: Arc<str>,
}

type Row<D> = <<D as Dialect>::Driver as sqlx::Database>::Row;

impl<D: Dialect> Opening<D> {
    /// The first row of what a text answers.
    pub(in crate::lease) async fn ask(&mut self, text: &str) -> Result<Option<Row<D>>> {
        let answer = run::<D::Driver>(Statement::Text(text.to_owned()), &mut self.conn).await;
        let answer = answer.map_err(|e| nothing_done(e, &self.at))?;
        Ok(answer.rows.into_iter().next())
    }

    async fn number(&mut self, text: &str) -> Result<Option<i64>> {
        let row = self.ask(text).await?;
        let number = row.map(|row| read_number::<D::Driver>(&row)).transpose();
        Ok(number.map_err(|e| nothing_done(e, &self.at))?.flatten())
    }

    /// Brings the tables up to the version of this program.
    pub(in crate::lease) async fn migrate(&mut self, tables: &Tables) -> Result<()> {
        let last = tables.steps.len();
        if self.version(tables).await? == last {
            return Ok(());
        }
        if self.number(&tables.lock).await? != Some(1) {
            let at = &self.at;
            let text = "another program is still creating the lock tables after ten seconds; try again";
            return Err(unavailable(format!("{at}: {text}")));
        }
        let from = self.version(tables).await?;
        for step in tables.steps.iter().skip(from) {
            self.ask(step).await?;
        }
        // A program without a backend may have made it before.
        self.ask(&gate::table::<D::Driver>(&tables.fence)).await?;
        let set = format!("UPDATE {}meta SET schema_version = {last}", tables.prefix);
        self.ask(&set).await?;
        self.ask(&tables.unlock).await.map(drop)
    }

    /// Nought if there are no tables yet. What a newer dlock has made is refused.
    async fn version(&mut self, tables: &Tables) -> Result<usize> {
        if self.ask(&tables.there).await?.is_none() {
            return Ok(0);
        }
        let (prefix, integer) = (&tables.prefix, <D::Driver as Driver>::INTEGER);
        let version = format!("SELECT CAST(schema_version AS {integer}) FROM {prefix}meta");
        let version = self.number(&version).await.map_err(|e| match e.kind() {
            ErrorKind::BackendData => {
                let text = format!(
                    "the table {prefix}meta in {} is not dlock's; choose another table prefix or schema",
                    self.at
                );
                Error::new(ErrorKind::BackendData, text).with_source(e)
            }
            _ => e,
        })?;
        // Another program may have made the table and not yet its row.
        let version = version.unwrap_or(0);
        known_version(version, tables.steps.len(), &format!("{} ({prefix}*)", self.at))
    }
}

fn read_number<DB: Store>(row: &DB::Row) -> Result<Option<i64>, sqlx::Error> {
    DB::read(row, 0)
}
