//! What a server knows of a name: a hash of it.
//!
//! PostgreSQL takes 64 bits, MySQL 64 characters that it compares without regard to case. A name is up to
//! 1024 bytes. So both are given a SHA-256, cut to what there is room for: `Capabilities::name_hash_bits`
//! says how much. Two names whose hashes are the same are *one lock*; within one client that has to be known,
//! since a session is let in again by a lock that it holds. So all that is noted here is noted by this key,
//! not by the name.
//!
//! Also in the hash is the *space*: where the tokens come from. Two clients that exclude one another must
//! draw from one sequence, or their tokens would say nothing; and those who do not share the sequence are not
//! in one another's way.

use std::fmt;

use dlock_core::LockName;
use sha2::{Digest as _, Sha256};

/// The hash of a name in its space.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

impl Key {
    pub(super) fn new(space: &str, name: &LockName) -> Self {
        let mut hash = Sha256::new();
        // With its length, so that no two pairs are one text.
        hash.update((space.len() as u64).to_be_bytes());
        hash.update(space.as_bytes());
        hash.update(name.as_bytes());
        let mut bytes = [0; 32];
        bytes.copy_from_slice(&hash.finalize());
        // What the server does not see must not tell two keys apart here.
        Self(bytes)
    }

    /// The same as far as a server that takes that many bytes can tell.
    pub(super) fn cut(mut self, bytes: usize) -> Self {
        self.0[bytes..].fill(0);
        self
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
        let mut first = [0; 8];
        first.copy_from_slice(&self.0[..8]);
        write!(f, "Key({:016x}..)", u64::from_be_bytes(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_its_space_do_not_run_into_one_another() {
        let key = |space: &str, name: &str| Key::new(space, &LockName::new(name).unwrap());
        assert_ne!(key("a", "bc"), key("ab", "c"));
        assert_eq!(key("a", "b"), key("a", "b"));
        assert_eq!(key("a", "b").cut(8).cut(8), key("a", "b").cut(8));
    }

    #[cfg(feature = "mysql")]
    #[test]
    fn mysql_takes_all_of_it() {
        let text = Key::new("a", &LockName::new("B").unwrap()).as_text();
        assert_eq!(text.len(), 62);
        assert_eq!(text, text.to_lowercase());
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn what_postgres_does_not_see_tells_no_keys_apart() {
        let key = Key::new("a", &LockName::new("b").unwrap());
        assert_eq!(key.as_i64(), key.cut(POSTGRES_BYTES).as_i64());
    }
}
