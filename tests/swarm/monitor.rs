//! What the server does, in its own words: a connection with `MONITOR`, read by a thread.
//!
//! It is the one witness that is no part of what is tested. A script's line comes first, then those of the
//! commands that it runs; they are in the order in which they were carried out, with the server's clock.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{SystemTime, UNIX_EPOCH};

use dlock::Timestamp;

/// A command, and when it was carried out, on the machine's clock in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) at: u64,
    /// Whether a script ran it.
    pub(crate) inner: bool,
    pub(crate) words: Vec<Vec<u8>>,
}

impl Command {
    pub(crate) fn name(&self) -> &[u8] {
        self.word(0)
    }

    pub(crate) fn word(&self, n: usize) -> &[u8] {
        self.words.get(n).map_or(&[], Vec::as_slice)
    }

    /// A word that is a number.
    pub(crate) fn number(&self, n: usize) -> Option<f64> {
        std::str::from_utf8(self.word(n)).ok()?.parse().ok()
    }
}

/// The commands that say something of a lock; the others are passed over, as they are many.
const TELLING: [&[u8]; 6] = [b"EVALSHA", b"SET", b"DEL", b"PEXPIRE", b"ZADD", b"ZREM"];

/// Hears from here on, until the end of the server.
pub(crate) fn listen(address: SocketAddr, mut hear: impl FnMut(Command) + Send + 'static) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"MONITOR\r\n")?;
    let mut lines = BufReader::with_capacity(1 << 20, stream);
    let mut line = Vec::new();
    lines.read_until(b'\n', &mut line)?;
    if line != b"+OK\r\n" {
        let text = String::from_utf8_lossy(&line).into_owned();
        return Err(io::Error::other(format!("MONITOR was answered {text}")));
    }
    // The machine's clock that knows no steps beside the server's, which is this machine's wall clock.
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let behind = wall.as_nanos() as i128 - i128::from(Timestamp::now().as_nanos());
    std::thread::spawn(move || {
        loop {
            line.clear();
            match lines.read_until(b'\n', &mut line) {
                Ok(n) if n > 0 => {}
                _ => return,
            }
            if let Some(command) = read(&line, behind) {
                hear(command);
            }
        }
    });
    Ok(())
}

/// `+1700000000.123456 [0 127.0.0.1:1234] "GET" "a\x00b"`
fn read(line: &[u8], behind: i128) -> Option<Command> {
    let line = line.strip_prefix(b"+")?;
    let mut parts = line.splitn(2, |b| *b == b' ');
    let (seconds, micros) = std::str::from_utf8(parts.next()?).ok()?.split_once('.')?;
    let at = seconds.parse::<i128>().ok()? * 1_000_000_000 + micros.parse::<i128>().ok()? * 1000;
    let rest = parts.next()?;
    let words_at = rest.windows(3).position(|w| w == b"] \"")? + 2;
    let name = rest[words_at + 1..].split(|b| *b == b'"').next()?;
    if !TELLING.contains(&name) {
        return None;
    }
    Some(Command {
        at: u64::try_from(at - behind).ok()?,
        inner: rest[..words_at].windows(3).any(|w| w == b"lua"),
        words: words(&rest[words_at..]),
    })
}

/// Words in quotes, with Redis's escapes.
fn words(text: &[u8]) -> Vec<Vec<u8>> {
    let (mut words, mut word) = (Vec::new(), None::<Vec<u8>>);
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, &mut word) {
            (b'"', None) => word = Some(Vec::new()),
            (b'"', Some(_)) => words.extend(word.take()),
            (b'\\', Some(word)) => word.push(match bytes.next().unwrap_or_default() {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'a' => 7,
                b'b' => 8,
                b'x' => {
                    let mut digit = || {
                        (bytes.next().unwrap_or_default() as char)
                            .to_digit(16)
                            .unwrap_or(0)
                    };
                    u8::try_from(digit() * 16 + digit()).unwrap_or_default()
                }
                other => other,
            }),
            (byte, Some(word)) => word.push(byte),
            _ => {}
        }
    }
    words
}
