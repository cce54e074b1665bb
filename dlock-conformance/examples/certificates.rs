//! Writes the page about the certificates in a directory again: the text before its table, and the table.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "certificates".to_owned());
    let directory = Path::new(&directory);
    let path = directory.join("README.md");
    let page = std::fs::read_to_string(&path)?;
    let head = page.split("| certificate |").next().unwrap_or_default();
    let table = dlock_conformance::certificates_table(directory)?;
    std::fs::write(path, format!("{head}{table}"))?;
    Ok(())
}
