//! Asking a server for a page, without TLS.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The page that it has there.
///
/// # Errors
/// Those of the socket; and with what it says, if it answers anything but that all is well.
pub(crate) fn get(address: SocketAddr, path: &str, patience: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    // By 1.0 the answer comes in one piece, and the end of the connection is its end.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(io::Error::other(format!(
            "{path}: {} {body}",
            head.lines().next().unwrap_or_default()
        ))),
    }
}
