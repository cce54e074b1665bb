//! What the holders believed.

use super::*;
use crate::history::fixture::history;

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
        // Two permits of two; the third is granted when the first is over but for the skew.
        "0-10 A acquire a ttl=100 mode=2
         10 A believe a ttl=90
         10-20 B acquire b ttl=200 mode=2
         20 B believe b ttl=180
         50-96 C acquire c ttl=100 mode=2",
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
        assert_eq!(
            crate::checker::belief::check(&history(text), skew),
            Judgement::Legal,
            "{text}"
        );
    }
    for text in bad {
        assert!(
            is_illegal(&crate::checker::belief::check(&history(text), skew)),
            "{text}"
        );
    }
}
