//! Changes names in one transaction of two round trips: the first opens it, locks and loads, the second
//! writes and commits.

use std::collections::HashMap;
use std::sync::Arc;

use dlock_core::{LockName, Result, Timestamp};
use sqlx::mysql::MySqlRow;

use super::state::{CLOCK, ENTRY, Loaded, NAME, read_clock, read_name};
use super::{Db, Mysql, Statement, list};
use crate::lease::call::get;
use crate::lease::connection::Lent;
use crate::lease::dialect::Mark;
use crate::lease::failure::{foreign, is_fatal, nothing_done, perhaps_done};

/// What becomes of a name that has no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    /// It is given one.
    Made,
    /// There is nothing to be done about it.
    Left,
}

/// Names in a transaction, with what has run out taken back. What cannot be read of one is its own failure.
pub(super) type View = HashMap<LockName, Result<Loaded>>;

impl Db {
    /// A transaction on those names: they are locked and loaded, `work` changes them, and what has changed is
    /// written and committed. Answers also how a look will find the one name, if nobody changes it meanwhile.
    ///
    /// *Another one changes a name in between*: it cannot, the row is locked. *The commit is not answered*:
    /// that is `Unknown`. *Anything before it fails*: it is rolled back, and nothing was done. *The caller
    /// does not poll*: a task does the rest, so no name stays locked.
    pub(super) async fn change_all<T: Send + 'static>(
        self: &Arc<Self>,
        names: &[LockName],
        absent: Absent,
        work: impl FnOnce(&mut View) -> Result<T> + Send + 'static,
    ) -> Result<(T, Option<Mark>)> {
        let (db, names) = (self.clone(), names.to_vec());
        self.in_background(async move { db.transact(&names, absent, work).await })
            .await
    }

    /// The same on one name; `None` if it has no row.
    pub(super) async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        name: &LockName,
        absent: Absent,
        work: impl FnOnce(&mut Loaded) -> Result<T> + Send + 'static,
    ) -> Result<(Option<T>, Option<Mark>)> {
        let own = name.clone();
        self.change_all(std::slice::from_ref(name), absent, move |names| {
            match names.get_mut(&own) {
                Some(Ok(name)) => work(name).map(Some),
                Some(Err(e)) => Err(e.clone()),
                None => Ok(None),
            }
        })
        .await
    }

    /// Opens a transaction by a text that changes nothing, once more if that is lost with a connection that
    /// broke while it stood idle. Whatever is lost later was sent on a connection that had answered a moment
    /// ago, and is `Unknown`.
    async fn begin(&self, text: &str) -> Result<(Lent<Mysql>, Timestamp, Vec<MySqlRow>)> {
        let mut again = true;
        loop {
            let mut lent = self.lend().await?;
            let sent = Timestamp::now();
            match lent.run(Statement::Text(text.to_owned())).await {
                Ok(answer) => return Ok((lent, sent, answer.rows)),
                Err(e) => {
                    self.finish(lent, Some(&e));
                    if !std::mem::replace(&mut again, false) || !is_fatal(&e) {
                        return Err(nothing_done(e, &self.at));
                    }
                }
            }
        }
    }

    async fn transact<T>(
        self: &Arc<Self>,
        names: &[LockName],
        absent: Absent,
        work: impl FnOnce(&mut View) -> Result<T>,
    ) -> Result<(T, Option<Mark>)> {
        let text = self.sql.load(&list(names.iter().map(LockName::as_bytes)));
        let (mut lent, sent, mut found) = self.begin(&text).await?;
        let (now, mut view) = loop {
            let (now, view) = load(&found)?;
            let missing: Vec<_> = names.iter().filter(|n| !view.contains_key(*n)).collect();
            if absent == Absent::Left || missing.is_empty() {
                break (now, view);
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
        };
        for loaded in view.values_mut().flatten() {
            loaded.settle(sent, now);
        }
        let worked = work(&mut view);
        let (mut text, mut offered) = (String::new(), Vec::new());
        // What a request is refused for does not keep what has run out from being written.
        for (name, loaded) in &mut view {
            if let Ok(loaded) = loaded {
                offered.extend(loaded.state.offered());
                loaded.write(&self.sql.prefix, name, &mut text)?;
            }
        }
        text.push_str("COMMIT");
        let committed = lent.run(Statement::Text(text)).await;
        self.finish(lent, committed.as_ref().err());
        committed.map_err(|e| perhaps_done(e, &self.at))?;
        self.ring(&offered);
        let mut mark = None;
        for (name, loaded) in &view {
            if let Ok(loaded) = loaded {
                self.contention.tell(name, loaded.others() > 0, Timestamp::now());
                mark = (names.len() == 1).then_some(loaded.mark);
            }
        }
        Ok((worked?, mark))
    }

    /// Reads a name at one moment, without waiting for changes and without delaying them. `None`: it has no
    /// row.
    pub(super) async fn look_at(self: &Arc<Self>, name: &LockName) -> Result<Option<Loaded>> {
        let rows = self.read_text(self.sql.look_at(&list([name.as_bytes()]))).await?;
        let (now, mut names) = load(&rows)?;
        let mut loaded = names.remove(name).transpose()?;
        if let Some(loaded) = &mut loaded {
            loaded.now = now;
            loaded.state.rows.sort();
        }
        Ok(loaded)
    }
}

fn load(rows: &[MySqlRow]) -> Result<(Timestamp, View)> {
    let (mut now, mut names) = (Timestamp::ZERO, View::new());
    for row in rows {
        match get(row, 0)? {
            NAME => {
                names.insert(read_name(row)?, Loaded::new(row));
            }
            ENTRY => {
                // Rows of a name that has none itself are left of nothing, and in nobody's way.
                let Some(slot) = names.get_mut(&read_name(row)?) else {
                    continue;
                };
                if let Ok(loaded) = slot
                    && let Err(e) = loaded.add(row)
                {
                    *slot = Err(e);
                }
            }
            CLOCK => now = read_clock(row)?,
            _ => return Err(foreign("a row that was not asked for")),
        }
    }
    match now == Timestamp::ZERO {
        true => Err(foreign("no time of the server")),
        false => Ok((now, names)),
    }
}
