//! Values in the text of statements.
//!
//! The few statements of the fast path are prepared. A transaction on a name is two texts of several
//! statements each, in two round trips; prepared statements would make it six. Nothing of a value can be read
//! as SQL in them: bytes and texts are written as hexadecimal digits, numbers as numbers.

use sqlx::MySql;

use crate::direct::Dialect as _;

pub(super) fn bytes(bytes: &[u8]) -> String {
    MySql::bytes(bytes)
}

pub(super) fn label(owner: Option<&str>) -> String {
    owner.map_or("NULL".to_owned(), MySql::text)
}

pub(super) fn list<'a>(all: impl IntoIterator<Item = &'a [u8]>) -> String {
    let all: Vec<_> = all.into_iter().map(bytes).collect();
    all.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_be_read_as_sql() {
        assert_eq!(list([&b"a'"[..], b""]), "X'6127',X''");
        assert_eq!(label(Some("'; DROP")), "CONVERT(X'273b2044524f50' USING utf8mb4)");
    }
}
