//! Prints the files that are generated from the declarations of the rules: `cargo run -p dlock-conformance
//! --example rules > dlock-conformance/RULES.json`, and with the argument `page`: `cargo run -p
//! dlock-conformance --example rules -- page > docs/rules.md`.

use std::io::{self, Write};

fn main() -> io::Result<()> {
    let text = match std::env::args().nth(1).as_deref() {
        Some("page") => dlock_conformance::rules_page(),
        _ => dlock_conformance::rules_json(),
    };
    io::stdout().write_all(text.as_bytes())
}
