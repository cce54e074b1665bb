//! The parts of the build with planted bugs: the bugs that are not diffs, the proof that each is caught, and
//! the pages about it. `scripts/matrix` builds it, in a copy of the workspace.

pub mod matrix;
mod page;
pub(crate) mod planted;

pub use self::page::page;
pub use crate::museum;
