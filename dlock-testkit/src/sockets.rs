//! Whose socket it is, as the kernel knows.

use std::io;
use std::net::SocketAddrV4;
use std::path::PathBuf;

/// Whether that process has a TCP socket that listens at that address or has it as its own end.
pub(crate) fn has(process: u32, address: SocketAddrV4) -> io::Result<bool> {
    let ip = u32::from_ne_bytes(address.ip().octets());
    let own = format!("{ip:08X}:{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp")?;
    // Its own end is the second column, and its number the tenth. A busy machine has tens of thousands of
    // lines.
    let sockets: Vec<PathBuf> = table
        .lines()
        .filter(|line| line.contains(&own))
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|columns| columns.get(1) == Some(&own.as_str()))
        .filter_map(|columns| Some(format!("socket:[{}]", columns.get(9)?).into()))
        .collect();
    for file in std::fs::read_dir(format!("/proc/{process}/fd"))? {
        // One that was closed meanwhile is no file of it.
        if std::fs::read_link(file?.path()).is_ok_and(|to| sockets.contains(&to)) {
            return Ok(true);
        }
    }
    Ok(false)
}
