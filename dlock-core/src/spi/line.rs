//! Decides who in a line holds the lock, for stores that keep only the order in which requests came.

use std::num::NonZeroU32;
use std::ops::Range;

use crate::mode::Mode;

/// The entries of a lock in order of arrival, for a backend whose clients each read that order and reach the
/// same decision.
///
/// *An entry is admitted if nothing before it blocks it*: an exclusive one if it is the first; a reader if
/// only readers are before it; one of *n* permits if fewer than *n* are before it and all are permits of *n*.
/// No client has to inform another.
///
/// What could break it, and why it does not:
///
/// * *The list is old.* New entries join at the end, and a list that contains the own entry contains all that
///   came before it. So the set before an entry only shrinks. An old list shows some entries that are gone,
///   which costs a wait. It never hides one.
/// * *An entry has another mode now.* That is only possible from exclusive to shared, which admits more. A
///   client that reads it late waits longer. The other direction would take the lock from those who were
///   admitted by an earlier list, and its token would be above those of the line that waits behind it. So
///   there are no upgrades.
/// * *Tokens.* They are numbers that the store drew for the entries, and grow along the line. All exclusive
///   entries that were granted before an entry were in front of it, and all that will be granted later are
///   behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<E> {
    /// The entries, the first to arrive first.
    pub entries: Vec<E>,
}

/// An entry of a [`Line`].
pub trait InLine {
    /// Returns the mode in which the entry holds, or will hold.
    fn mode(&self) -> Mode;
}

/// The place of an entry in the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It holds.
    Admitted,
    /// It waits.
    Behind {
        /// The number of waiters in front of it.
        ahead: u32,
        /// Entries of which at least one has to leave, or to change, before this one can be admitted. A
        /// single entry, except for permits.
        watch: Range<usize>,
    },
    /// The lock is in use by shared holders or waiters of this other class.
    Mismatch(Mode),
}

impl<E> Default for Line<E> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<E: InLine> Line<E> {
    /// Returns how many of the first entries are admitted.
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

    /// Returns the place of entry `i`.
    ///
    /// # Panics
    /// If there is no entry `i`.
    pub fn place(&self, i: usize) -> Place {
        self.place_of(i, self.entries[i].mode())
    }

    /// Returns the place of an entry of this mode that came last.
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
            // As many as there are permits: only fewer can stay when it is admitted.
            (Mode::Shared { limit: Some(n) }, None) => i.saturating_sub(n.get() as usize)..i,
            // The last one before it; it may be a reader.
            _ => i - 1..i,
        };
        let ahead = u32::try_from(i - self.admitted().min(i)).unwrap_or(u32::MAX);
        Place::Behind { ahead, watch }
    }
}

impl Mode {
    /// For backends that write modes into names: encodes the mode as `x`, `r`, or `p` and the number of
    /// permits.
    pub fn code(self) -> String {
        match self {
            Self::Shared { limit: None } => "r".to_owned(),
            Self::Shared { limit: Some(n) } => format!("p{n}"),
            Self::Exclusive => "x".to_owned(),
        }
    }

    /// Decodes what [`code`](Self::code) encoded.
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

    /// A line of these modes, numbered, without those whose bit is set in `gone`.
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

    /// Whichever entries leave in whichever order: otherwise it would sleep for ever.
    #[test]
    fn waiter_is_admitted_only_after_a_watched_entry_left() {
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

    /// The set before an entry only shrinks, so an entry that an old list admits is admitted by the present
    /// one.
    #[test]
    fn holder_stays_admitted_when_others_leave() {
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
