use std::fmt;
use std::net::SocketAddr;
#[cfg(unix)]
use std::path::{Path, PathBuf};

/// The address of a server, or of the kit's proxy in its place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerAddress {
    /// A TCP socket.
    Tcp(SocketAddr),
    /// A unix socket.
    #[cfg(unix)]
    Unix(PathBuf),
}

impl ServerAddress {
    /// The address, if it is one of TCP.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            #[cfg(unix)]
            Self::Unix(_) => None,
        }
    }

    /// The path, if it is one of a unix socket.
    #[cfg(unix)]
    pub fn unix(&self) -> Option<&Path> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(path) => Some(path),
        }
    }
}

impl From<SocketAddr> for ServerAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

/// As it stands in a URL.
impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            #[cfg(unix)]
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}
