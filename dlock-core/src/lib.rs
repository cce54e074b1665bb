//! The core of `dlock`: the lock API, the engine, the interface for backends, the combinators and the memory
//! backend.
//!
//! Programs use the package `dlock-rs`, whose library `dlock` re-exports all of this, as the examples here
//! show.

pub mod blocking;
mod capabilities;
mod client;
pub mod combinators;
mod diagnosis;
mod election;
mod engine;
mod error;
mod events;
mod gate;
mod guard;
mod inspection;
mod limits;
mod lock;
pub mod memory;
mod mode;
mod name;
pub mod observe;
mod options;
mod reentrant;
mod request_id;
pub mod runtime;
mod rwlock;
#[cfg(feature = "sim")]
pub mod sim;
pub mod spi;
mod timestamp;
mod token;

pub use capabilities::{Capabilities, Capability, Nature};
pub use client::{Client, ClientBuilder};
pub use diagnosis::{Finding, Severity};
pub use election::{Election, Leadership};
pub use error::{Error, ErrorKind, LossReason, Result};
pub use events::{GuardEvent, GuardEvents};
pub use gate::{Access, Admission, FenceGate, FencedValue, Gate};
pub use guard::{Guard, Held, Permit, Upgrade};
pub use inspection::{Change, Holder, Inspection};
pub use lock::{Lock, Semaphore};
pub use memory::Memory;
pub use mode::{Mode, Permits, ReadWrite};
pub use name::LockName;
pub use options::{AutoRenew, Drift, LockOptions};
pub use reentrant::Owner;
pub use request_id::RequestId;
pub use runtime::Runtime;
pub use rwlock::RwLock;
pub use timestamp::Timestamp;
pub use token::{Strength, Token};

/// A client over a store in memory, for the examples in the documentation.
#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
#[doc(hidden)]
#[must_use]
pub fn doc_client() -> Client {
    let runtime = runtime::own_thread().expect("the documentation is built with a runtime");
    let store = Memory::new(runtime.clone());
    let client = Client::builder(store.connect(), runtime).build();
    client.expect("the memory backend keeps its claims")
}

/// Runs an example of the documentation.
#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
#[doc(hidden)]
pub fn doc<F: Future<Output = Result<()>>>(example: impl FnOnce(Client) -> F) {
    pollster::block_on(example(doc_client())).expect("an example works");
}
