//! Names are locked, changed and let go in one transaction of two round trips: one opens it and loads, the
//! other writes and commits.

use std::collections::HashMap;
use std::sync::Arc;

use dlock_core::{LockName, Result, Timestamp};
use sqlx::mysql::MySqlRow;

use super::call::Statement;
use super::connection::{Db, Mysql};
use super::failure::{foreign, is_fatal, nothing_done, perhaps_done};
use super::state::{CLOCK, ENTRY, Loaded, Mark, NAME, kind, read_clock, read_name};
use super::text::list;
use crate::lease::connection::Lent;
use crate::lease::contention::Seen;

/// What becomes of a name that has no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    /// It is given one.
    Made,
    /// There is nothing to be done about it.
    Left,
}

/// Names in a transaction.
pub(super) struct View {
    pub(super) now: Timestamp,
    names: HashMap<LockName, Result<Loaded>>,
}

impl View {
    /// A name, with what has run out taken back; `None` if it has no row. What cannot be read of it is its
    /// own failure.
    pub(super) fn name(&mut self, name: &LockName) -> Result<Option<&mut Loaded>> {
        match self.names.get_mut(name) {
            None => Ok(None),
            Some(Ok(loaded)) => Ok(Some(loaded)),
            Some(Err(e)) => Err(e.clone()),
        }
    }

    /// One that has been given a row.
    pub(super) fn made(&mut self, name: &LockName) -> Result<&mut Loaded> {
        self.name(name)?
            .ok_or_else(|| foreign("a name whose row was made and is not there"))
    }
}

impl Db {
    /// Opens a transaction by a text that changes nothing, once more if that is lost with a connection that
    /// had stood idle: where it is open, and when the text was sent.
    pub(super) async fn begin(&self, text: &str) -> Result<(Lent<Mysql>, Timestamp, Vec<MySqlRow>)> {
        let mut again = true;
        loop {
            let mut lent = self.lend().await?;
            let (was_idle, sent) = (lent.was_idle, Timestamp::now());
            match lent.run(Statement::Text(text.to_owned())).await {
                Ok(answer) => return Ok((lent, sent, answer.rows)),
                Err(e) => {
                    self.finish(lent, Some(&e));
                    if !(was_idle && again && is_fatal(&e)) {
                        return Err(nothing_done(e, &self.at));
                    }
                    again = false;
                }
            }
        }
    }

    /// A transaction on those names: they are locked and loaded, `work` changes them, and what has changed is
    /// written and committed.
    ///
    /// *Another one changes a name in between*: it cannot, the row is locked. *The commit is not answered*:
    /// that is `Unknown`. *Anything before it fails*: it is rolled back, and nothing was done. *Whoever asked
    /// is not polled*: a task does the rest, so no name stays locked for that.
    pub(super) async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        names: &[LockName],
        absent: Absent,
        work: impl FnOnce(&mut View) -> Result<T> + Send + 'static,
    ) -> Result<(Timestamp, T)> {
        let (sent, done, _) = self.change_and_mark(names, absent, work).await?;
        Ok((sent, done))
    }

    /// The same; and how a look will find the one name, if nobody changes it meanwhile.
    pub(super) async fn change_and_mark<T: Send + 'static>(
        self: &Arc<Self>,
        names: &[LockName],
        absent: Absent,
        work: impl FnOnce(&mut View) -> Result<T> + Send + 'static,
    ) -> Result<(Timestamp, T, Option<Mark>)> {
        let (db, names) = (self.clone(), names.to_vec());
        self.help(async move { db.transact(&names, absent, work).await })
            .await
    }

    async fn transact<T>(
        &self,
        names: &[LockName],
        absent: Absent,
        work: impl FnOnce(&mut View) -> Result<T>,
    ) -> Result<(Timestamp, T, Option<Mark>)> {
        let text = self.sql.load(&list(names.iter().map(LockName::as_bytes)));
        let (mut lent, sent, mut found) = self.begin(&text).await?;
        let mut view;
        loop {
            view = load(&found)?;
            let missing: Vec<_> = names.iter().filter(|n| !view.names.contains_key(*n)).collect();
            if absent == Absent::Left || missing.is_empty() {
                break;
            }
            // Not within the transaction: who finds there the row made by another would share a lock with it,
            // and each would wait for the other to go.
            let mut make = "ROLLBACK; ".to_owned();
            for name in missing {
                make.push_str(&self.sql.make(name.as_bytes()));
                make.push_str("; ");
            }
            make.push_str(&text);
            let made = lent.run(Statement::Text(make)).await;
            found = made.map_err(|e| nothing_done(e, &self.at))?.rows;
        }
        let now = view.now;
        for loaded in view.names.values_mut().flatten() {
            loaded.settle(now);
        }
        let worked = work(&mut view);
        let mut text = String::new();
        // What a request is refused for does not keep what has run out from being written.
        for (name, loaded) in &mut view.names {
            if let Ok(loaded) = loaded {
                loaded.write(&self.sql.prefix, name, &mut text)?;
            }
        }
        text.push_str("COMMIT");
        let committed = lent.run(Statement::Text(text)).await;
        self.finish(lent, committed.as_ref().err());
        committed.map_err(|e| perhaps_done(e, &self.at))?;
        for (name, loaded) in &view.names {
            if let Ok(loaded) = loaded {
                self.contention.tell(name, Seen::others(loaded.others() > 0));
            }
        }
        let mark = match names {
            [name] => view.names.get(name).and_then(|l| l.as_ref().ok()).map(|l| l.mark),
            _ => None,
        };
        Ok((sent, worked?, mark))
    }

    /// A name as it is at one moment, without waiting for whoever changes it and without keeping anybody
    /// waiting; and the time of that moment. `None` of it: it has no row.
    pub(super) async fn look_at(self: &Arc<Self>, name: &LockName) -> Result<(Timestamp, Option<Loaded>)> {
        let rows = self.read_text(self.sql.look_at(&list([name.as_bytes()]))).await?;
        let mut view = load(&rows)?;
        let mut loaded = view.names.remove(name).transpose()?;
        if let Some(loaded) = &mut loaded {
            loaded.state.loaded();
        }
        Ok((view.now, loaded))
    }
}

fn load(rows: &[MySqlRow]) -> Result<View> {
    let mut view = View {
        now: Timestamp::ZERO,
        names: HashMap::new(),
    };
    for row in rows {
        match kind(row)? {
            NAME => {
                view.names.insert(read_name(row)?, Loaded::new(row));
            }
            ENTRY => {
                // Rows of a name that has none itself are left of nothing, and in nobody's way.
                let Some(slot) = view.names.get_mut(&read_name(row)?) else {
                    continue;
                };
                if let Ok(loaded) = slot
                    && let Err(e) = loaded.add(row)
                {
                    *slot = Err(e);
                }
            }
            CLOCK => view.now = read_clock(row)?,
            _ => return Err(foreign("a row that was not asked for")),
        }
    }
    match view.now == Timestamp::ZERO {
        true => Err(foreign("no time of the server")),
        false => Ok(view),
    }
}
