//! A TCP proxy in this process that delays, drops, keeps and cuts: access P of the catalogue.
//!
//! ```text
//! client ── listener ──┬─ Lane ToServer: reader → queue → writer ──┬── server
//!                      └─ Lane ToClient: writer ← queue ← reader ──┘
//! ```
//!
//! It uses threads and blocking sockets of `std`, two threads per direction, so it needs no runtime and does
//! not disturb the one under test. It never parses bytes: a *piece* is the data of one read, and a *turn*
//! begins when the direction changes. TLS passes through.
//!
//! It cannot drop a packet so that TCP repeats it, nor silently refuse a handshake: a black hole accepts
//! connections, and they stay silent. Unix sockets have no reset: there [`Cut::Reset`](crate::network::Cut)
//! is what the kernel does for a closed socket.

mod address;
mod connection;
mod faults;
mod lane;
mod listener;
mod network;
mod socket;

pub use address::ServerAddress;
pub use network::ProxyNetwork;
