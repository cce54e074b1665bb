//! Who in a line has the lock: one rule for locks, read-write locks and permits.
//!
//! *An entry is admitted if nothing before it is in its way*: an exclusive one if it is the first; a reader
//! if only readers are before it; one of *n* permits if fewer than *n* are before it and all are permits of
//! *n*. Everybody reads the same line and comes to the same end, each for itself, and nobody is told by
//! another.
//!
//! What could break it, and why it does not:
//!
//! * *A list that is old.* Places are drawn in order, and a list that has the own entry in it has all that
//!   came before: a server answers a session's list after the session's own creation. So what is before an
//!   entry only becomes less. An old list shows some who are gone already, and costs a wait. It never hides
//!   anybody.
//! * *An entry that has another mode now.* Only from exclusive to shared, which lets more in; whoever reads
//!   of it late waits longer. The other direction would take the lock from those who were admitted by the
//!   list of before, and its token would be above those of the line that waits behind it: so there are no
//!   upgrades.
//! * *Tokens.* They are the czxids of the entries, and grow with the places. Whoever is admitted has all
//!   exclusive ones that were granted before it in front of it, and all that will be behind it.
//! * *Places that run over.* Whoever draws one near the end of the numbers is not in the line, takes its node
//!   out again, and is in nobody's way: see [`END`](crate::node::END).

use std::collections::HashMap;

use dlock_core::Mode;

use crate::layout::Layout;
use crate::node::{Child, Entry, is_place, parse};

/// The entries of a lock, first come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) entries: Vec<Entry>,
}

/// Where in the line an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Admitted,
    Behind {
        /// How many wait in front of it.
        ahead: u32,
        /// Nodes of which one at least has to go, or to change, before this one can be admitted: one, but for
        /// permits.
        watch: Vec<String>,
    },
    /// The lock is in use with shared holders or waiters of this other kind.
    Mismatch(Mode),
}

impl Line {
    /// Of those children. A child that is none of a line, or stands where another one does, is given back:
    /// somebody else's.
    pub(crate) fn read(layout: Layout, children: Vec<String>) -> Result<Self, String> {
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
        Ok(Self { entries })
    }

    /// How many of the first are admitted.
    pub(crate) fn admitted(&self) -> usize {
        let holds = |i: &usize| self.is_admitted(*i);
        (0..self.entries.len()).take_while(holds).count()
    }

    fn is_admitted(&self, i: usize) -> bool {
        match self.entries[i].mode {
            Mode::Shared { limit } => {
                let alike = self.entries[..i].iter().all(|e| e.mode == self.entries[i].mode);
                alike && limit.is_none_or(|n| i < n.get() as usize)
            }
            _ => i == 0,
        }
    }

    /// Where the node of that name is; `None` if it is not there.
    pub(crate) fn place(&self, node: &str) -> Option<Place> {
        let i = self.entries.iter().position(|e| e.node == node)?;
        let (mode, before) = (self.entries[i].mode, &self.entries[..i]);
        if self.is_admitted(i) {
            return Some(Place::Admitted);
        }
        if !mode.is_exclusive()
            && let Some(first) = before.iter().find(|e| !e.mode.is_exclusive())
            && first.mode != mode
        {
            return Some(Place::Mismatch(first.mode));
        }
        let watch = match (mode, before.iter().rposition(|e| e.mode != mode)) {
            (Mode::Shared { .. }, Some(other)) => other..other + 1,
            // As many as there are permits: fewer can stay when it is admitted.
            (Mode::Shared { limit: Some(n) }, None) => i.saturating_sub(n.get() as usize)..i,
            // The last one before it; it may be a reader.
            _ => i - 1..i,
        };
        Some(Place::Behind {
            ahead: u32::try_from(i - self.admitted().min(i)).unwrap_or(u32::MAX),
            watch: self.entries[watch].iter().map(|e| e.node.clone()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use dlock_core::RequestId;

    use super::*;
    use crate::node::prefix;

    fn permit(n: u32) -> Mode {
        Mode::permit(NonZeroU32::new(n).unwrap())
    }

    fn node(i: usize, mode: Mode) -> String {
        let id = RequestId::new(1 << 100, i as u64);
        format!("{}{:010}", prefix(Layout::Own, id, mode), i)
    }

    fn nodes(modes: &[Mode]) -> Vec<String> {
        modes.iter().enumerate().map(|(i, m)| node(i, *m)).collect()
    }

    fn line(modes: &[Mode]) -> Line {
        let mut nodes = nodes(modes);
        nodes.reverse();
        Line::read(Layout::Own, nodes).unwrap()
    }

    const X: Mode = Mode::Exclusive;
    const R: Mode = Mode::READER;

    /// Where the last of them is.
    fn last(modes: &[Mode]) -> Option<Place> {
        line(modes).place(nodes(modes).last()?)
    }

    /// All lines of five of these.
    fn fives(kinds: &[Mode]) -> impl Iterator<Item = [Mode; 5]> + '_ {
        (0..kinds.len().pow(5)).map(|n| [0, 1, 2, 3, 4].map(|i| kinds[n / kinds.len().pow(i) % kinds.len()]))
    }

    /// The line without those of which the bit is set.
    fn without(modes: &[Mode], gone: usize) -> Line {
        let left = nodes(modes).into_iter().enumerate();
        let left: Vec<_> = left.filter(|(i, _)| gone >> i & 1 == 0).map(|(_, n)| n).collect();
        Line::read(Layout::Own, left).unwrap()
    }

    #[test]
    fn a_waiter_watches_what_has_to_go_first() {
        let p = permit(3);
        for (modes, watched) in [
            (&[X, X, X][..], &[1][..]),
            (&[R, R, X], &[1]),
            // Readers wait for the last writer before them.
            (&[R, X, X, R, R], &[2]),
            (&[p, p, p, p, p], &[1, 2, 3]),
            (&[p, X, p, p], &[1]),
        ] {
            let all = nodes(modes);
            let watched = watched.iter().map(|i| all[*i].clone()).collect::<Vec<_>>();
            let Some(Place::Behind { watch, .. }) = last(modes) else {
                panic!("{modes:?}")
            };
            assert_eq!(watch, watched, "{modes:?}");
        }
    }

    /// Whoever goes in whatever order: else it would sleep for ever.
    #[test]
    fn nobody_is_admitted_before_one_of_those_it_watches_is_gone() {
        let (one, two) = (permit(1), permit(2));
        for kinds in [&[X, R][..], &[X, one, one], &[X, two, two, two]] {
            for modes in fives(kinds) {
                let all = nodes(&modes);
                let Some(Place::Behind { watch, .. }) = last(&modes) else {
                    continue;
                };
                for gone in 0..16 {
                    let is_admitted = without(&modes, gone).place(&all[4]) == Some(Place::Admitted);
                    let is_woken = (0..4).any(|i| gone >> i & 1 == 1 && watch.contains(&all[i]));
                    assert!(!is_admitted || is_woken, "{modes:?} without {gone:b}");
                }
            }
        }
    }

    /// What is before an entry only becomes less, so whoever is admitted by an old list is admitted by the
    /// present one.
    #[test]
    fn whoever_is_admitted_stays_so_whoever_goes() {
        for modes in fives(&[X, R, permit(2)]) {
            let (all, holders) = (nodes(&modes), line(&modes).admitted());
            for gone in 0..5 {
                let after = without(&modes, 1 << gone);
                for i in (0..holders).filter(|i| *i != gone) {
                    let place = after.place(&all[i]);
                    assert_eq!(place, Some(Place::Admitted), "{modes:?} without {gone}");
                }
            }
            assert!(holders == 1 || !modes[..holders].contains(&X), "{modes:?}");
        }
    }

    #[test]
    fn who_has_no_place_is_not_in_the_line_and_a_foreign_child_is_found() {
        let name = |n: u64, place: &str| {
            let id = RequestId::new(1 << 100, n);
            format!("{}{place}", prefix(Layout::Own, id, X))
        };
        // At the end of the numbers.
        let late = [
            name(4, "-2147483648"),
            name(3, "2147483647"),
            name(2, "2146435071"),
        ];
        let line = Line::read(Layout::Own, [&late[..], &[name(1, "2146435070")]].concat()).unwrap();
        let there: Vec<_> = line.entries.iter().map(|e| e.id().sequence()).collect();
        assert_eq!(there, [1]);
        for foreign in ["lost+found".to_owned(), name(2, "0000000007")] {
            let nodes = vec![name(1, "0000000007"), foreign.clone()];
            assert_eq!(Line::read(Layout::Own, nodes), Err(foreign));
        }
    }
}
