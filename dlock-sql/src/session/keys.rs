//! The server's key for a name: a hash of it.
//!
//! PostgreSQL takes 64 bits, MySQL 64 characters regardless of case, and a name has up to 1024 bytes. So both
//! get a SHA-256, cut to the available length. Two names with one hash are *one lock*; a client keeps its
//! state by this key, not by the name, since a session can take a lock again that it holds.
//!
//! The *space* is hashed as well: the source of the tokens. Clients that exclude one another must draw from
//! one sequence, or their tokens would mean nothing; clients of two sequences do not exclude one another.

use dlock_core::LockName;
use sha2::{Digest as _, Sha256};

/// The hash of a name in its space, as far as the server can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

impl Key {
    /// How much of the hash goes to PostgreSQL.
    #[cfg(feature = "postgres")]
    pub(super) const OF_POSTGRES: usize = 8;

    /// How much of the hash goes to MySQL, behind six characters that say whose lock it is.
    #[cfg(feature = "mysql")]
    pub(super) const OF_MYSQL: usize = 28;

    /// For a server that takes that many bytes: what it does not see must not tell two keys apart here.
    pub(super) fn new(space: &str, name: &LockName, bytes: usize) -> Self {
        let mut hash = Sha256::new();
        // With its length, so that no two pairs are one text.
        hash.update((space.len() as u64).to_be_bytes());
        hash.update(space.as_bytes());
        hash.update(name.as_bytes());
        let mut key = [0; 32];
        key[..bytes].copy_from_slice(&hash.finalize()[..bytes]);
        Self(key)
    }

    /// As PostgreSQL takes it.
    #[cfg(feature = "postgres")]
    pub(super) fn as_i64(&self) -> i64 {
        self.0.first_chunk().map_or(0, |first| i64::from_be_bytes(*first))
    }

    /// As MySQL takes it: lower case, at most 64 characters.
    #[cfg(feature = "mysql")]
    pub(super) fn as_text(&self) -> String {
        format!("dlock:{}", crate::keys::hex(&self.0[..Self::OF_MYSQL]))
    }
}
