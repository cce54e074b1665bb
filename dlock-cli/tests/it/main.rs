//! The program itself, as a process, against real stores.

#![allow(missing_docs, clippy::unwrap_used)]

mod command;
mod doctor;
mod ended;
mod leads;
mod looks;
mod random;
mod site;
mod stores;
