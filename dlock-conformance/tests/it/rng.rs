//! The generator of the seeds.

use dlock_conformance::Rng;

#[test]
fn the_same_seed_gives_the_same_numbers_within_bounds() {
    let (mut a, mut b) = (Rng::new(7), Rng::new(7));
    for _ in 0..1000 {
        let x = a.below(10);
        assert!(x < 10);
        assert_eq!(x, b.below(10));
    }
    assert_ne!(Rng::new(1).bits(), Rng::new(2).bits());
}
