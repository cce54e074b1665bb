//! The deterministic simulator: virtual time, seeded scheduling, and (through links) a faulty network.
//!
//! A [`Sim`] runs futures on one thread. Each simulated process has a [`SimRuntime`] of its own, which is a
//! [`Runtime`](crate::Runtime) like any other, so the engine that runs here is the engine that runs in
//! production. Whatever happens is a function of the seed: [`World::event_hash`] proves it by being the same
//! in two runs.

mod executor;
mod faults;
mod judge;
mod link;
mod nemesis;
mod node;
pub mod quorum;
mod rng;
pub mod scenario;
mod streams;
mod task;
mod trouble;
mod wire;
mod worker;
mod world;

#[cfg(test)]
mod tests;

pub use executor::Sim;
pub use faults::{FaultPlan, Partition};
pub use link::Link;
pub use node::SimRuntime;
pub use rng::SimRng;
pub use trouble::Trouble;
pub use world::World;
