//! A way to a server on which requests can be kept back, and arrive when their client has long gone: what
//! the network between two members, or a member that stood still, can do to one.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct Late {
    address: SocketAddr,
    ways: Arc<Mutex<Ways>>,
}

#[derive(Default)]
struct Ways {
    all: Vec<Way>,
}

struct Way {
    client: TcpStream,
    server: TcpStream,
    held: Option<Vec<u8>>,
}

impl Late {
    pub(crate) fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let late = Self {
            address: listener.local_addr().unwrap(),
            ways: Arc::default(),
        };
        let ways = late.ways.clone();
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let server = TcpStream::connect(server).unwrap();
                server.set_nodelay(true).unwrap();
                client.set_nodelay(true).unwrap();
                let copy = |stream: &TcpStream| stream.try_clone().unwrap();
                let (mut from, mut answers, mut back) = (copy(&client), copy(&server), copy(&client));
                let number = {
                    let mut ways = lock(&ways);
                    ways.all.push(Way {
                        client,
                        server,
                        held: None,
                    });
                    ways.all.len() - 1
                };
                // An end that is gone takes nothing; the server's answers are taken off it nevertheless.
                std::thread::spawn(move || {
                    let mut buffer = [0; 16_384];
                    while let Ok(length @ 1..) = answers.read(&mut buffer) {
                        let _ = back.write_all(&buffer[..length]);
                    }
                });
                let ways = ways.clone();
                std::thread::spawn(move || {
                    let mut buffer = [0; 16_384];
                    while let Ok(length @ 1..) = from.read(&mut buffer) {
                        let way = &mut lock(&ways).all[number];
                        match &mut way.held {
                            Some(held) => held.extend_from_slice(&buffer[..length]),
                            None => drop(way.server.write_all(&buffer[..length])),
                        }
                    }
                });
            }
        });
        late
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on what is sent on the ways that there are is kept back.
    pub(crate) fn hold(&self) {
        let mut ways = lock(&self.ways);
        for way in &mut ways.all {
            way.held.get_or_insert_default();
        }
    }

    /// Whether that text is among what is kept back.
    pub(crate) fn holds(&self, text: &str) -> bool {
        let ways = lock(&self.ways);
        let held = ways.all.iter().filter_map(|way| way.held.as_ref());
        held.into_iter()
            .any(|held| held.windows(text.len()).any(|part| part == text.as_bytes()))
    }

    /// Ends those ways for their clients. The server does not hear of it.
    pub(crate) fn leave(&self) {
        let ways = lock(&self.ways);
        for way in ways.all.iter().filter(|way| way.held.is_some()) {
            let _ = way.client.shutdown(Shutdown::Both);
        }
    }

    /// Has the server say, on the ways that there are, that it takes no more requests there: as a proxy does
    /// when a connection is old. What was asked before goes on. (It has to be silent meanwhile.)
    pub(crate) fn go_away(&self) {
        // A frame of 8 bytes: type 7 of no stream, the last stream that there can be, no error.
        const FRAME: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0];
        for way in &mut lock(&self.ways).all {
            way.client.write_all(&FRAME).unwrap();
        }
    }

    /// How many ways there were.
    pub(crate) fn count(&self) -> usize {
        lock(&self.ways).all.len()
    }

    /// What was kept back arrives now.
    pub(crate) fn deliver(&self) {
        for way in &mut lock(&self.ways).all {
            if let Some(held) = way.held.take() {
                way.server.write_all(&held).unwrap();
            }
        }
    }
}

fn lock(ways: &Mutex<Ways>) -> MutexGuard<'_, Ways> {
    ways.lock().unwrap_or_else(PoisonError::into_inner)
}
