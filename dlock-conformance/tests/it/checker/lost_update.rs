//! The number for people.

#[test]
fn lost_updates_are_counted() {
    use dlock_conformance::checker::lost_update::LostUpdates;
    type Case<'a> = (&'a [u64], &'a [u64], &'a [u64], usize, usize);
    let cases: [Case<'_>; 10] = [
        (&[], &[], &[], 0, 0),
        (&[1, 2], &[], &[1, 2], 0, 0),
        (&[1, 2], &[3], &[1, 2, 3], 0, 0),
        (&[1, 2], &[3], &[1, 2], 0, 0),
        (&[], &[1], &[1], 0, 0),
        (&[1, 2], &[], &[1], 1, 0),
        (&[1, 2, 3, 4], &[], &[], 4, 0),
        (&[1], &[], &[1, 9], 0, 1),
        (&[1, 2], &[3], &[3], 2, 0),
        (&[1], &[2], &[9], 1, 1),
    ];
    for (acknowledged, maybe, found, lost, invented) in cases {
        let copy = |list: &[u64]| list.to_vec();
        let count = LostUpdates::count(copy(acknowledged), copy(maybe), copy(found));
        assert_eq!(
            (count.lost.len(), count.invented.len()),
            (lost, invented),
            "{count}"
        );
        assert_eq!(count.is_none(), lost + invented == 0);
    }
    let half = LostUpdates::count([1, 2], [], [1]);
    assert_eq!(half.to_string(), "1 of 2 updates were lost (50.0 %)");
}
