//! Prints the page about the certificates in a directory anew: what stands before its table, and the table.
#![allow(clippy::print_stdout)] // that is what it is for

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "certificates".to_owned());
    let directory = Path::new(&directory);
    let page = std::fs::read_to_string(directory.join("README.md"))?;
    let head = page.split("| certificate |").next().unwrap_or_default();
    print!("{head}{}", dlock_conformance::certificates_table(directory)?);
    Ok(())
}
