//! Which file the path leads to.
//!
//! A connection keeps the file that it has opened, whatever becomes of its name. If somebody removes or replaces the file, those
//! who had it open and those who open the path afterwards would each have a file of their own and exclude one another no more,
//! for as long as they run. So each change looks whether the path still leads to the file that is open.

use std::fs::Metadata;
use std::path::Path;

/// One file of this machine, whatever it is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The file at that path; `None` if there is none, or if that cannot be told.
    pub(super) fn at(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().as_ref().and_then(Self::of)
    }

    #[cfg(unix)]
    fn of(file: &Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        Some(Self {
            device: file.dev(),
            inode: file.ino(),
        })
    }

    #[cfg(not(unix))]
    fn of(_: &Metadata) -> Option<Self> {
        None
    }

    /// Whether that path surely does not lead to this file any more. What cannot be asked is no proof.
    pub(super) fn has_left(self, path: &Path) -> bool {
        match std::fs::metadata(path) {
            Ok(file) => Self::of(&file).is_some_and(|now| now != self),
            Err(e) => e.kind() == std::io::ErrorKind::NotFound,
        }
    }
}
