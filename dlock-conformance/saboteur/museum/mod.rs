//! The museum: bugs that lock libraries and their users had in the field, each rebuilt as a planted bug with
//! the rule that catches it.
//!
//! Where a real bug's mechanism is that of a rule's own planted bug, the exhibit points at that one. Where
//! the real story has another mechanism or another trigger, the bug is planted a second time, as it was:
//! [`REBUILT`]. `MUSEUM.md` is written from this table and from what the matrix measured; a change of the kit
//! is done only while the whole museum is still caught.

mod day;
mod exhibit;
mod holders;
mod loss;
mod queues;
mod rebuilt;
mod stuck;
mod tokens;
mod waiting;

pub use self::day::Day;
pub use self::exhibit::{End, Exhibit, Hall};
pub use self::rebuilt::{Planted, REBUILT, WRAPPERS, of as rebuilt};
pub use self::waiting::{Absent, WAITING};

/// All of it, in the order of the page.
pub static HALLS: &[Hall] = &[holders::HALL, stuck::HALL, queues::HALL, loss::HALL, tokens::HALL];

/// Every exhibit.
pub fn exhibits() -> impl Iterator<Item = &'static Exhibit> {
    HALLS.iter().flat_map(|hall| hall.exhibits)
}
