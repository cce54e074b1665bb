//! Which boot of which machine this is: the first half of every time in the file.
//!
//! SQLite has no server and so no server's clock. The one clock that all processes of a machine share, that nobody sets and that
//! counts suspension, is the time since boot; it means something only together with the boot's identity.

use dlock_core::{Error, ErrorKind, Result};

/// 16 bytes that name one boot of one machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BootId([u8; 16]);

impl BootId {
    /// For a database that only this process sees: any constant will do, since it does not outlive the process.
    pub(super) const PROCESS: Self = Self([0; 16]);

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The current boot.
    ///
    /// # Errors
    /// `Unsupported` where the system has no boot id, or where this process sees a shifted clock.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn current() -> Result<Self> {
        refuse_a_shifted_clock()?;
        let path = "/proc/sys/kernel/random/boot_id";
        let text = std::fs::read_to_string(path).map_err(|e| {
            Error::new(
                ErrorKind::Unsupported,
                format!(
                    "cannot read {path}, without which leases in a SQLite file mean nothing; mount /proc"
                ),
            )
            .with_source(e)
        })?;
        parse(&text)
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, format!("{path} does not hold a boot id")))
    }

    /// The current boot.
    ///
    /// # Errors
    /// Always `Unsupported`: the clock of this system is not shared by its processes.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(crate) fn current() -> Result<Self> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "a SQLite file shared by processes needs Linux, for a clock since boot that they all share; \
             use an in-memory database or another backend here",
        ))
    }
}

/// A process in a time namespace of its own reads another time since boot than its neighbours, and would take
/// their live leases for expired ones. Leases by that clock would exclude nobody.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn refuse_a_shifted_clock() -> Result<()> {
    // An old kernel has no such file, and no such namespaces either.
    let Ok(offsets) = std::fs::read_to_string("/proc/self/timens_offsets") else {
        return Ok(());
    };
    if is_shifted(&offsets) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "this process runs in a time namespace with a shifted boot-time clock, so its leases in a SQLite file \
             cannot be compared with those of other processes; run it in the machine's own time namespace",
        ));
    }
    Ok(())
}

#[cfg(any(target_os = "linux", target_os = "android", test))]
fn is_shifted(offsets: &str) -> bool {
    offsets
        .lines()
        .filter_map(|line| line.trim().strip_prefix("boottime"))
        .any(|rest| rest.split_whitespace().any(|number| number != "0"))
}

#[cfg(any(target_os = "linux", target_os = "android", test))]
fn parse(text: &str) -> Option<BootId> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    if digits.len() != 32 {
        return None;
    }
    u128::from_str_radix(&digits, 16)
        .ok()
        .map(|n| BootId(n.to_be_bytes()))
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
        assert!(!is_shifted(
            "monotonic           0         0\nboottime            0         0\n"
        ));
        assert!(!is_shifted(
            "monotonic           5         0\nboottime            0         0\n"
        ));
        assert!(is_shifted(
            "monotonic           0         0\nboottime       -86400         0\n"
        ));
    }
}
