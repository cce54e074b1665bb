//! Names of any bytes as plain text, for stores whose keys are paths.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use crate::name::LockName;

/// Encodes everything but letters, digits and these.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'.')
    .remove(b'-')
    .remove(b'_')
    .remove(b'~');

impl LockName {
    /// For backends whose keys are paths: encodes the name as one part of a path. Different names have
    /// different parts.
    ///
    /// Letters, digits, `.`, `-`, `_` and `~` stand for themselves. Every other byte becomes `%` and two
    /// hexadecimal digits, as does a leading `.`, since `.` and `..` are no names in most paths.
    pub fn to_path_part(&self) -> String {
        let encoded = percent_encode(self.as_bytes(), ENCODED).to_string();
        match encoded.strip_prefix('.') {
            Some(rest) => format!("%2E{rest}"),
            None => encoded,
        }
    }

    /// Decodes what [`to_path_part`](Self::to_path_part) encoded, and any other percent-encoded text.
    pub fn from_path_part(part: &str) -> Option<Self> {
        Self::new(percent_decode_str(part).collect::<Vec<u8>>()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_names_have_different_path_parts() {
        let mut names: Vec<Vec<u8>> = (0..=255).map(|b| vec![b]).collect();
        names.extend((0..=255).map(|b| vec![b'a', b]));
        let odd = ".. ... %2E %2E. % %% %25 a/b a%2Fb a%2fb \u{e9} e\u{301} %C3%A9 + A a orders-42.eu_1~a";
        names.extend(odd.split(' ').map(|text| text.as_bytes().to_vec()));
        names.sort();
        names.dedup();
        let mut parts = Vec::new();
        for bytes in &names {
            let name = LockName::new(bytes).unwrap();
            let part = name.to_path_part();
            assert!(
                !part.contains('/') && !part.starts_with('.') && part.is_ascii(),
                "{part}"
            );
            assert_eq!(LockName::from_path_part(&part), Some(name));
            parts.push(part);
        }
        assert!(parts.contains(&"orders-42.eu_1~a".to_owned()));
        parts.sort();
        parts.dedup();
        assert_eq!(parts.len(), names.len());
    }
}
