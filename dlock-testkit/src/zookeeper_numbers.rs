//! A node whose next child has the number that a test wants, without making the thousands of millions before
//! it.
//!
//! A server that starts carries out what stands in its log. A creation says there how many children had been
//! made in its parent; one more log, with such a creation in it and the deletion of what it made, is all that
//! it takes.

use std::io;
use std::path::Path;

const CREATE: i32 = 1;
const DELETE: i32 = 2;

/// The child that it makes, and removes.
const CHILD: &str = "number-of-the-tests";

/// Writes a log that goes on after that transaction, for a server that does not run.
pub(crate) fn write(logs: &Path, last: i64, parent: &str, number: i32) -> io::Result<()> {
    let path = format!("{parent}/{CHILD}");
    let mut create = Vec::new();
    put(&mut create, path.as_bytes());
    put(&mut create, b"");
    // One entry: anybody may do anything.
    create.extend_from_slice(&1_i32.to_be_bytes());
    create.extend_from_slice(&31_i32.to_be_bytes());
    put(&mut create, b"world");
    put(&mut create, b"anyone");
    // Not ephemeral.
    create.push(0);
    create.extend_from_slice(&number.to_be_bytes());
    let mut delete = Vec::new();
    put(&mut delete, path.as_bytes());

    let mut log = b"ZKLG".to_vec();
    log.extend_from_slice(&2_i32.to_be_bytes());
    log.extend_from_slice(&0_i64.to_be_bytes());
    for (n, what, body) in [(1, CREATE, create), (2, DELETE, delete)] {
        let mut entry = Vec::new();
        // Of no session.
        entry.extend_from_slice(&0_i64.to_be_bytes());
        entry.extend_from_slice(&0_i32.to_be_bytes());
        entry.extend_from_slice(&(last + n).to_be_bytes());
        entry.extend_from_slice(&0_i64.to_be_bytes());
        entry.extend_from_slice(&what.to_be_bytes());
        entry.extend_from_slice(&body);
        log.extend_from_slice(&i64::from(adler32(&entry)).to_be_bytes());
        put(&mut log, &entry);
        // How each entry ends.
        log.push(b'B');
    }
    std::fs::write(logs.join(format!("log.{:x}", last + 1)), log)
}

fn put(to: &mut Vec<u8>, bytes: &[u8]) {
    let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
    to.extend_from_slice(&length.to_be_bytes());
    to.extend_from_slice(bytes);
}

fn adler32(bytes: &[u8]) -> u32 {
    const PRIME: u32 = 65_521;
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in bytes {
        a = (a + u32::from(*byte)) % PRIME;
        b = (b + a) % PRIME;
    }
    b << 16 | a
}
