//! Planted bugs of processes: wrappers around a correct store, its runtime and its client in a simulated
//! process.
//!
//! The bugs that need one process are an `if` in the memory backend or in the engine. These show only between
//! processes, or when one is killed or stopped. So they are planted in the processes that the rules start,
//! and not in the clients beside them. A library whose tests never leave one process looks like that, and it
//! shows that the rules test the right thing.

mod clock;
mod guard;
mod store;

use std::sync::Arc;

use dlock_core::{Client, Memory, Result, Runtime, spi};

use crate::engine_subject::EngineSubject;
use crate::simulated_machine::Machine;
use crate::subject::Subject;

/// A client in that process, with that bug.
pub(crate) fn client(machine: &Arc<Machine>, store: Arc<dyn spi::Lock>) -> Result<Arc<dyn Subject>> {
    let runtime: Arc<dyn Runtime> = Arc::new(clock::Spoiled::new(machine));
    let store: Arc<dyn spi::Lock> = if crate::switch::on("process_local_lock") {
        Memory::new(Arc::clone(&runtime)).connect()
    } else if crate::switch::on("kill_leaks") || crate::switch::on("dead_head_blocks") {
        Arc::new(store::Spoiled::new(store))
    } else {
        store
    };
    let client = Client::builder(store, runtime).build()?;
    let subject = Arc::new(EngineSubject::new(client));
    Ok(
        if crate::switch::on("zombie_write_wins") || crate::switch::on("hair_trigger_loss") {
            Arc::new(guard::Spoiled::new(subject, Arc::clone(machine)))
        } else {
            subject
        },
    )
}
