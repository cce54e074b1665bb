//! Who in a line has the lock, for stores that keep nothing but the order in which requests came.

use std::num::NonZeroU32;
use std::ops::Range;

use crate::mode::Mode;

/// The entries of a lock in the order in which they came, for a backend whose clients each read that order
/// and come to the same end.
///
/// *An entry is admitted if nothing before it is in its way*: an exclusive one if it is the first; a reader
/// if only readers are before it; one of *n* permits if fewer than *n* are before it and all are permits of
/// *n*. Nobody is told by another.
///
/// What could break it, and why it does not:
///
/// * *A list that is old.* What comes joins at the end, and a list that has the own entry in it has all that
///   came before. So what is before an entry only becomes less. An old list shows some who are gone already,
///   and costs a wait. It never hides anybody.
/// * *An entry that has another mode now.* Only from exclusive to shared, which lets more in; whoever reads
///   of it late waits longer. The other direction would take the lock from those who were admitted by the
///   list of before, and its token would be above those of the line that waits behind it: so there are no
///   upgrades.
/// * *Tokens.* They are numbers that the store drew for the entries, and grow along the line. Whoever is
///   admitted has all exclusive ones that were granted before it in front of it, and all that will be behind
///   it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<E> {
    /// First come first.
    pub entries: Vec<E>,
}

/// An entry of a [`Line`].
pub trait InLine {
    /// In which mode it holds, or will.
    fn mode(&self) -> Mode;
}

/// Where in the line an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It holds.
    Admitted,
    /// It waits.
    Behind {
        /// How many wait in front of it.
        ahead: u32,
        /// Entries of which one at least has to go, or to change, before this one can be admitted: one, but
        /// for permits.
        watch: Range<usize>,
    },
    /// The lock is in use with shared holders or waiters of this other kind.
    Mismatch(Mode),
}

impl<E> Default for Line<E> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<E: InLine> Line<E> {
    /// How many of the first are admitted.
    pub fn admitted(&self) -> usize {
        let holds = |i: &usize| self.is_admitted(*i, self.entries[*i].mode());
        (0..self.entries.len()).take_while(holds).count()
    }

    /// Whether an entry of that mode that comes behind the first `i` is admitted.
    fn is_admitted(&self, i: usize, mode: Mode) -> bool {
        match mode {
            Mode::Shared { limit } => {
                let alike = self.entries[..i].iter().all(|e| e.mode() == mode);
                alike && limit.is_none_or(|n| i < n.get() as usize)
            }
            _ => i == 0,
        }
    }

    /// Where the entry number `i` is.
    ///
    /// # Panics
    /// If there is none.
    pub fn place(&self, i: usize) -> Place {
        self.place_of(i, self.entries[i].mode())
    }

    /// Where an entry of that mode would be that came last.
    pub fn place_at_end(&self, mode: Mode) -> Place {
        self.place_of(self.entries.len(), mode)
    }

    fn place_of(&self, i: usize, mode: Mode) -> Place {
        let before = &self.entries[..i];
        if self.is_admitted(i, mode) {
            return Place::Admitted;
        }
        if !mode.is_exclusive()
            && let Some(first) = before.iter().find(|e| !e.mode().is_exclusive())
            && first.mode() != mode
        {
            return Place::Mismatch(first.mode());
        }
        let watch = match (mode, before.iter().rposition(|e| e.mode() != mode)) {
            (Mode::Shared { .. }, Some(other)) => other..other + 1,
            // As many as there are permits: fewer can stay when it is admitted.
            (Mode::Shared { limit: Some(n) }, None) => i.saturating_sub(n.get() as usize)..i,
            // The last one before it; it may be a reader.
            _ => i - 1..i,
        };
        let ahead = u32::try_from(i - self.admitted().min(i)).unwrap_or(u32::MAX);
        Place::Behind { ahead, watch }
    }
}

impl Mode {
    /// For a backend that writes modes into names: `x`, `r`, or `p` and the number of permits.
    pub fn code(self) -> String {
        match self {
            Self::Shared { limit: None } => "r".to_owned(),
            Self::Shared { limit: Some(n) } => format!("p{n}"),
            Self::Exclusive => "x".to_owned(),
        }
    }

    /// Reads what [`code`](Self::code) wrote.
    pub fn from_code(text: &str) -> Option<Self> {
        match text {
            "x" => Some(Self::Exclusive),
            "r" => Some(Self::READER),
            _ => {
                let n: NonZeroU32 = text.strip_prefix('p')?.parse().ok()?;
                Some(Self::permit(n))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: Mode = Mode::Exclusive;
    const R: Mode = Mode::READER;

    fn permit(n: u32) -> Mode {
        Mode::permit(NonZeroU32::new(n).unwrap())
    }

    impl InLine for (usize, Mode) {
        fn mode(&self) -> Mode {
            self.1
        }
    }

    /// A line of those modes, each known by its number, without those of which the bit is set.
    fn without(modes: &[Mode], gone: usize) -> Line<(usize, Mode)> {
        let left = modes.iter().copied().enumerate();
        Line {
            entries: left.filter(|(i, _)| gone >> i & 1 == 0).collect(),
        }
    }

    fn place_in(line: &Line<(usize, Mode)>, which: usize) -> Option<Place> {
        let at = line.entries.iter().position(|(i, _)| *i == which)?;
        Some(line.place(at))
    }

    /// All lines of five of these.
    fn fives(kinds: &[Mode]) -> impl Iterator<Item = [Mode; 5]> + '_ {
        (0..kinds.len().pow(5)).map(|n| [0, 1, 2, 3, 4].map(|i| kinds[n / kinds.len().pow(i) % kinds.len()]))
    }

    #[test]
    fn a_waiter_watches_what_has_to_go_first() {
        let p = permit(3);
        for (modes, watched, in_front) in [
            (&[X, X, X][..], 1..2, 1),
            (&[R, R, X], 1..2, 0),
            // Readers wait for the last writer before them.
            (&[R, X, X, R, R], 2..3, 3),
            (&[p, p, p, p, p], 1..4, 1),
            (&[p, X, p, p], 1..2, 2),
        ] {
            let last = without(modes, 0).place(modes.len() - 1);
            let (ahead, watch) = (in_front, watched);
            assert_eq!(last, Place::Behind { ahead, watch }, "{modes:?}");
            let (before, mode) = (&modes[..modes.len() - 1], modes[modes.len() - 1]);
            assert_eq!(without(before, 0).place_at_end(mode), last, "{modes:?}");
        }
    }

    /// Whoever goes in whatever order: else it would sleep for ever.
    #[test]
    fn nobody_is_admitted_before_one_of_those_it_watches_is_gone() {
        let (one, two) = (permit(1), permit(2));
        for kinds in [&[X, R][..], &[X, one, one], &[X, two, two, two]] {
            for modes in fives(kinds) {
                let Place::Behind { watch, .. } = without(&modes, 0).place(4) else {
                    continue;
                };
                for gone in 0..16 {
                    let is_admitted = place_in(&without(&modes, gone), 4) == Some(Place::Admitted);
                    let is_woken = (0..4).any(|i| gone >> i & 1 == 1 && watch.contains(&i));
                    assert!(!is_admitted || is_woken, "{modes:?} without {gone:b}");
                }
            }
        }
    }

    /// What is before an entry only becomes less, so whoever is admitted by an old list is admitted by the
    /// present one.
    #[test]
    fn a_holder_stays_admitted_whoever_goes() {
        for modes in fives(&[X, R, permit(2)]) {
            let holders = without(&modes, 0).admitted();
            for gone in 0..5 {
                let after = without(&modes, 1 << gone);
                for i in (0..holders).filter(|i| *i != gone) {
                    let place = place_in(&after, i);
                    assert_eq!(place, Some(Place::Admitted), "{modes:?} without {gone}");
                }
            }
            assert!(holders == 1 || !modes[..holders].contains(&X), "{modes:?}");
        }
    }

    #[test]
    fn a_mode_is_read_as_it_was_written() {
        for mode in [X, R, permit(1), permit(u32::MAX)] {
            assert_eq!(Mode::from_code(&mode.code()), Some(mode));
        }
        for foreign in ["", "p", "p0", "p-1", "R", "xx", "p4294967296"] {
            assert_eq!(Mode::from_code(foreign), None, "{foreign}");
        }
    }
}
