//! Names that are one to a store that keeps a 32-bit hash instead of the name.

use std::collections::HashMap;

/// A hash that is in use for naming locks.
pub(super) struct Hash {
    pub(super) name: &'static str,
    pub(super) of: fn(&[u8]) -> u32,
    /// Two endings of the same length that collide behind any common beginning, where such exist.
    endings: Endings,
}

/// The hashes that are looked at. A checksum is linear: what collides alone collides behind anything, if the
/// lengths are equal.
pub(super) const HASHES: [Hash; 5] = [
    hash("CRC-32", crc32, Some(("plumless", "buckeroo"))),
    hash("Java's hashCode", java, Some(("AaAaBB", "BBAaAa"))),
    hash("FNV-1a", fnv1a, None),
    hash("murmur3", murmur3, None),
    hash("PostgreSQL's hashtext", hashtext, None),
];

type Endings = Option<(&'static str, &'static str)>;

const fn hash(name: &'static str, of: fn(&[u8]) -> u32, endings: Endings) -> Hash {
    Hash { name, of, endings }
}

impl Hash {
    /// Two different names that begin like that and have the same hash.
    ///
    /// Where no ending collides behind every beginning they are looked for: among 2^18 names two share one of
    /// 2^32 hashes with a chance of 1 - e^-8.
    pub(super) fn pair(&self, beginning: &[u8]) -> Option<[Vec<u8>; 2]> {
        if let Some((a, b)) = self.endings {
            return Some([a, b].map(|ending| [beginning, ending.as_bytes()].concat()));
        }
        let mut seen = HashMap::with_capacity(1 << 18);
        let mut name = [beginning, b"00000000"].concat();
        for n in 0..1_u32 << 18 {
            write_number(&mut name, n);
            if let Some(other) = seen.insert((self.of)(&name), n) {
                let mut first = name.clone();
                write_number(&mut first, other);
                return Some([first, name]);
            }
        }
        None
    }
}

/// Overwrites the last eight bytes. Numbers in a row make names that differ everywhere: the hashes that are
/// no mixers collide less among neighbours than by chance.
fn write_number(name: &mut [u8], n: u32) {
    let n = n.wrapping_mul(0x9e37_79b1);
    for (i, byte) in name.iter_mut().rev().take(8).enumerate() {
        *byte = b"0123456789abcdef"[(n >> (4 * i)) as usize & 15];
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    })
}

fn java(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0, |h: u32, b| h.wrapping_mul(31).wrapping_add(u32::from(*b)))
}

fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |h: u32, b| {
        (h ^ u32::from(*b)).wrapping_mul(0x0100_0193)
    })
}

/// The bytes as a number, the first one lowest.
fn word(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |w, b| w << 8 | u32::from(*b))
}

/// `MurmurHash3_x86_32` with seed 0 (Appleby, public domain).
fn murmur3(bytes: &[u8]) -> u32 {
    let scramble = |k: u32| {
        k.wrapping_mul(0xcc9e_2d51)
            .rotate_left(15)
            .wrapping_mul(0x1b87_3593)
    };
    let (blocks, tail) = bytes.as_chunks::<4>();
    let mut h = blocks.iter().fold(0_u32, |h, block| {
        (h ^ scramble(word(block)))
            .rotate_left(13)
            .wrapping_mul(5)
            .wrapping_add(0xe654_6b64)
    });
    h ^= scramble(word(tail));
    h ^= u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

/// `hash_any` of PostgreSQL: Jenkins' lookup3 with a start value of its own.
fn hashtext(bytes: &[u8]) -> u32 {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let start = 0x9e37_79b9_u32.wrapping_add(len).wrapping_add(3_923_095);
    let [mut a, mut b, mut c] = [start; 3];
    let (blocks, tail) = bytes.as_chunks::<12>();
    for block in blocks {
        a = a.wrapping_add(word(&block[..4]));
        b = b.wrapping_add(word(&block[4..8]));
        c = c.wrapping_add(word(&block[8..]));
        for (first, second) in [(4, 6), (8, 16), (19, 4)] {
            a = a.wrapping_sub(c) ^ c.rotate_left(first);
            c = c.wrapping_add(b);
            b = b.wrapping_sub(a) ^ a.rotate_left(second);
            a = a.wrapping_add(c);
            // The three take turns: what was (a, b, c) goes on as (c, a, b).
            (a, b, c) = (c, a, b);
        }
    }
    let part =
        |from: usize, to: usize| word(tail.get(from.min(tail.len())..to.min(tail.len())).unwrap_or(&[]));
    a = a.wrapping_add(part(0, 4));
    b = b.wrapping_add(part(4, 8));
    // The lowest byte of `c` is the length's.
    c = c.wrapping_add(part(8, 12) << 8);
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}
