//! The rows of a name, read into the state that the admission rule works on, and written back.
//!
//! The exclusive holder is in the name's own row, all others in a row of `entry`. Tombstones are rows there
//! too, unknown to the rule. They have keys of their own, a byte longer than an id: a minimum hold stands
//! beside the tombstone of its request.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{LockName, RequestId, Result, Timestamp, Token};
use sqlx::mysql::MySqlRow;

use super::{bytes, label};
use crate::admit::{Entry, NameState, Row, Settled, Tokens, WATCHED, Watch, phase_number, read_phase};
use crate::lease::call::get;
use crate::lease::dialect::Mark;
use crate::lease::failure::foreign;
use crate::lease::keys::{id_bytes, read_id, read_mode, read_token, share};

/// How long a tombstone stands: longer than a request can be under way.
const TOMBSTONE: Duration = Duration::from_secs(60);

/// In the place of a phase: that the row is a tombstone.
const BURIED: i64 = 5;

/// Which row of an answer it is: its first column.
pub(super) const NAME: i64 = 0;
pub(super) const ENTRY: i64 = 1;
pub(super) const CLOCK: i64 = 2;

/// One name as it is in the database, locked, and as it will be.
pub(super) struct Loaded {
    pub(super) state: NameState,
    pub(super) tokens: Tokens,
    /// The token that is stored.
    token: u64,
    /// As a look will find it.
    pub(super) mark: Mark,
    /// Ids that have a row in `entry`.
    rows: HashSet<RequestId>,
    graves: HashMap<RequestId, Timestamp>,
    /// Those of which the tombstone is to be written, or deleted.
    dug: Vec<RequestId>,
    /// When the transaction was begun, by the clock of the client, and then by that of the server.
    pub(super) sent: Timestamp,
    pub(super) now: Timestamp,
}

fn micros(t: Timestamp) -> u64 {
    t.as_nanos() / 1_000
}

fn timestamp(micros: u64) -> Timestamp {
    Timestamp::from_nanos(micros.saturating_mul(1_000))
}

fn positive(row: &MySqlRow, column: usize) -> Result<u64> {
    u64::try_from(get::<i64, _>(row, column)?).map_err(|_| foreign("a number below zero"))
}

pub(super) fn token(row: &MySqlRow, column: usize) -> Result<Option<Token>> {
    get::<Option<i64>, _>(row, column)?.map(read_token).transpose()
}

/// The server's clock of its row.
pub(super) fn read_clock(row: &MySqlRow) -> Result<Timestamp> {
    Ok(timestamp(positive(row, 9)?))
}

/// Of which name it is.
pub(super) fn read_name(row: &MySqlRow) -> Result<LockName> {
    LockName::new(get::<Vec<u8>, _>(row, 1)?)
}

/// The columns of both tables in one order: name, id, phase, share, priority, arrival, token, ttl, ends,
/// upgrading, owner, changes.
fn read_entry(row: &MySqlRow, phase: i64) -> Result<Entry> {
    let owner: Option<String> = get(row, 11)?;
    Ok(Entry {
        id: read_key(row)?,
        phase: read_phase(phase).ok_or_else(|| foreign("an unknown phase"))?,
        mode: read_mode(get(row, 4)?)?,
        priority: u8::try_from(get::<i64, _>(row, 5)?).map_err(|_| foreign("an unknown priority"))?,
        token: token(row, 7)?,
        ttl_nanos: timestamp(positive(row, 8)?).as_nanos(),
        expires: timestamp(positive(row, 9)?),
        upgrading: get::<i64, _>(row, 10)? == 1,
        owner: owner.map(Arc::from),
    })
}

fn read_key(row: &MySqlRow) -> Result<RequestId> {
    let id: Option<Vec<u8>> = get(row, 2)?;
    read_id(&id.unwrap_or_default())
}

impl Loaded {
    /// Takes in the row of the name.
    pub(super) fn new(row: &MySqlRow) -> Result<Self> {
        let mut loaded = Self {
            state: NameState::default(),
            tokens: Tokens::default(),
            token: positive(row, 7)?,
            mark: (get(row, 12)?, 0, get(row, 7)?, get(row, 3)?),
            rows: HashSet::new(),
            graves: HashMap::new(),
            dug: Vec::new(),
            sent: Timestamp::ZERO,
            now: Timestamp::ZERO,
        };
        // In the name's own row no phase means that nobody holds it alone: nobody in it waits.
        let phase = get(row, 3)?;
        if phase != 0 {
            let holder = read_entry(row, phase)?;
            loaded.state.insert_stored(Row::Entry(holder, 0));
        }
        Ok(loaded)
    }

    /// Takes in a row of `entry`.
    pub(super) fn add(&mut self, row: &MySqlRow) -> Result<()> {
        match get(row, 3)? {
            BURIED => {
                let key: Vec<u8> = get(row, 2)?;
                let whose = read_id(key.split_last().map_or(&[], |(_, id)| id))?;
                self.graves.insert(whose, timestamp(positive(row, 9)?));
            }
            WATCHED => {
                self.rows.insert(read_key(row)?);
                self.state.insert_stored(Row::Watch(Watch {
                    changes: positive(row, 6)?,
                    until: timestamp(positive(row, 9)?),
                }));
            }
            phase => {
                self.rows.insert(read_key(row)?);
                let entry = read_entry(row, phase)?;
                self.state.insert_stored(Row::Entry(entry, get(row, 6)?));
            }
        }
        Ok(())
    }

    /// All of it is there: takes back what has run out. First in every change.
    pub(super) fn settle(&mut self, sent: Timestamp, now: Timestamp) {
        self.state.rows.sort();
        // No token is less than the server's clock: they go on growing where a backup was put back.
        self.tokens.last = self.token.max(micros(now).saturating_sub(1));
        let over = self.graves.extract_if(|_, until| *until <= now);
        self.dug = over.map(|(id, _)| id).collect();
        (self.sent, self.now) = (sent, now);
        self.settled();
    }

    /// To be changed.
    pub(super) fn settled(&mut self) -> Settled<'_> {
        self.state.settle(self.now, &mut self.tokens)
    }

    pub(super) fn is_buried(&self, id: RequestId) -> bool {
        self.graves.contains_key(&id)
    }

    /// A copy of that request that is on its way is not heard.
    pub(super) fn bury(&mut self, id: RequestId) {
        self.graves.insert(id, self.now + TOMBSTONE);
        self.dug.push(id);
    }

    /// How many rows of `entry` there are when it has been written.
    pub(super) fn others(&self) -> usize {
        self.state.len() - usize::from(self.state.sole_holder().is_some()) + self.graves.len()
    }

    /// The statements that write back what has changed; nothing if nothing has.
    pub(super) fn write(&mut self, prefix: &str, name: &LockName, to: &mut String) -> Result<()> {
        if !self.state.is_dirty() && self.dug.is_empty() && !self.tokens.dirty {
            return Ok(());
        }
        let key = bytes(name.as_bytes());
        let sole = self.state.sole_holder().map(|e| e.id);
        let (mut gone, mut put) = (Vec::new(), Vec::new());
        let mut token = match self.tokens.dirty {
            true => self.tokens.last,
            false => self.token,
        };
        for (id, row) in self.state.dirty() {
            // One that was raised to less than the clock says: the name has to know of it, since a clock may
            // go back.
            if let Some(Row::Entry(Entry { token: Some(own), .. }, _)) = row {
                token = token.max(own.get());
            }
            match row {
                Some(row) if Some(id) != sole => put.push(values(&key, id, &row)?),
                _ if self.rows.contains(&id) => gone.push(bytes(&id_bytes(id))),
                _ => {}
            }
        }
        for id in self.dug.drain(..) {
            let grave = grave_key(id);
            match self.graves.get(&id).copied().map(micros) {
                Some(until) => put.push(format!("({key},{grave},{BURIED},-1,0,0,NULL,0,{until},0,NULL)")),
                None => gone.push(grave),
            }
        }
        if !gone.is_empty() {
            let gone = gone.join(",");
            *to += &format!("DELETE FROM {prefix}entry WHERE name = {key} AND id IN ({gone});");
        }
        if !put.is_empty() {
            // With the columns that are known here: a later version may have more.
            let columns = "name, id, phase, share, priority, arrival, token, ttl, ends, upgrading, owner";
            *to += &format!("REPLACE INTO {prefix}entry ({columns}) VALUES {};", put.join(","));
        }
        let (rows, sole) = (self.others(), self.state.sole_holder());
        let phase = sole.map_or(0, |e| phase_number(e.phase));
        let holder = match sole {
            Some(e) => format!(
                "id = {}, ttl = {}, ends = {}, upgrading = 0, owner = {}",
                bytes(&id_bytes(e.id)),
                e.ttl().as_micros(),
                micros(e.expires),
                label(e.owner.as_deref()),
            ),
            None => "id = NULL, owner = NULL".to_owned(),
        };
        let news = i64::from(self.state.written().1);
        let stored = i64::try_from(token).unwrap_or(i64::MAX);
        self.mark = (self.mark.0 + news, 0, stored, phase);
        *to += &format!(
            "UPDATE {prefix}name SET phase = {phase}, {holder}, token = {token}, others = {rows}, changes = \
             changes + {news} WHERE name = {key};"
        );
        Ok(())
    }
}

/// The key of a tombstone.
fn grave_key(id: RequestId) -> String {
    bytes(&[&id_bytes(id)[..], &[0]].concat())
}

fn values(key: &str, id: RequestId, row: &Row<&Entry, &Watch>) -> Result<String> {
    let id = bytes(&id_bytes(id));
    Ok(match row {
        Row::Entry(e, arrival) => format!(
            "({key},{id},{},{},{},{},{},{},{},{},{})",
            phase_number(e.phase),
            share(e.mode)?,
            e.priority,
            arrival,
            e.token.map_or("NULL".to_owned(), |t| t.to_string()),
            e.ttl().as_micros(),
            micros(e.expires),
            u8::from(e.upgrading),
            label(e.owner.as_deref()),
        ),
        Row::Watch(w) => {
            let (changes, until) = (w.changes, micros(w.until));
            format!("({key},{id},{WATCHED},-1,0,{changes},NULL,0,{until},0,NULL)")
        }
    })
}
