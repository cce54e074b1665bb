//! The boot that a file belongs to, and the file that a path leads to.
//!
//! SQLite has no server and so no server's clock. The one clock that all processes of a machine share, that
//! is never set and that counts suspension, is the time since boot, together with the boot's id.
//!
//! A connection keeps the file that it has opened. If it is removed or replaced, processes with the old file
//! and processes that open the path afterwards would not exclude one another any more. So each change checks
//! that the path still leads to the open file.

use std::path::Path;

use dlock_core::{Error, ErrorKind, Result};

use crate::failure::unsupported;

/// 16 bytes that name one boot of one machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BootId([u8; 16]);

impl BootId {
    /// For a database that only this process sees, and that does not outlive it.
    pub(super) const PROCESS: Self = Self([0; 16]);

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The current boot.
    ///
    /// # Errors
    /// `Unsupported` where the system has no boot id, or no clock that its processes share, or where this
    /// process sees a shifted one.
    pub(crate) fn current() -> Result<Self> {
        if cfg!(not(any(target_os = "linux", target_os = "android"))) {
            return Err(unsupported(
                "a SQLite file shared by processes needs Linux, for a clock since boot that they all share; \
                 use an in-memory database or another backend here",
            ));
        }
        refuse_a_shifted_clock()?;
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(|e| {
            unsupported(
                "cannot read the boot id, without which leases in a SQLite file mean nothing; mount /proc",
            )
            .with_source(e)
        })?;
        parse(&text).ok_or_else(|| unsupported("/proc/sys/kernel/random/boot_id does not hold a boot id"))
    }
}

/// A process in a time namespace of its own reads another time since boot than its neighbours, and would take
/// their live leases for expired ones.
fn refuse_a_shifted_clock() -> Result<()> {
    match std::fs::read_to_string("/proc/self/timens_offsets") {
        Ok(offsets) if is_shifted(&offsets) => Err(unsupported(
            "this process runs in a time namespace with a shifted boot-time clock, so its leases in a SQLite \
             file cannot be compared with those of others; run it in the machine's own time namespace",
        )),
        // An old kernel has no such file, and no such namespaces either.
        _ => Ok(()),
    }
}

fn is_shifted(offsets: &str) -> bool {
    offsets
        .lines()
        .filter_map(|line| line.trim().strip_prefix("boottime"))
        .any(|rest| rest.split_whitespace().any(|number| number != "0"))
}

fn parse(text: &str) -> Option<BootId> {
    let digits = text.trim().replace('-', "");
    let number = u128::from_str_radix(&digits, 16).ok()?;
    (digits.len() == 32).then(|| BootId(number.to_be_bytes()))
}

/// One file of this machine, whatever it is called: device and inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileId(u64, u64);

impl FileId {
    #[cfg(unix)]
    pub(super) fn at(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let file = std::fs::metadata(path)?;
        Ok(Self(file.dev(), file.ino()))
    }

    #[cfg(not(unix))]
    pub(super) fn at(_: &Path) -> std::io::Result<Self> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    /// Whether that path surely does not lead to this file any more. What cannot be asked is no proof.
    pub(super) fn has_left(self, path: &Path) -> bool {
        match Self::at(path) {
            Ok(now) => now != self,
            Err(e) => e.kind() == std::io::ErrorKind::NotFound,
        }
    }
}

pub(super) const ONE_BOOT_ID: &str = "let all that share the file see the same \
    /proc/sys/kernel/random/boot_id, or use a backend with a server";

pub(super) fn in_use(at: &str) -> Error {
    let text = format!(
        "the SQLite database {at} holds locks of another boot id and is open elsewhere, so their holders may \
         be alive in another container or machine: {ONE_BOOT_ID}; if this machine was just restarted, try \
         again when the ttl of those locks is over"
    );
    Error::new(ErrorKind::BackendData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_id_is_read_and_nonsense_is_not() {
        let id = parse("f72f7b0b-f801-4910-a938-5441b4faa6d0\n").unwrap();
        assert_eq!(id.as_bytes()[..2], [0xf7, 0x2f]);
        assert_eq!(parse("unknown"), None);
    }

    #[test]
    fn only_a_shifted_boot_time_is_refused() {
        let offsets = |monotonic, boottime| format!("monotonic  {monotonic} 0\nboottime {boottime} 0\n");
        assert!(!is_shifted(&offsets(0, 0)) && !is_shifted(&offsets(5, 0)));
        assert!(is_shifted(&offsets(0, -86400)));
    }
}
