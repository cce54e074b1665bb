//! What is generated is up to date.

#[test]
fn rules_json_is_up_to_date() {
    let stored = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/RULES.json")).unwrap();
    assert!(
        stored == dlock_conformance::rules_json(),
        "RULES.json is stale: run `cargo run -p dlock-conformance --example rules > dlock-conformance/RULES.json`"
    );
}
