//! Waiting for something that is looked for again and again.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Asks until the answer is yes, often at first and every 20 ms later.
///
/// # Errors
/// After `limit`, with what was waited for and the last error or answer.
pub fn until(what: &str, limit: Duration, mut is: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        let last = match is() {
            Ok(true) => return Ok(()),
            Ok(false) => "not so yet".to_owned(),
            Err(e) => e.to_string(),
        };
        if Instant::now() > end {
            let text = format!("not within {limit:?}: {what}; at last: {last}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
