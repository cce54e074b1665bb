//! Completions and manual pages, generated from the definition of the command line.

use std::fs;
use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Args;
use crate::failure::Failure;

pub(crate) fn completions(shell: Shell) -> Result<u8, Failure> {
    clap_complete::generate(shell, &mut Args::command(), "dlock", &mut std::io::stdout());
    Ok(0)
}

pub(crate) fn man(folder: &Path) -> Result<u8, Failure> {
    let cannot = |e| Failure::usage(format!("cannot write to {}: {e}", folder.display()));
    fs::create_dir_all(folder).map_err(cannot)?;
    clap_mangen::generate_to(Args::command(), folder).map_err(cannot)?;
    println!("wrote the manual pages to {}", folder.display());
    Ok(0)
}
