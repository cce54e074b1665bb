//! Every planted bug is caught by its own rule, and `MATRIX.md` and `MUSEUM.md` say so truly.
//!
//! Only in a build with planted bugs: `RUSTFLAGS="--cfg dlock_saboteur" cargo test --release -p
//! dlock-conformance --test saboteur`.
#![cfg(dlock_saboteur)]

use dlock_conformance::matrix::{Options, run};
use dlock_conformance::museum;

#[test]
fn every_planted_bug_is_caught_and_the_recorded_matrix_is_fresh() {
    let matrix = run(&Options::default(), &|line| {
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{line}");
    });
    let text = matrix.markdown();
    assert!(matrix.is_sharp(), "{text}");
    let page = museum::page(&matrix).expect("every bug was run");
    let recorded = |file: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        std::fs::read_to_string(path).unwrap_or_default()
    };
    for (file, fresh) in [("MATRIX.md", text), ("MUSEUM.md", page)] {
        assert!(
            recorded(file) == fresh,
            "{file} is stale: run `RUSTFLAGS=\"--cfg dlock_saboteur\" cargo run --release --target-dir \
                target/saboteur -p dlock-conformance --example matrix -- --out dlock-conformance/MATRIX.md \
                --museum dlock-conformance/MUSEUM.md`"
        );
    }
}
