//! Recipes to copy, one a file. `docs/recipes.md` explains them, and the tests of this package run them.
#![allow(clippy::print_stderr)] // a program of yours has a logger

pub mod backend;
pub mod failure;
pub mod leader;
pub mod once;
pub mod row;
pub mod shop;
pub mod shutdown;
