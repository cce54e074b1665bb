//! The records of all names, each found with one hash of the name per call.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::OccupiedEntry;

use crate::name::LockName;
use crate::spi::admission::NameState;

/// A map whose user computes the hash: finding a name and then adding or removing its record hashes it once.
#[derive(Debug, Default)]
pub(super) struct Names {
    records: HashTable<Record>,
    hasher: RandomState,
}

/// A name and its state.
#[derive(Debug)]
pub(super) struct Record {
    name: LockName,
    pub(super) state: NameState,
}

impl Names {
    /// Returns the hash that the other methods need. Keyed, so that it cannot be guessed by those who choose
    /// names.
    pub(super) fn hash(&self, name: &LockName) -> u64 {
        hash(&self.hasher, name)
    }

    pub(super) fn get(&self, name: &LockName) -> Option<&NameState> {
        let record = self.records.find(self.hash(name), |r| r.name == *name)?;
        Some(&record.state)
    }

    /// Returns the record of a name, to be changed or removed.
    pub(super) fn find(&mut self, hash: u64, name: &LockName) -> Option<OccupiedEntry<'_, Record>> {
        self.records.find_entry(hash, |r| r.name == *name).ok()
    }

    /// Adds the record of a name that has none.
    pub(super) fn insert(&mut self, hash: u64, name: LockName, state: NameState) {
        let Self { records, hasher } = self;
        let rehash = |r: &Record| self::hash(hasher, &r.name);
        records.insert_unique(hash, Record { name, state }, rehash);
    }

    /// Frees memory if most of it is unused: a table never shrinks on its own, and a hundred thousand names
    /// may have been held at once.
    pub(super) fn trim(&mut self) {
        let Self { records, hasher } = self;
        if records.capacity() > 1024 && records.len() < records.capacity() / 16 {
            records.shrink_to(records.len() * 2, |r| self::hash(hasher, &r.name));
        }
    }

    pub(super) fn records(&self) -> impl Iterator<Item = (&LockName, &NameState)> {
        self.records.iter().map(|r| (&r.name, &r.state))
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn states(&self) -> impl Iterator<Item = &NameState> {
        self.records.iter().map(|r| &r.state)
    }
}

fn hash(hasher: &RandomState, name: &LockName) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(name.as_bytes());
    hasher.finish()
}
