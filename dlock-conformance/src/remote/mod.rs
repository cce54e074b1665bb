//! The reference backend behind a socket: the memory store as a server, and a driver for it.
//!
//! It is there for the kit's own tests. What the rules about networks ask of a driver can be read here in its
//! smallest form: a request that was not sent is `Unavailable`, one that was sent and not answered `Unknown`;
//! a connection that broke is made anew by the next call, and the engine is told of both; a grant counts from
//! before its request was sent.
//!
//! ```text
//! RemoteLock (client.rs) ── frames (frame.rs, codec.rs, values.rs) ── RemoteServer (server.rs) ── Memory
//! ```

mod client;
mod codec;
mod connection;
mod frame;
mod server;
mod values;

pub use client::RemoteLock;
pub use server::RemoteServer;
