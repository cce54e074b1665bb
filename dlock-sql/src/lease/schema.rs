//! The tables are made, or found to be of this version.
//!
//! Two that open at once: each looks for the version first, and whoever finds no tables takes a lock of the
//! server, looks again, and makes them. Who finds them as they should be needs no right to make any.

use std::sync::Arc;

use dlock_core::{Error, ErrorKind, Result};

use super::call::{Statement, run};
use super::dialect::{Connection, Dialect};
use super::failure::{foreign, nothing_done};
use crate::direct::{Dialect as Driver, Store};

/// The tables of this program, by statements with all names filled in.
pub(in crate::lease) struct Tables {
    /// What the name of each begins with, with the schema.
    pub(in crate::lease) prefix: String,
    pub(in crate::lease) version: i64,
    /// Answers a row if there are tables.
    pub(in crate::lease) there: String,
    /// Keeps others from making them; answers 1.
    pub(in crate::lease) lock: String,
    /// Makes them, and sets the version at last.
    pub(in crate::lease) make: String,
    /// Ends what `lock` began. Where it is not come to, the end of the connection does that.
    pub(in crate::lease) unlock: String,
}

/// The connection by which a database is opened. Where that fails it is closed.
pub(in crate::lease) struct Opening<D: Dialect> {
    pub(in crate::lease) conn: Connection<D>,
    pub(in crate::lease) at: Arc<str>,
}

impl<D: Dialect> Opening<D> {
    /// The first row of what a text answers.
    pub(in crate::lease) async fn ask(
        &mut self,
        text: &str,
    ) -> Result<Option<<D::Driver as sqlx::Database>::Row>> {
        let answer = run::<D::Driver>(Statement::Text(text.to_owned()), &mut self.conn).await;
        let answer = answer.map_err(|e| nothing_done::<D>(e, &self.at))?;
        Ok(answer.rows.into_iter().next())
    }

    async fn number(&mut self, text: &str) -> Result<Option<i64>> {
        let row = self.ask(text).await?;
        let number = row.map(|row| read_number::<D::Driver>(&row)).transpose();
        Ok(number.map_err(|e| nothing_done::<D>(e, &self.at))?.flatten())
    }

    pub(in crate::lease) async fn migrate(&mut self, tables: &Tables) -> Result<()> {
        if self.has(tables).await? {
            return Ok(());
        }
        if self.number(&tables.lock).await? != Some(1) {
            let text = format!(
                "another program has been making the lock tables in {} for ten seconds; try again",
                self.at
            );
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        if !self.has(tables).await? {
            self.ask(&tables.make).await?;
        }
        self.ask(&tables.unlock).await.map(drop)
    }

    /// Whether they are there in this version. Of another one they are refused.
    async fn has(&mut self, tables: &Tables) -> Result<bool> {
        let (prefix, known) = (&tables.prefix, tables.version);
        if self.ask(&tables.there).await?.is_none() {
            return Ok(false);
        }
        let integer = <D::Driver as Driver>::INTEGER;
        let version = format!("SELECT CAST(schema_version AS {integer}) FROM {prefix}meta");
        let version = self.number(&version).await.map_err(|e| match e.kind() {
            ErrorKind::BackendData => foreign_table(prefix, &self.at).with_source(e),
            _ => e,
        })?;
        match version {
            // Another program may have made the table and not yet its row, or not yet the others.
            None | Some(0) => Ok(false),
            Some(version) if version == known => Ok(true),
            Some(version) if version > known => {
                let text = format!(
                    "the lock tables {prefix}* in {} have schema version {version}, this program knows up to \
                     {known}: a newer dlock has used the database; update this program",
                    self.at
                );
                Err(Error::new(ErrorKind::Unsupported, text))
            }
            Some(_) => Err(foreign("another schema version")),
        }
    }
}

fn read_number<DB: Store>(row: &DB::Row) -> Result<Option<i64>, sqlx::Error> {
    DB::read(row, 0)
}

fn foreign_table(prefix: &str, at: &str) -> Error {
    let text =
        format!("the table {prefix}meta in {at} is not dlock's; choose another table prefix or schema");
    Error::new(ErrorKind::BackendData, text)
}
