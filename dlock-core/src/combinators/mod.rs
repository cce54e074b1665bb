//! Backends made of backends: written once above the SPI, they work over any store.
//!
//! | combinator | what it is for |
//! |---|---|
//! | [`Namespaced`] | several applications in one store, without meeting |
//! | [`Sharded`] | more names or more load than one store takes |
//! | [`Quorum`] | one lock over several stores, of which a minority may fail |

mod diagnosis;
mod multi;
mod namespaced;
mod quorum;
mod sharded;
mod shared_claims;

pub use multi::{MultiGuard, MultiLock};
pub use namespaced::Namespaced;
pub use quorum::Quorum;
pub use sharded::{Shard, Sharded};
