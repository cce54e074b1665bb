//! Under which name a record is filed: its own. Builds for the conformance kit's self-test plant the ways to
//! get that wrong.

use std::borrow::Cow;

use super::names::Names;
use crate::name::LockName;
use crate::saboteur::Planted;

/// The name itself, byte for byte.
#[cfg(not(dlock_saboteur))]
#[inline(always)]
pub(super) fn filed<'a>(_: &Names, name: &'a LockName, _: Planted) -> Cow<'a, LockName> {
    Cow::Borrowed(name)
}

#[cfg(dlock_saboteur)]
pub(super) use planted::filed;

#[cfg(dlock_saboteur)]
mod planted {
    use super::*;
    use crate::saboteur::Bug;

    /// The name itself, unless a bug is planted that takes two names for one.
    pub(in crate::memory::table) fn filed<'a>(
        names: &Names,
        name: &'a LockName,
        bug: Planted,
    ) -> Cow<'a, LockName> {
        let bytes = name.as_bytes();
        let other = if bug.is(Bug::NameTruncated) {
            // planted: 13.02
            bytes[..bytes.len().min(255)].to_vec()
        } else if bug.is(Bug::NameHash32) {
            // planted: 13.03
            crc32(bytes).to_be_bytes().to_vec()
        } else if bug.is(Bug::NameCaseFold) {
            // planted: 13.04
            bytes.to_ascii_lowercase()
        } else if bug.is(Bug::NameTrailingSpace) {
            // planted: 13.05
            bytes.trim_ascii_end().to_vec()
        } else if bug.is(Bug::NameNfc) {
            // planted: 13.06, the composition of one letter
            let text = String::from_utf8_lossy(bytes);
            text.replace("e\u{301}", "\u{e9}").into_bytes()
        } else if bug.is(Bug::NameAsPath) {
            // planted: 13.07
            as_path(bytes)
        } else if bug.is(Bug::NameAsGlob) {
            // planted: 13.08
            let found = names.keys().find(|other| glob(bytes, other.as_bytes()));
            return Cow::Owned(found.unwrap_or(name).clone());
        } else {
            return Cow::Borrowed(name);
        };
        Cow::Owned(LockName::new(other).unwrap_or_else(|_| name.clone()))
    }

    fn crc32(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                if crc & 1 == 1 {
                    crc >> 1 ^ 0xedb8_8320
                } else {
                    crc >> 1
                }
            })
        })
    }

    fn as_path(bytes: &[u8]) -> Vec<u8> {
        let mut parts: Vec<&[u8]> = Vec::new();
        for part in bytes.split(|b| *b == b'/') {
            match part {
                b"" | b"." => {}
                b".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        parts.join(&b'/')
    }

    fn glob(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) => glob(rest, text) || (!text.is_empty() && glob(pattern, &text[1..])),
            (Some((b'?', rest)), Some((_, text))) => glob(rest, text),
            (Some((p, rest)), Some((t, text))) => p == t && glob(rest, text),
            _ => false,
        }
    }
}
