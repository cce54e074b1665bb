//! Every planted bug is caught by its own rule, and `MATRIX.md` says so truly.
//!
//! Only in a build with planted bugs: `RUSTFLAGS="--cfg dlock_saboteur" cargo test --release -p dlock-conformance --test saboteur`.
#![cfg(dlock_saboteur)]

use dlock_conformance::matrix::{Options, run};

#[test]
fn every_planted_bug_is_caught_and_the_recorded_matrix_is_fresh() {
    let matrix = run(&Options::default(), &|line| {
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{line}");
    });
    let text = matrix.markdown();
    assert!(matrix.is_sharp(), "{text}");
    let recorded =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/MATRIX.md")).unwrap_or_default();
    assert!(
        recorded == text,
        "MATRIX.md is stale: run `RUSTFLAGS=\"--cfg dlock_saboteur\" cargo run --release --target-dir target/saboteur -p dlock-conformance --example matrix -- --out dlock-conformance/MATRIX.md`"
    );
}
