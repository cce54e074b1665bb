//! What a server knows of a name: a hash of it.
//!
//! PostgreSQL takes 64 bits, MySQL 64 characters regardless of case, and a name has up to 1024 bytes. So both
//! get a SHA-256, cut to what there is room for. Two names of one hash are *one lock*. Within one client that
//! has to be known, since a session is let in again by a lock that it holds: so the client keeps its state by
//! this key, not by the name.
//!
//! The *space* is hashed as well, which is where the tokens come from. Clients that exclude one another draw
//! from one sequence, or their tokens would say nothing; clients of two sequences do not meet.

use std::fmt;

use dlock_core::LockName;
use sha2::{Digest as _, Sha256};

/// The hash of a name in its space, as far as the server can tell.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

impl Key {
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
        let mut first = [0; 8];
        first.copy_from_slice(&self.0[..8]);
        i64::from_be_bytes(first)
    }

    /// As MySQL takes it: lower case, at most 64 characters.
    #[cfg(feature = "mysql")]
    pub(super) fn as_text(&self) -> String {
        use std::fmt::Write as _;
        let mut text = String::with_capacity(64);
        text.push_str("dlock:");
        for byte in &self.0[..MYSQL_BYTES] {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

/// How much of the hash goes to PostgreSQL.
#[cfg(feature = "postgres")]
pub(super) const POSTGRES_BYTES: usize = 8;

/// How much of the hash goes to MySQL, behind six characters that say whose lock it is.
#[cfg(feature = "mysql")]
pub(super) const MYSQL_BYTES: usize = 28;

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:02x?}..)", &self.0[..8])
    }
}
