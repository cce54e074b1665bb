//! What only the build with planted bugs has: the bugs that are no diffs, the proof that each is caught, and
//! the pages that tell of it. `scripts/matrix` builds it, in a copy of the workspace.

pub mod matrix;
mod page;
pub(crate) mod planted;

pub use self::page::page;
pub use crate::museum;
