//! Servers that are too old. None can be had where these tests run, so this speaks as they do, as far as they
//! are asked: it knows no command of locks.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use dlock_core::ErrorKind;

use crate::{config, here};

/// What an old server answers to `HELLO 3`.
#[derive(Clone, Copy)]
enum Old {
    /// Of before 6.0: it does not know the word.
    Without,
    /// It names its version.
    Says(&'static str),
}

/// Listens until the program ends.
fn server(old: Old) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream, old, address.port()));
        }
    });
    address
}

fn serve(stream: TcpStream, old: Old, port: u16) -> Option<()> {
    let mut out = stream.try_clone().ok()?;
    let mut input = BufReader::new(stream);
    loop {
        let words = command(&mut input)?;
        let first = words.first()?.to_ascii_uppercase();
        let answer = match (first.as_str(), old) {
            ("HELLO", Old::Says(version)) => hello(version),
            // All slots are its own.
            ("CLUSTER", Old::Says(_)) => {
                format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$4\r\nself\r\n")
            }
            ("PING", _) => "+PONG\r\n".to_owned(),
            _ => format!("-ERR unknown command `{first}`, with args beginning with: \r\n"),
        };
        out.write_all(answer.as_bytes()).ok()?;
    }
}

fn hello(version: &str) -> String {
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let pairs = [
        ("server", "redis"),
        ("version", version),
        ("mode", "standalone"),
        ("role", "master"),
    ];
    let pairs: String = pairs
        .iter()
        .map(|(name, value)| bulk(name) + &bulk(value))
        .collect();
    format!("%5\r\n{pairs}{}:3\r\n", bulk("proto"))
}

fn command(input: &mut impl BufReadExact) -> Option<Vec<String>> {
    let count = input.number(b'*')?;
    (0..count).map(|_| input.bulk()).collect()
}

trait BufReadExact {
    fn number(&mut self, kind: u8) -> Option<usize>;
    fn bulk(&mut self) -> Option<String>;
}

impl BufReadExact for BufReader<TcpStream> {
    fn number(&mut self, kind: u8) -> Option<usize> {
        let mut line = Vec::new();
        self.read_until(b'\n', &mut line).ok()?;
        let digits = line.strip_prefix(&[kind])?.strip_suffix(b"\r\n")?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    fn bulk(&mut self) -> Option<String> {
        let mut bytes = vec![0; self.number(b'$')? + 2];
        self.read_exact(&mut bytes).ok()?;
        bytes.truncate(bytes.len() - 2);
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[tokio::test]
async fn a_server_that_is_too_old_is_told_what_is_needed() {
    for (old, scheme, needs) in [
        (Old::Without, "redis", "6.2"),
        (Old::Says("6.0.16"), "redis", "6.2"),
        (Old::Says("5.9.103"), "redis", "6.2"),
        #[cfg(feature = "cluster")]
        (Old::Without, "redis+cluster", "too old"),
        #[cfg(feature = "cluster")]
        (Old::Says("6.2.14"), "redis+cluster", "7.0"),
    ] {
        let url = format!("{scheme}://{}", server(old));
        let from = Instant::now();
        let e = config(&url).connect(here()).await.expect_err(&url);
        assert!(
            from.elapsed() < Duration::from_secs(3),
            "{:?}: {e}",
            from.elapsed()
        );
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{url}: {e} {e:?}");
        assert!(e.to_string().contains(needs), "{e}");
    }
}

/// What the pretence is worth: the same with the oldest version that does is let in, and fails only where it
/// has to be a server.
#[tokio::test]
async fn one_that_is_not_too_old_is_not_refused_for_it() {
    let url = format!("redis://{}", server(Old::Says("6.2.0")));
    config(&url).connect(here()).await.unwrap();
}
