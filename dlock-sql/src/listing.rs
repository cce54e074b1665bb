//! Names in the order of their bytes, a page at a time. No page depends on what has become of the one before.

use dlock_core::LockName;
use dlock_core::spi::Page;

/// How many names are asked for at once.
pub(crate) const PAGE: usize = 500;

/// Where the names of a page and of all behind it are.
pub(crate) struct Span {
    /// From this name on.
    pub(crate) from: Vec<u8>,
    /// Up to this one, which does not belong to it; `None`: to the last of all.
    pub(crate) until: Option<Vec<u8>>,
}

impl Span {
    /// The names that begin with that prefix: all, or those from a place on.
    pub(crate) fn new(prefix: &[u8], from: Option<&[u8]>) -> Self {
        // Behind all that begin so is the next text of that length; behind 0xff there is none.
        let last = prefix.iter().rposition(|byte| *byte < u8::MAX);
        let until = last.map(|last| {
            let mut until = prefix[..=last].to_vec();
            until[last] += 1;
            until
        });
        let from = from.unwrap_or(prefix).to_vec();
        Self { from, until }
    }

    /// What was asked for, `PAGE` names at most, in their order. What is no name is passed over.
    pub(crate) fn page(names: Vec<Vec<u8>>) -> Page {
        // The first text behind a text is that with a nought behind it.
        let next = (names.len() >= PAGE).then(|| [names.last().map_or(&[][..], |last| last), &[0]].concat());
        let names = names.into_iter().filter_map(|name| LockName::new(name).ok());
        Page::new(names.collect(), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_ends_where_its_prefix_does() {
        let until = |prefix: &[u8]| Span::new(prefix, None).until;
        assert_eq!(until(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(until(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!((until(b"\xff"), until(b"")), (None, None));
        let next = Span::new(b"a", Some(b"ab\0"));
        assert_eq!((next.from, next.until), (b"ab\0".to_vec(), Some(b"b".to_vec())));
    }
}
