//! The certificates of this repository.

use std::path::Path;

#[test]
fn certificates_are_accepted_and_their_page_is_fresh() {
    let directory = Path::new("../certificates");
    let mut said = Vec::new();
    let code = dlock_conformance::verify([directory], &mut said).unwrap();
    assert_eq!(code, 0, "{}", String::from_utf8_lossy(&said));
    let page = std::fs::read_to_string(directory.join("README.md")).unwrap();
    let table = dlock_conformance::certificates_table(directory).unwrap();
    assert!(
        page.ends_with(&table),
        "make it anew: cargo run -p dlock-conformance --example certificates"
    );
}
