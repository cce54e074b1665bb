//! The number for people.

#[test]
fn lost_updates_are_counted() {
    use dlock_conformance::checker::lost_update::LostUpdates;
    type Case<'a> = (&'a [u64], &'a [u64], usize, usize);
    let cases: [Case<'_>; 7] = [
        (&[], &[], 0, 0),
        (&[1, 2], &[1, 2], 0, 0),
        (&[1, 2], &[1], 1, 0),
        (&[1, 2, 3, 4], &[], 4, 0),
        (&[1], &[1, 9], 0, 1),
        (&[1, 2], &[3], 2, 1),
        (&[1], &[9], 1, 1),
    ];
    for (acknowledged, found, lost, invented) in cases {
        let count = LostUpdates::count(acknowledged.to_vec(), found.to_vec());
        assert_eq!(
            (count.lost.len(), count.invented.len()),
            (lost, invented),
            "{count:?}"
        );
        assert_eq!(count.is_none(), lost + invented == 0);
    }
    assert_eq!(LostUpdates::count([1, 2], [1]).percentage(), 50.0);
}
