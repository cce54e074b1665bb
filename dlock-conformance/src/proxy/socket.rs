//! A TCP or a unix socket, behind one interface.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
#[cfg(unix)]
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use super::address::ServerAddress;

/// A peer that reads nothing for that long is given up, so that no thread is left behind.
const STUCK: Duration = Duration::from_secs(2);

pub(super) enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

/// The same of either kind.
macro_rules! either {
    ($it:ident, $s:ident => $does:expr) => {
        match $it {
            Self::Tcp($s) => $does,
            #[cfg(unix)]
            Self::Unix($s) => $does,
        }
    };
}

impl Socket {
    pub(super) fn connect(to: &ServerAddress) -> io::Result<Self> {
        let socket = match to {
            ServerAddress::Tcp(address) => Self::Tcp(TcpStream::connect_timeout(address, STUCK)?),
            #[cfg(unix)]
            ServerAddress::Unix(path) => Self::Unix(UnixStream::connect(path)?),
        };
        socket.prepared()
    }

    fn prepared(self) -> io::Result<Self> {
        if let Self::Tcp(s) = &self {
            // A proxy that waits for more data would add a delay.
            s.set_nodelay(true)?;
        }
        let socket = &self;
        either!(socket, s => s.set_write_timeout(Some(STUCK))?);
        Ok(self)
    }

    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        either!(self, s => (&mut &*s).read(buffer))
    }

    pub(super) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        either!(self, s => (&mut &*s).write_all(bytes))
    }

    /// How long a read waits; `None` for ever.
    pub(super) fn set_patience(&self, limit: Option<Duration>) -> io::Result<()> {
        either!(self, s => s.set_read_timeout(limit))
    }

    /// Ends a direction, or both. It does not matter if the peer is already gone.
    pub(super) fn shut(&self, how: Shutdown) {
        let _ = either!(self, s => s.shutdown(how));
    }

    /// From now on, closing it sends a reset. Wakes its reader, and sends nothing yet.
    pub(super) fn will_reset(&self) {
        if let Self::Tcp(s) = self {
            let _ = rustix::net::sockopt::set_socket_linger(s, Some(Duration::ZERO));
        }
        self.shut(Shutdown::Read);
    }
}

pub(super) enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener),
}

impl Listener {
    /// Listens on a free port of this machine, of the same family.
    pub(super) fn beside(server: &ServerAddress) -> io::Result<(Self, ServerAddress)> {
        match server {
            ServerAddress::Tcp(address) => {
                let localhost = match address.is_ipv4() {
                    true => IpAddr::from(Ipv4Addr::LOCALHOST),
                    false => IpAddr::from(Ipv6Addr::LOCALHOST),
                };
                let listener = TcpListener::bind((localhost, 0))?;
                let own = ServerAddress::Tcp(listener.local_addr()?);
                Ok((Self::Tcp(listener), own))
            }
            #[cfg(unix)]
            ServerAddress::Unix(_) => {
                use std::sync::atomic::{AtomicU64, Ordering};
                static NEXT: AtomicU64 = AtomicU64::new(0);
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                let file = format!("dlock-proxy-{}-{number}.sock", std::process::id());
                let own = ServerAddress::Unix(std::env::temp_dir().join(file));
                Ok((Self::at(&own)?, own))
            }
        }
    }

    /// Listens there, where it has listened before.
    pub(super) fn at(own: &ServerAddress) -> io::Result<Self> {
        match own {
            ServerAddress::Tcp(address) => Ok(Self::Tcp(TcpListener::bind(address)?)),
            #[cfg(unix)]
            ServerAddress::Unix(path) => {
                remove(path);
                Ok(Self::Unix(UnixListener::bind(path)?))
            }
        }
    }

    pub(super) fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(l) => Socket::Tcp(l.accept()?.0),
            #[cfg(unix)]
            Self::Unix(l) => Socket::Unix(l.accept()?.0),
        }
        .prepared()
    }
}

/// A unix socket leaves its file behind.
#[cfg(unix)]
pub(super) fn remove(path: &std::path::Path) {
    let _ = std::fs::remove_file(path);
}
