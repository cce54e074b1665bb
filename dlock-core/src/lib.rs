//! The core of `dlock`.

mod capabilities;
pub mod combinators;
mod error;
pub mod memory;
mod mode;
mod name;
pub mod runtime;
#[doc(hidden)]
pub mod saboteur;
#[cfg(feature = "sim")]
pub mod sim;
pub mod spi;
mod timestamp;
mod token;

pub use capabilities::{Capabilities, Capability, Nature};
pub use error::{Error, ErrorKind, LossReason, Result};
pub use memory::Memory;
pub use mode::Mode;
pub use name::LockName;
pub use runtime::Runtime;
pub use timestamp::Timestamp;
pub use token::{Strength, Token};
