//! The id of an acquisition.

use std::fmt;

/// The id of one acquisition. It is unguessable, and fresh for each acquisition.
///
/// It consists of 128 random bits per client and a counter. It is never derived from host, process, thread,
/// task or time, so two containers with the same pid cannot be confused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    client: [u64; 2],
    sequence: u64,
}

impl RequestId {
    /// Creates the id number `sequence` of the client with these random bits.
    pub const fn new(client: u128, sequence: u64) -> Self {
        Self {
            client: [(client >> 64) as u64, client as u64],
            sequence,
        }
    }

    /// Returns the random bits of the client.
    pub const fn client(&self) -> u128 {
        (self.client[0] as u128) << 64 | self.client[1] as u128
    }

    /// Returns the number of the acquisition within its client.
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Parses the form that `Display` writes. `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let (client, sequence) = text.split_once('-')?;
        if client.len() != 32 || sequence.len() != 16 {
            return None;
        }
        Some(Self::new(
            u128::from_str_radix(client, 16).ok()?,
            u64::from_str_radix(sequence, 16).ok()?,
        ))
    }
}

/// 32 hexadecimal digits of the client, a dash, 16 of the sequence.
impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:016x}{:016x}-{:016x}",
            self.client[0], self.client[1], self.sequence
        )
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({self})")
    }
}
