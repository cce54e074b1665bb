//! Prints `RULES.json`: `cargo run -p dlock-conformance --example rules > dlock-conformance/RULES.json`.

use std::io::{self, Write};

fn main() -> io::Result<()> {
    io::stdout().write_all(dlock_conformance::rules_json().as_bytes())
}
