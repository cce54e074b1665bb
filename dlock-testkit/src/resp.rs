//! As much of Redis's protocol as tests need to speak with a server.
//!
//! Not the driver that is tested: what it gets wrong must not be asked of it. And no dependency, so that any
//! test may include this.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take. A server that is stopped does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Nothing,
    Number(i64),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    /// Only inside of a list; alone it is an error of the call.
    Error(String),
}

impl Value {
    /// As text; a number too.
    pub fn text(&self) -> String {
        match self {
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Number(n) => n.to_string(),
            Self::Error(text) => text.clone(),
            Self::Nothing | Self::List(_) => String::new(),
        }
    }

    /// As a number; digits too.
    pub fn number(&self) -> io::Result<i64> {
        match self {
            Self::Number(n) => Ok(*n),
            other => other.text().parse().map_err(|_| strange("a number")),
        }
    }

    /// As a list; nothing is an empty one.
    pub fn list(self) -> io::Result<Vec<Value>> {
        match self {
            Self::List(values) => Ok(values),
            Self::Nothing => Ok(Vec::new()),
            _ => Err(strange("a list")),
        }
    }
}

fn strange(wanted: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the server's answer is not {wanted}"),
    )
}

/// The value of a `name:value` line of INFO and its like.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut values = text.lines().filter_map(|line| line.split_once(':'));
    values
        .find(|(n, _)| *n == name)
        .map(|(_, value)| value.trim_end())
}

/// A connection to a server, without TLS.
#[derive(Debug)]
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// The other end: of a client that a test plays the server for. Its commands come as
    /// [`answer`](Self::answer)s.
    pub fn accepted(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends that as it is.
    pub fn tell(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    /// Sends a command, and waits for its answer.
    ///
    /// # Errors
    /// Those of the connection; what the server says, in its words, where it refuses.
    pub fn ask<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Value> {
        let mut command = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            let word = word.as_ref();
            command.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            command.extend_from_slice(word);
            command.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&command)?;
        match self.answer()? {
            Value::Error(text) => Err(io::Error::other(text)),
            value => Ok(value),
        }
    }

    /// Waits for the next answer: of a subscription, say.
    pub fn answer(&mut self) -> io::Result<Value> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line)?;
        let line = line.strip_suffix(b"\r\n").ok_or_else(|| {
            io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")
        })?;
        let (kind, rest) = line.split_first().ok_or_else(|| strange("of the protocol"))?;
        let rest = String::from_utf8_lossy(rest).into_owned();
        let number = || rest.parse::<i64>().map_err(|_| strange("of the protocol"));
        match kind {
            b'+' => Ok(Value::Bytes(rest.into_bytes())),
            b'-' => Ok(Value::Error(rest)),
            b':' => Ok(Value::Number(number()?)),
            b'$' => {
                let Ok(length) = usize::try_from(number()?) else {
                    return Ok(Value::Nothing);
                };
                let mut bytes = vec![0; length + 2];
                self.0.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(Value::Bytes(bytes))
            }
            b'*' => match number()? {
                length if length < 0 => Ok(Value::Nothing),
                length => (0..length)
                    .map(|_| self.answer())
                    .collect::<io::Result<_>>()
                    .map(Value::List),
            },
            _ => Err(strange("of the protocol")),
        }
    }
}
