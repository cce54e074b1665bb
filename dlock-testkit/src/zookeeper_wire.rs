//! As much of ZooKeeper's protocol as tests need to speak with a server.
//!
//! Not the driver that is tested: what it gets wrong must not be asked of it. And no dependency, so that any
//! test may include this.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::zookeeper_options::SUPER;

/// How long an answer may take. A server that is stopped does not answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// A session that has moved on again in that very moment is not answered any more. Nor is one of two
/// connections that take over a session at one follower at once: it keeps the later one in mind.
const HASTE: Duration = Duration::from_millis(500);

/// Of a session that is closed when its work is done; if that does not come to it, it runs out.
const SESSION: i32 = 10_000;

/// What an operation is called on the wire.
const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET: i32 = 4;
const SET: i32 = 5;
const CHILDREN: i32 = 8;
const CREATE_CONTAINER: i32 = 19;
const AUTH: i32 = 100;
const CLOSE: i32 = -11;

/// Every right to a node.
const ALL: i32 = 31;

/// Replies that are answers and no failures.
const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;
const NOT_EMPTY: i32 = -111;

/// What is known of a node beside its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The transaction that made it.
    pub czxid: i64,
    /// When that was by the server's wall clock, since 1970.
    pub ctime: Duration,
    pub version: i32,
    /// The session with which it goes; 0 if it stays, and a negative number if it is a container.
    pub owner: i64,
    pub children: i32,
}

/// The answer to one of the four letter words.
///
/// # Errors
/// Those of the socket; a server that is down refuses, and one that has just begun may never answer.
pub(crate) fn four_letters(at: SocketAddr, word: &str, patience: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&at, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(word.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// The password of a session, as the server makes it: by Java's random numbers from a seed that its source
/// tells.
///
/// So a client that knows the number of a session can take it over. The tests end sessions this way, as an
/// operator would.
pub fn password(session: i64) -> [u8; 16] {
    const FACTOR: u64 = 0x5_DEEC_E66D;
    const MASK: u64 = (1 << 48) - 1;
    let seed = (session ^ 0xB341_5C00_i64).cast_unsigned();
    let mut state = (seed ^ FACTOR) & MASK;
    let mut bytes = [0; 16];
    for four in bytes.chunks_exact_mut(4) {
        state = state.wrapping_mul(FACTOR).wrapping_add(0xB) & MASK;
        let next = ((state >> 16) & 0xFFFF_FFFF) as u32;
        four.copy_from_slice(&next.to_le_bytes());
    }
    bytes
}

/// A session of a user that no ACL restricts. Only its own requests keep it alive.
#[derive(Debug)]
pub struct ZkSession {
    stream: TcpStream,
    number: i64,
    next: i32,
}

impl ZkSession {
    /// A new one.
    ///
    /// # Errors
    /// Those of the socket; and if the server, in an ensemble without a leader say, begins none.
    pub fn open(at: SocketAddr) -> io::Result<Self> {
        let mut session = Self::connect(at, 0, [0; 16], PATIENCE)?;
        let mut body = 0_i32.to_be_bytes().to_vec();
        put(&mut body, b"digest");
        put(&mut body, SUPER.as_bytes());
        session.ask(-4, AUTH, &body)?.map_err(refused)?;
        Ok(session)
    }

    /// One that somebody else has begun: as that one is moved, say, from one server to another.
    ///
    /// # Errors
    /// As [`open`](Self::open); and if there is no such session.
    pub fn take_over(at: SocketAddr, number: i64) -> io::Result<Self> {
        Self::connect(at, number, password(number), PATIENCE)
    }

    /// Ends one that somebody else has begun.
    ///
    /// Its client comes back as soon as it has lost its connection to us, and takes it over again: then this
    /// is repeated, until the server has closed the session or does not know it any more.
    ///
    /// # Errors
    /// Those of the socket; and if there was no such session.
    pub fn end(at: SocketAddr, number: i64) -> io::Result<()> {
        const TRIES: u32 = 100;
        let mut last = None;
        for n in 0..TRIES {
            match Self::connect(at, number, password(number), HASTE).and_then(Self::close) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    return if n == 0 { Err(e) } else { Ok(()) };
                }
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::UnexpectedEof
                            | io::ErrorKind::ConnectionReset
                            | io::ErrorKind::WouldBlock
                            | io::ErrorKind::TimedOut
                    ) =>
                {
                    last = Some(e);
                }
                done => return done,
            }
        }
        Err(last.unwrap_or_else(strange))
    }

    fn connect(at: SocketAddr, number: i64, password: [u8; 16], patience: Duration) -> io::Result<Self> {
        let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut body = 0_i32.to_be_bytes().to_vec();
        body.extend_from_slice(&0_i64.to_be_bytes());
        body.extend_from_slice(&SESSION.to_be_bytes());
        body.extend_from_slice(&number.to_be_bytes());
        put(&mut body, &password);
        body.push(0);
        send(&mut stream, &body)?;
        let answer = receive(&mut stream)?;
        let mut answer = Reader(&answer);
        let (_, limit, given) = (answer.int()?, answer.int()?, answer.long()?);
        if limit <= 0 || given == 0 {
            let unknown = "the server does not know that session";
            return Err(io::Error::new(io::ErrorKind::NotFound, unknown));
        }
        Ok(Self {
            stream,
            number: given,
            next: 1,
        })
    }

    pub fn number(&self) -> i64 {
        self.number
    }

    fn ask(&mut self, number: i32, what: i32, body: &[u8]) -> io::Result<Result<Vec<u8>, i32>> {
        let mut request = number.to_be_bytes().to_vec();
        request.extend_from_slice(&what.to_be_bytes());
        request.extend_from_slice(body);
        send(&mut self.stream, &request)?;
        let answer = receive(&mut self.stream)?;
        let mut answer = Reader(&answer);
        let (_, _, failure) = (answer.int()?, answer.long()?, answer.int()?);
        match failure {
            0 => Ok(Ok(answer.0.to_vec())),
            NO_NODE | NODE_EXISTS | NOT_EMPTY => Ok(Err(failure)),
            other => Err(refused(other)),
        }
    }

    fn request(&mut self, what: i32, body: &[u8]) -> io::Result<Result<Vec<u8>, i32>> {
        let number = self.next;
        self.next += 1;
        self.ask(number, what, body)
    }

    /// Makes a node that stays, whose parent is there, and which everybody may do everything to; or says that
    /// it is there already.
    pub fn create(&mut self, path: &str, data: &[u8]) -> io::Result<bool> {
        self.make((CREATE, 0), path, data, ALL)
    }

    /// Makes an empty node to which nobody but such a session as this has more than these rights: 1 to read,
    /// 2 to write, 4 to create, 8 to delete, and 16 to change them.
    pub fn create_with(&mut self, path: &str, rights: i32) -> io::Result<bool> {
        self.make((CREATE, 0), path, b"", rights)
    }

    /// Makes a container, which goes when it has had children and has none.
    pub fn create_container(&mut self, path: &str) -> io::Result<bool> {
        self.make((CREATE_CONTAINER, 4), path, b"", ALL)
    }

    fn make(&mut self, (how, kind): (i32, i32), path: &str, data: &[u8], rights: i32) -> io::Result<bool> {
        let mut body = text(path);
        put(&mut body, data);
        body.extend_from_slice(&1_i32.to_be_bytes());
        body.extend_from_slice(&rights.to_be_bytes());
        put(&mut body, b"world");
        put(&mut body, b"anyone");
        body.extend_from_slice(&kind.to_be_bytes());
        match self.request(how, &body)? {
            Ok(_) => Ok(true),
            Err(NODE_EXISTS) => Ok(false),
            Err(_) => Err(io::Error::other(format!("{path} has no parent"))),
        }
    }

    /// Removes a node; whether there was one.
    ///
    /// # Errors
    /// If it has children.
    pub fn delete(&mut self, path: &str) -> io::Result<bool> {
        let mut body = text(path);
        body.extend_from_slice(&(-1_i32).to_be_bytes());
        match self.request(DELETE, &body)? {
            Ok(_) => Ok(true),
            Err(NO_NODE) => Ok(false),
            Err(_) => Err(io::Error::other(format!("{path} has children"))),
        }
    }

    /// Removes a node and all below it, as far as others do not make new ones; whether there was one.
    pub fn delete_all(&mut self, path: &str) -> io::Result<bool> {
        for child in self.children(path)?.unwrap_or_default() {
            self.delete_all(&below(path, &child))?;
        }
        self.delete(path)
    }

    /// The data of a node, if there is one.
    pub fn get(&mut self, path: &str) -> io::Result<Option<Vec<u8>>> {
        let answer = self.request(GET, &[text(path), vec![0]].concat())?;
        answer.ok().map(|a| Reader(&a).bytes()).transpose()
    }

    /// Writes the data of a node; whether there is one.
    pub fn set(&mut self, path: &str, data: &[u8]) -> io::Result<bool> {
        let mut body = text(path);
        put(&mut body, data);
        body.extend_from_slice(&(-1_i32).to_be_bytes());
        Ok(self.request(SET, &body)?.is_ok())
    }

    /// What is known of a node, if there is one.
    pub fn stat(&mut self, path: &str) -> io::Result<Option<Stat>> {
        let answer = self.request(EXISTS, &[text(path), vec![0]].concat())?;
        answer.ok().map(|a| Reader(&a).stat()).transpose()
    }

    /// The names of the nodes right below one, in order, if there is such a node.
    pub fn children(&mut self, path: &str) -> io::Result<Option<Vec<String>>> {
        let answer = self.request(CHILDREN, &[text(path), vec![0]].concat())?;
        let Ok(answer) = answer else { return Ok(None) };
        let mut answer = Reader(&answer);
        let count = answer.int()?;
        let name = |_| Ok(String::from_utf8_lossy(&answer.bytes()?).into_owned());
        let mut names = (0..count).map(name).collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(Some(names))
    }

    /// The paths of all nodes below one, and its own; none if there is no such node. Those that come and go
    /// meanwhile are there or not.
    pub fn all(&mut self, path: &str) -> io::Result<Vec<String>> {
        let Some(children) = self.children(path)? else {
            return Ok(Vec::new());
        };
        let mut all = vec![path.to_owned()];
        for child in children {
            all.extend(self.all(&below(path, &child))?);
        }
        Ok(all)
    }

    /// Ends the session, and waits until the server has: its nodes are gone then.
    pub fn close(mut self) -> io::Result<()> {
        self.request(CLOSE, &[])?.map(drop).map_err(refused)
    }
}

fn refused(number: i32) -> io::Error {
    io::Error::other(format!("the server's answer is error {number}"))
}

fn below(path: &str, child: &str) -> String {
    format!("{}/{child}", path.trim_end_matches('/'))
}

fn put(to: &mut Vec<u8>, bytes: &[u8]) {
    let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
    to.extend_from_slice(&length.to_be_bytes());
    to.extend_from_slice(bytes);
}

fn text(path: &str) -> Vec<u8> {
    let mut body = Vec::new();
    put(&mut body, path.as_bytes());
    body
}

fn send(stream: &mut TcpStream, body: &[u8]) -> io::Result<()> {
    let mut frame = Vec::new();
    put(&mut frame, body);
    stream.write_all(&frame)
}

fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = usize::try_from(i32::from_be_bytes(length)).map_err(|_| strange())?;
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}

fn strange() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the server's answer is not of the protocol",
    )
}

/// What is left of an answer.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or_else(strange)?;
        self.0 = rest;
        Ok(*first)
    }

    fn int(&mut self) -> io::Result<i32> {
        self.take().map(i32::from_be_bytes)
    }

    fn long(&mut self) -> io::Result<i64> {
        self.take().map(i64::from_be_bytes)
    }

    fn bytes(&mut self) -> io::Result<Vec<u8>> {
        let length = usize::try_from(self.int()?).unwrap_or(0);
        let (first, rest) = self.0.split_at_checked(length).ok_or_else(strange)?;
        self.0 = rest;
        Ok(first.to_vec())
    }

    fn stat(&mut self) -> io::Result<Stat> {
        let (czxid, _mzxid, ctime, _mtime) = (self.long()?, self.long()?, self.long()?, self.long()?);
        let (version, _cversion, _aversion) = (self.int()?, self.int()?, self.int()?);
        let (owner, _length, children) = (self.long()?, self.int()?, self.int()?);
        Ok(Stat {
            czxid,
            ctime: Duration::from_millis(u64::try_from(ctime).unwrap_or(0)),
            version,
            owner,
            children,
        })
    }
}
