//! The layout of keys.
//!
//! ```text
//! dlock/orders/694d71ddaa0f8b20-0-x      an entry of the lock `orders`: lease, number on it, mode
//! dlock/orders/694d71ddaa0f8b16          an entry of `etcdctl lock dlock/orders`
//! dlock!/gone/694d71ddaa0f8b20-0         which uses of that number are over: as many as its version
//! dlock!/requests/694d71ddaa0f8b20-0-x   which request made that entry, in the same revision
//! dlock!/sessions/694d71ddaa0f8b20       a client is there: its lease, its machine and process
//! dlock!/forced/orders                   holders of `orders` were last ended by force in this revision
//! dlock!/fence/report                    the fenced value `report`
//! ```
//!
//! `dlock` is the prefix. No name of a lock has a `!`, since names are percent-encoded.
//!
//! The name of an entry has its mode, so that admission needs only the names. A converted entry has a version
//! above 1. Its value is only the owner's label, as in Go's `Election`; an entry without a label has the
//! request as its value, and no key under `requests`. Names are [used
//! again](crate::requests#names-of-entries).

use std::sync::Arc;

use dlock_core::{LockName, Mode};

/// The keys of one client.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// Before the name of a lock.
    locks: Arc<str>,
    /// Before whatever is no lock.
    ours: Arc<str>,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        let locks = match prefix {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        Self {
            locks: locks.into(),
            ours: format!("{prefix}!/").into(),
        }
    }

    /// Before all entries of all locks.
    pub(crate) fn locks(&self) -> &str {
        &self.locks
    }

    /// Before all entries of that lock.
    pub(crate) fn line(&self, name: &LockName) -> String {
        [&*self.locks, &name.to_path_part(), "/"].concat()
    }

    /// What keeps earlier entries with that number from being made.
    pub(crate) fn gone(&self, lease: i64, number: u32) -> String {
        format!("{}gone/{lease:x}-{number:x}", self.ours)
    }

    /// Which request has that entry, if it is labelled.
    pub(crate) fn request(&self, entry: &str) -> String {
        format!("{}requests/{entry}", self.ours)
    }

    pub(crate) fn session(&self, lease: i64) -> String {
        format!("{}sessions/{lease:x}", self.ours)
    }

    pub(crate) fn forced(&self, name: &LockName) -> String {
        format!("{}forced/{}", self.ours, name.to_path_part())
    }

    pub(crate) fn fence(&self, resource: &LockName) -> String {
        format!("{}fence/{}", self.ours, resource.to_path_part())
    }
}

/// The name of an entry in its line.
pub(crate) fn entry_name(lease: i64, number: u32, mode: Mode) -> String {
    format!("{lease:x}-{number:x}-{}", mode.code())
}

/// Reads the mode from the name of an entry; `None` if it is not one of ours.
pub(crate) fn read_mode(name: &[u8]) -> Option<Mode> {
    let mut parts = str::from_utf8(name).ok()?.split('-');
    let (lease, number, mode) = (parts.next()?, parts.next()?, parts.next()?);
    let is_ours = u64::from_str_radix(lease, 16).is_ok()
        && u32::from_str_radix(number, 16).is_ok()
        && parts.next().is_none();
    Mode::from_code(mode).filter(|_| is_ours)
}

/// The first key behind all that begin so.
pub(crate) fn behind(prefix: impl AsRef<[u8]>) -> Vec<u8> {
    let mut end = prefix.as_ref().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // As etcd writes that there is no end.
    vec![0]
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_made() {
        let permit = Mode::permit(NonZeroU32::new(3).unwrap());
        for mode in [Mode::Exclusive, Mode::READER, permit] {
            let name = entry_name(0x694d_71dd_aa0f_8b16, 7, mode);
            assert_eq!(read_mode(name.as_bytes()), Some(mode));
        }
        let foreign = " x 694d71ddaa0f8b16 694d71ddaa0f8b16-0 694d71ddaa0f8b16-0-p0 \
            694d71ddaa0f8b16-0-x-1 694d71ddaa0f8b16--x z94d71ddaa0f8b16-0-x";
        for name in foreign.split(' ') {
            assert_eq!(read_mode(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn no_lock_is_where_something_else_is() {
        let name = |text: &str| LockName::new(text).unwrap();
        let keys = Keys::new("");
        assert_eq!(keys.line(&name("orders")), "orders/");
        assert_eq!(keys.line(&name("a/b")), "a%2Fb/");
        assert_eq!(keys.line(&name("!")), "%21/");
        assert_eq!(keys.fence(&name("a")), "!/fence/a");
        let keys = Keys::new("dlock");
        assert_eq!(keys.session(255), "dlock!/sessions/ff");
        assert_eq!(behind(keys.locks()), b"dlock0");
        assert_eq!((behind("a\u{7f}"), behind("")), (b"a\x80".to_vec(), vec![0]));
    }
}
