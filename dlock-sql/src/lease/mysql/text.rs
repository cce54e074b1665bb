//! Values in the text of statements.
//!
//! A transaction on a name is two texts of several statements each, in two round trips; prepared statements
//! would make it six. Nothing of a value can be read as SQL: bytes and texts are written as hexadecimal
//! digits, numbers as numbers.

use std::fmt::Write as _;

use dlock_core::RequestId;

pub(super) fn bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2 + 3);
    text.push_str("X'");
    for byte in bytes {
        // A string takes everything.
        let _ = write!(text, "{byte:02X}");
    }
    text.push('\'');
    text
}

pub(super) fn label(owner: Option<&str>) -> String {
    match owner {
        Some(owner) => format!("CONVERT({} USING utf8mb4)", bytes(owner.as_bytes())),
        None => "NULL".to_owned(),
    }
}

pub(super) fn number(n: Option<u64>) -> String {
    n.map_or_else(|| "NULL".to_owned(), |n| n.to_string())
}

pub(super) fn list<'a>(all: impl IntoIterator<Item = &'a [u8]>) -> String {
    let all: Vec<_> = all.into_iter().map(bytes).collect();
    all.join(",")
}

/// Sixteen bytes of the client, eight of the request.
pub(super) fn id_bytes(id: RequestId) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&id.client().to_be_bytes());
    bytes[16..].copy_from_slice(&id.sequence().to_be_bytes());
    bytes
}

pub(super) fn read_id(bytes: &[u8]) -> Option<RequestId> {
    let (client, sequence) = bytes.split_at_checked(16)?;
    Some(RequestId::new(
        u128::from_be_bytes(client.try_into().ok()?),
        u64::from_be_bytes(sequence.try_into().ok()?),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_be_read_as_sql() {
        assert_eq!(bytes(b"a'"), "X'6127'");
        assert_eq!(bytes(b""), "X''");
        assert_eq!(label(Some("'; DROP")), "CONVERT(X'273B2044524F50' USING utf8mb4)");
        assert_eq!(list([&b"a"[..], b"b"]), "X'61',X'62'");
    }
}
