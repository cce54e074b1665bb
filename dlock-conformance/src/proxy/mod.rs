//! A TCP proxy in this process that delays, loses, keeps and cuts: access P of the catalogue.
//!
//! ```text
//! client ── listener ──┬─ Lane ToServer: reader → queue → writer ──┬── server
//!                      └─ Lane ToClient: writer ← queue ← reader ──┘
//! ```
//!
//! Threads and blocking sockets of `std`, two threads a direction, so that it needs no runtime and stands
//! aside of the one under test. Bytes are never parsed: a *piece* is what one read gave, a *turn* begins when
//! the direction changes. TLS passes through.
//!
//! What it cannot do: lose a packet so that TCP repeats it, or refuse a handshake silently; a black hole
//! accepts connections, and they say nothing. Unix sockets know no reset: there
//! [`Cut::Reset`](crate::network::Cut) is what the kernel makes of a closed socket.

mod address;
mod connection;
mod faults;
mod lane;
mod listener;
mod network;
mod socket;

pub use address::ServerAddress;
pub use network::ProxyNetwork;
