//! Free ports that stay one's own.
//!
//! The usual way, to bind port 0 and release it again, sometimes gives the same port to two programs; and
//! while a server is down for a restart, any outgoing connection of the machine may take it. So ports are
//! taken from below those that the kernel gives to connections; and the owner of port P also listens on
//! 127.0.0.2:P, where no server does: a lock on P that all test programs of the machine see, and that ends
//! with the process.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// Above those that servers have by custom.
const FIRST: u16 = 10_000;
/// Below those that the kernel gives away unless it is told otherwise.
const LAST: u16 = 32_000;

const CLAIMS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A port of 127.0.0.1 that no other test program takes while this lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: TcpListener,
}

impl Port {
    /// One on which nobody listens.
    ///
    /// # Errors
    /// If there is none, which no machine should come to.
    pub fn free() -> io::Result<Self> {
        let width = LAST - FIRST;
        // Not all programs from the same end.
        let from = u16::try_from(RandomState::new().build_hasher().finish() % u64::from(width)).unwrap_or(0);
        for n in 0..width {
            let number = FIRST + (from + n) % width;
            let Ok(claim) = TcpListener::bind((CLAIMS, number)) else {
                continue;
            };
            // Somebody who knows nothing of claims may be there.
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self {
                    number,
                    _claim: claim,
                });
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!("no port between {FIRST} and {LAST} is free"),
        ))
    }

    pub fn number(&self) -> u16 {
        self.number
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}
