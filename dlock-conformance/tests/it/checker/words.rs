//! What a history is judged by, in words.

use dlock_conformance::checker::watch::Coalescing;

use super::*;

#[test]
fn each_check_says_what_it_looks_at() {
    let settle = Duration::from_millis(1);
    let coalescing = Coalescing::None;
    let cases = [
        (Check::Exclusion, "exclusion, tokens and belief"),
        (
            Check::Reentrant { depth: 3 },
            "re-entrant exclusion to a depth of 3",
        ),
        (Check::Queue { settle }, "the order of the queue"),
        (Check::Watch { coalescing, settle }, "what watchers saw"),
        (Check::Resource, "what a fenced resource accepted"),
    ];
    for (check, words) in cases {
        assert_eq!(check.to_string(), words);
    }
}
