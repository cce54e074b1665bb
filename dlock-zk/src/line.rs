//! The queue of a lock, read from the names of its children.
//!
//! [`spi::Line`](dlock_core::spi::Line) decides which entry has the lock, and says why that is right. Beyond
//! that:
//!
//! * *An old list.* A server answers a session's list after the session's own creation.
//! * *Tokens.* They are the czxids of the entries, and grow with the places.
//! * *Places that run over.* A request that draws one near the end of the numbers is not in the queue,
//!   removes its node again, and blocks no one: see [`END`](crate::node::END).

use std::collections::HashMap;
use std::ops::Range;

use dlock_core::Mode;
use dlock_core::spi::{self, InLine, Place};

use crate::layout::Layout;
use crate::node::{Child, Entry, is_place, parse};

/// The entries of a lock.
pub(crate) type Line = spi::Line<Entry>;

impl InLine for Entry {
    fn mode(&self) -> Mode {
        self.mode
    }
}

/// The line of those children. A child that is none of a line, or stands where another one does, is given
/// back: another's.
pub(crate) fn line_of(layout: Layout, children: Vec<String>) -> Result<Line, String> {
    let mut entries = Vec::with_capacity(children.len());
    let mut converted = HashMap::new();
    for node in children {
        match parse(layout, &node) {
            Some(Child::Entry { mode, place }) if is_place(place) => {
                entries.push(Entry { node, mode, place });
            }
            Some(Child::Entry { .. }) => {}
            Some(Child::Converted { entry, to }) => {
                converted.insert(entry.to_owned(), to);
            }
            None => return Err(node),
        }
    }
    entries.sort_by_key(|e| e.place);
    // No server draws one twice.
    if let Some(twice) = entries.windows(2).find(|w| w[0].place == w[1].place) {
        return Err(twice[1].node.clone());
    }
    for entry in entries.iter_mut().filter(|_| !converted.is_empty()) {
        if let Some(to) = converted.get(&entry.node) {
            entry.mode = *to;
        }
    }
    Ok(Line { entries })
}

/// Where the node of that name is; `None` if it is not there.
pub(crate) fn place_of(line: &Line, node: &str) -> Option<Place> {
    let i = line.entries.iter().position(|e| e.node == node)?;
    Some(line.place(i))
}

/// The nodes of those entries.
pub(crate) fn nodes(line: &Line, of: Range<usize>) -> Vec<String> {
    line.entries[of].iter().map(|e| e.node.clone()).collect()
}

#[cfg(test)]
mod tests {
    use dlock_core::RequestId;

    use super::*;
    use crate::node::prefix;

    #[test]
    fn a_node_without_place_is_left_out_and_a_foreign_one_is_found() {
        let name = |n: u64, place: &str| {
            let id = RequestId::new(1 << 100, n);
            format!("{}{place}", prefix(Layout::Own, id, Mode::Exclusive))
        };
        // At the end of the numbers.
        let late = [
            name(4, "-2147483648"),
            name(3, "2147483647"),
            name(2, "2146435071"),
        ];
        let line = line_of(Layout::Own, [&late[..], &[name(1, "2146435070")]].concat()).unwrap();
        let there: Vec<_> = line.entries.iter().map(|e| e.id().sequence()).collect();
        assert_eq!(there, [1]);
        for foreign in ["lost+found".to_owned(), name(2, "0000000007")] {
            let nodes = vec![name(1, "0000000007"), foreign.clone()];
            assert_eq!(line_of(Layout::Own, nodes), Err(foreign));
        }
    }
}
