//! How ids, modes and times are sent to the servers. The crate's `keys.rs` has what all stores share.

use std::time::Duration;

use dlock_core::{Mode, RequestId, Result};

use super::failure::invalid;
use crate::failure::unsupported;
pub(in crate::lease) use crate::keys::{id_bytes, read_id, read_mode, read_token};

/// Of an id in hexadecimal digits.
pub(in crate::lease) fn read_id_digits(digits: &str) -> Option<RequestId> {
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    read_id(&bytes?).ok()
}

/// Of ids in a list.
pub(in crate::lease) fn read_ids(list: &str) -> impl Iterator<Item = RequestId> {
    list.split(',').filter_map(read_id_digits)
}

/// A mode as it is stored: -1 exclusive, 0 a reader, n one of n permits.
pub(in crate::lease) fn share(mode: Mode) -> Result<i32> {
    match mode {
        Mode::Exclusive => Ok(-1),
        Mode::Shared { limit } => limit.map_or(Ok(0), |n| {
            let text = || invalid(format!("SQL databases count permits up to {}", i32::MAX));
            i32::try_from(n.get()).map_err(|_| text())
        }),
        _ => Err(unsupported("the SQL backends do not know this mode")),
    }
}

/// As the statements take it: whole microseconds, of a time in whole milliseconds.
pub(in crate::lease) fn micros(d: Duration) -> i64 {
    i64::try_from(d.as_micros()).unwrap_or(i64::MAX)
}

pub(in crate::lease) fn read_micros(n: i64) -> Duration {
    Duration::from_micros(u64::try_from(n).unwrap_or(0))
}

/// An id as it is written in messages, with small digits.
#[cfg(test)]
pub(in crate::lease) fn digits(id: RequestId) -> String {
    format!("{:032x}{:016x}", id.client(), id.sequence())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written() {
        let id = RequestId::new(7 << 70, 9);
        assert_eq!(read_id(&id_bytes(id)).ok(), Some(id));
        assert_eq!(read_id_digits(&digits(id)), Some(id));
        for bad in ["", "0", "0g", "é", &"00".repeat(23), &"00".repeat(25)] {
            assert_eq!(read_id_digits(bad), None, "{bad}");
        }
    }
}
