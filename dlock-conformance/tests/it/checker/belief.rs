//! What the holders believed.

use dlock_conformance::Skew;
use dlock_conformance::checker::belief::check;

use super::*;

const SKEW: Skew = Skew {
    ppm: 0,
    fixed: Duration::from_millis(5),
};

#[test]
fn beliefs_may_touch_within_the_skew_and_no_more() {
    let good = [
        "0-10 A acquire a ttl=100
         10 A believe a ttl=90
         50-100 B acquire b ttl=100
         100 B believe b ttl=90",
        "0-10 A acquire a ttl=100
         10 A believe a ttl=90
         20-30 A release a
         25-30 B acquire b ttl=100",
        "0-10 A acquire a ttl=100
         10 A believe a ttl=90
         50 A lost a
         55-60 B acquire b ttl=100",
        "0-10 A acquire a ttl=100
         10 A believe a ttl=90
         50 A drop a
         55-60 B acquire b ttl=100",
        "0-10 A acquire a ttl=100 mode=reader
         10 A believe a ttl=90
         15-20 B acquire b ttl=100 mode=reader
         20 B believe b ttl=90",
        // B's process was stopped before it could say that it had been granted first.
        "0-50 A acquire a ttl=100
         50 A believe a ttl=90
         5-90 B acquire b ttl=30
         90 B believe b ttl=0",
        // Two permits of two; the third is granted when the first is over but for the skew.
        "0-10 A acquire a ttl=100 mode=2
         10 A believe a ttl=90
         10-20 B acquire b ttl=200 mode=2
         20 B believe b ttl=180
         50-96 C acquire c ttl=100 mode=2",
        // In the very moment from which on the skew explains it.
        "0-10 A acquire a ttl=100
         10 A believe a ttl=90
         50-95 B acquire b ttl=100",
        "0-10 A acquire a ttl=100 mode=2
         10 A believe a ttl=90
         10-20 B acquire b ttl=200 mode=2
         20 B believe b ttl=180
         50-95 C acquire c ttl=100 mode=2",
    ];
    let bad = [
        "0-10 A acquire a ttl=100
         10 A believe a ttl=90
         50-90 B acquire b ttl=100",
        "0-10 A acquire a ttl=100
         80 A believe a ttl=90
         50-120 B acquire b ttl=100",
        "0-10 A acquire a ttl=100 mode=reader
         10 A believe a ttl=90
         50-90 B acquire b ttl=100",
        "0-10 A acquire a ttl=100
         10 A believe a ttl=90
         50-90 B acquire b ttl=100 mode=reader",
        "0-10 A acquire a ttl=100
         10 A believe a ttl=90
         50-90 B acquire b ttl=100
         97-99 A release a",
        "0-10 A acquire a ttl=100 mode=2
         10 A believe a ttl=90
         10-20 B acquire b ttl=200 mode=2
         20 B believe b ttl=180
         50-90 C acquire c ttl=100 mode=2",
    ];
    let skew = Skew {
        ppm: 0,
        fixed: Duration::from_nanos(5),
    };
    for text in good {
        assert_eq!(check(&history(text), skew), Judgement::Legal, "{text}");
    }
    for text in bad {
        assert!(is_illegal(&check(&history(text), skew)), "{text}");
    }
}

#[test]
fn a_wrong_belief_names_its_end_and_the_other_grant() {
    let cases: [(&str, &str, &[u64]); 5] = [
        (
            "0-10  A acquire a ttl=100
             10    A believe a ttl=90
             50-80 B acquire b ttl=100",
            "`x`: operation 1 (lane 1) believed that it held it until 100.000 ms, but operation 3 (lane 2) \
                was granted by 80.000 ms: 20.000 ms earlier",
            &[1, 3],
        ),
        (
            "0-10  A acquire a ttl=100 mode=2
             10    A believe a ttl=90
             10-20 B acquire b ttl=200 mode=2
             20    B believe b ttl=180
             50-80 C acquire c ttl=100 mode=2",
            "`x`: operation 5 (lane 3) was granted by 80.000 ms, when 2 others still believed that they held \
                it and 2 holders are allowed",
            &[1, 3, 5],
        ),
        // Of those that are in the way the one that believes longest.
        (
            "0-10  A acquire a ttl=200 mode=reader
             10    A believe a ttl=190
             10-20 B acquire b ttl=100 mode=reader
             20    B believe b ttl=80
             50-80 C acquire c ttl=100",
            "`x`: operation 1 (lane 1) believed that it held it until 200.000 ms, but operation 5 (lane 3) \
                was granted by 80.000 ms: 120.000 ms earlier",
            &[1, 5],
        ),
        (
            "0-10  A acquire a ttl=100 mode=reader
             10    A believe a ttl=90
             10-20 B acquire b ttl=200 mode=reader
             20    B believe b ttl=180
             50-80 C acquire c ttl=100",
            "`x`: operation 3 (lane 2) believed that it held it until 200.000 ms, but operation 5 (lane 3) \
                was granted by 80.000 ms: 120.000 ms earlier",
            &[3, 5],
        ),
        // Of two that believe equally long the first.
        (
            "0-10  A acquire a ttl=100 mode=reader
             10    A believe a ttl=90
             10-20 B acquire b ttl=100 mode=reader
             20    B believe b ttl=80
             50-80 C acquire c ttl=100",
            "`x`: operation 1 (lane 1) believed that it held it until 100.000 ms, but operation 5 (lane 3) \
                was granted by 80.000 ms: 20.000 ms earlier",
            &[1, 5],
        ),
    ];
    for (text, sentence, operations) in cases {
        let judgement = check(&in_millis(text), SKEW);
        assert_eq!(explained(&judgement), (sentence.to_owned(), operations.to_vec()));
    }
}
