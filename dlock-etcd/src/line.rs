//! The queue of a lock, read from its keys.
//!
//! [`spi::Line`](dlock_core::spi::Line) decides which entry has the lock, and says why that is right. Beyond
//! that:
//!
//! * *An old list.* A member that lags shows the queue of an earlier revision. If it has the own entry, it
//!   has all entries before it. So looks of waiters need no majority.
//! * *Tokens.* They are the create revisions of the entries, which order the queue.
//! * *Entries of other programs*: every key below the lock that has a lease counts, as for the locks of Go,
//!   which are exclusive.

use dlock_core::spi::{self, InLine};
use dlock_core::{Error, ErrorKind, Mode, Result, Token};
use etcd_client::KeyValue;

use crate::keys::read_mode;

/// An entry of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: Vec<u8>,
    /// It is not one of Go's.
    pub(crate) is_ours: bool,
    pub(crate) mode: Mode,
    /// In which revision it was made: its place, and its token.
    pub(crate) revision: i64,
    pub(crate) lease: i64,
    /// Where values were asked for.
    pub(crate) value: Vec<u8>,
}

impl InLine for Entry {
    fn mode(&self) -> Mode {
        self.mode
    }
}

impl Entry {
    pub(crate) fn token(&self) -> Option<Token> {
        token(self.revision)
    }

    /// Reads a key of a line whose keys begin with that many bytes.
    ///
    /// # Errors `BackendData` if it has no lease: it would block the queue for ever.
    pub(crate) fn read(kv: &KeyValue, begins: usize) -> Result<Self> {
        let named = kv.key().get(begins..).and_then(read_mode);
        let mode = match named {
            // Written once more: see `rwlock`.
            Some(Mode::Exclusive) if kv.version() > 1 => Mode::READER,
            Some(mode) => mode,
            None => Mode::Exclusive,
        };
        if kv.lease() == 0 {
            let key = kv.key().escape_ascii();
            let what = "has no lease, so no lock made it: delete it, or use another prefix";
            let message = format!("the key `{key}` in etcd {what}");
            return Err(Error::new(ErrorKind::BackendData, message));
        }
        Ok(Self {
            key: kv.key().to_vec(),
            is_ours: named.is_some(),
            mode,
            revision: kv.create_revision(),
            lease: kv.lease(),
            value: kv.value().to_vec(),
        })
    }
}

pub(crate) fn token(revision: i64) -> Option<Token> {
    u64::try_from(revision).ok().and_then(Token::new)
}

/// The entries of a lock.
pub(crate) type Line = spi::Line<Entry>;

/// The line of those keys, which begin with that many bytes.
pub(crate) fn line_of(kvs: &[KeyValue], begins: usize) -> Result<Line> {
    let entries: Result<Vec<_>> = kvs.iter().map(|kv| Entry::read(kv, begins)).collect();
    let mut entries = entries?;
    // Two that others made in one transaction are apart by their keys.
    entries.sort_by(|a, b| (a.revision, &a.key).cmp(&(b.revision, &b.key)));
    Ok(Line { entries })
}
