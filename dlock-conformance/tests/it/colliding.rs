//! The names of rule 13.03. No store shows which hash of a name it keeps, so the file itself is compiled in.

#[path = "../../src/rules/colliding.rs"]
mod names;

use self::names::HASHES;

#[test]
fn the_hashes_match_reference_values() {
    let values: [(&str, &[(&str, u32)]); 5] = [
        ("CRC-32", &[("123456789", 0xcbf4_3926)]),
        ("Java's hashCode", &[("hello", 99_162_322)]),
        ("FNV-1a", &[("foobar", 0xbf9c_f968)]),
        (
            "murmur3",
            &[("", 0), ("hello", 0x248b_fa47), ("hello, world", 0x149b_bb7f)],
        ),
        // Asked of a PostgreSQL 15.
        (
            "PostgreSQL's hashtext",
            &[
                ("", (-1_477_818_771_i32).cast_unsigned()),
                ("hello", (-1_870_292_951_i32).cast_unsigned()),
                ("abcdefghijk", (-1_483_803_693_i32).cast_unsigned()),
                ("abcdefghijklm", 405_849_808),
                ("dlc-1/12345678901234567890", 572_517_584),
            ],
        ),
    ];
    assert_eq!(HASHES.map(|hash| hash.name), values.map(|(name, _)| name));
    for (hash, (name, values)) in HASHES.iter().zip(values) {
        for (text, value) in values {
            assert_eq!((hash.of)(text.as_bytes()), *value, "{name} of {text:?}");
        }
    }
}

#[test]
fn every_pair_collides_with_its_whole_name_and_is_two_names() {
    for hash in HASHES {
        for beginning in [&b"dlc-1-13.03-0/"[..], b"x", b"another beginning that is longer/"] {
            let [a, b] = hash.pair(beginning).expect("a pair is found");
            assert_ne!(a, b, "{}", hash.name);
            assert_eq!((hash.of)(&a), (hash.of)(&b), "{}", hash.name);
            assert!(a.starts_with(beginning) && b.starts_with(beginning));
        }
    }
}
