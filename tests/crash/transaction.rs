//! Whether a process sits in a write transaction: not by what others run into, but by the kernel's word.

use std::path::PathBuf;

/// The byte of the `-shm` file whose lock is the right to write, in SQLite's file format (WAL mode).
const WRITE_LOCK: u64 = 120;

/// A SQLite file, of which the kernel knows who writes.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) shared_memory: PathBuf,
}

impl File {
    /// Whether that process has the right to write; `None` where the system does not tell.
    pub(crate) fn is_written_by(&self, pid: u32) -> Option<bool> {
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        let inode = inode(&self.shared_memory)?;
        Some(locks.lines().any(|line| is_write_lock(line, pid, inode)))
    }
}

impl File {
    /// Everything that the kernel knows of locks on it.
    pub(crate) fn locks(&self) -> String {
        let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
        let file = inode(&self.shared_memory).map_or(String::new(), |inode| format!(":{inode} "));
        let of_it: Vec<&str> = locks.lines().filter(|line| line.contains(&file)).collect();
        of_it.join("; ")
    }
}

#[cfg(unix)]
fn inode(path: &std::path::Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;

    // Looked at, not opened: closing it would let go this process's own locks.
    Some(std::fs::metadata(path).ok()?.ino())
}

#[cfg(not(unix))]
fn inode(_: &std::path::Path) -> Option<u64> {
    None
}

/// `8: POSIX  ADVISORY  WRITE 18199 fe:00:10012708 120 120`; a waiter has an arrow after the number, and
/// holds nothing.
fn is_write_lock(line: &str, pid: u32, inode: u64) -> bool {
    let parts: Vec<&str> = line.split_whitespace().collect();
    let [_, "POSIX", _, "WRITE", holder, file, first, last] = parts[..] else {
        return false;
    };
    let covers = first.parse().is_ok_and(|first: u64| first <= WRITE_LOCK)
        && (last == "EOF" || last.parse().is_ok_and(|last: u64| last >= WRITE_LOCK));
    covers && holder.parse() == Ok(pid) && file.rsplit(':').next().is_some_and(|n| n.parse() == Ok(inode))
}
