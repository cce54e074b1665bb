//! Drawings as they stand in a failure text. A change of how things are drawn shows here.

use dlock_conformance::checker::{Check, Judgement, Violation, wgl};
use dlock_conformance::report::timeline::{draw, latest, of};

use crate::fixture::{LEASE as MODEL, history, in_millis as millis};

/// Two who hold at once.
const CLASH: &str = "
    0-10000000  A acquire a ttl=1000000000 token=1
    10000000 A believe a ttl=990000000
    20000000-30000000 B acquire b ttl=1000000000 token=2
    40000000-50000000 A release a
    60000000-70000000 B release b";

fn violation(check: &Check, text: &str) -> Violation {
    match check.judge(&history(text), &MODEL, wgl::BUDGET) {
        Ok(Judgement::Illegal(violation)) => violation,
        other => panic!("it must be illegal: {other:?}"),
    }
}

fn is_drawn(drawing: &str, expected: &str) {
    let expected = expected.trim_start_matches('\n');
    assert_eq!(drawing, expected, "\n{drawing}");
}

#[test]
fn a_violation_is_drawn_with_its_operations_only() {
    let bystander = "2000000-3000000 C try c held";
    let text = format!("{CLASH}\n{bystander}");
    let violation = violation(&Check::Exclusion, &text);
    assert_eq!(
        of(&violation, &history(&text), &MODEL),
        draw(&history(CLASH), &[1, 3], &MODEL)
    );
}

#[test]
fn without_a_violation_the_last_operations_are_drawn() {
    let mut text = String::new();
    for n in 0..40_u64 {
        let at = n * 1_000_000;
        text += &format!("{at}-{} A acquire g{n} timed_out\n", at + 500_000);
    }
    let drawing = latest(&history(&text), &MODEL);
    // Its legend, and the words beside it.
    assert_eq!(drawing.matches('t').count(), 12 + 3, "{drawing}");
    assert!(drawing.contains("t timed out"), "{drawing}");
}

#[test]
fn of_refused_tries_only_the_last_are_drawn() {
    let mut text = "0-1 A acquire a ttl=60000 token=1\n".to_owned();
    for n in 1..40 {
        let at = n * 10;
        text += &format!("{at}-{} B try b{n} held\n", at + 3);
    }
    let drawing = latest(&millis(&text), &MODEL);
    assert!(drawing.contains("# holds"), "{drawing}");
    assert_eq!(
        drawing.matches("=h ").count() + drawing.matches("=h\n").count(),
        4,
        "{drawing}"
    );
}

#[test]
fn the_last_operations_are_of_one_name_with_faults_beside_them() {
    // Each tries in turn; those of `b` are no matter, and the fault has a name of its own.
    let mut text = String::new();
    for n in 0..14 {
        let at = n * 10;
        text += &format!("{at}-{} A acquire a{n} name=a timed_out\n", at + 3);
        text += &format!("{}-{} B acquire b{n} name=b timed_out\n", at + 5, at + 8);
    }
    text += "140-143 A acquire last name=a timed_out
             144 - fault name=c note=cut
             155 - healed name=c";
    is_drawn(
        &latest(&millis(&text), &MODEL),
        "
  ms        |30.0           |54.1           |78.2           |102.3          |126.4
  lane 1    =t    ==t    ==t   ==t    ==t    ==t   ==t    ==t    ==t   ==t    ==t    ==t
  faults                                                                               F cut FFF
  = asks  t timed out
",
    );
}

#[test]
fn the_time_in_which_both_hold_is_marked() {
    is_drawn(
        &draw(&history(CLASH), &[1, 3], &MODEL),
        "
  ms        |0.0            |13.5           |27.0           |40.5           |54.0
> lane 1    ===========#t1#################################------------<
> lane 2                           ============#t2#################################------------<
  granted   ~~~~~~~~~~~[t1##################################~~~~~~~~~~~~
  granted                          ~~~~~~~~~~~~[t2##################################~~~~~~~~~~~~
> here                                         ^^^^^^^^^^^^^
  = asks  # holds  ~ may hold  - lets go  < released
  op 1, lane 1: acquire exclusive at 0.000 ms; ok at 10.000 ms, token 1, ttl 1000.000 ms; \
    release ok at 50.000 ms
  op 3, lane 2: acquire exclusive at 20.000 ms; ok at 30.000 ms, token 2, ttl 1000.000 ms; \
    release ok at 70.000 ms
",
    );
}

#[test]
fn both_returns_are_marked_where_a_grant_meets_a_release() {
    let text = "
        0-10  A acquire a ttl=200 token=1
        10-20 B acquire b ttl=200
        20-40 A release a
        30-50 B release b";
    is_drawn(
        &draw(&millis(text), &[1, 2], &MODEL),
        "
  ms        |0.0            |9.6            |19.3           |28.9           |38.6
> lane 1    ================#t1##############---------------------------------<
> lane 2                    =================################----------------------------------<
  granted   ~~~~~~~~~~~~~~~~[t1###############~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
  granted                   ~~~~~~~~~~~~~~~~~[t?##############~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
> here                      ^                ^
  = asks  # holds  ~ may hold  - lets go  < released
  op 1, lane 1: acquire exclusive at 0.000 ms; ok at 10.000 ms, token 1, ttl 200.000 ms; \
    release ok at 40.000 ms
  op 2, lane 2: acquire exclusive at 10.000 ms; ok at 20.000 ms, ttl 200.000 ms; release ok at 50.000 ms
",
    );
}

#[test]
fn grants_that_meet_in_a_column_have_rows_of_their_own() {
    let text = "
        0-3   A acquire a ttl=200 token=1
        7-10  A release a
        10-13 B acquire b ttl=200 token=2
        17-20 B release b
        20-23 C acquire c ttl=200 token=3
        27-30 C release c";
    is_drawn(
        &draw(&millis(text), &[3], &MODEL),
        "
  ms        |0.0            |5.8            |11.6           |17.3           |23.1
  lane 1    ========#t1########--------<
> lane 2                               ========#t2#########--------<
  lane 3                                                           ========#t3########---------<
  granted                              ~~~~~~~~[t2##########~~~~~~~~
  granted   ~~~~~~~~[t1#########~~~~~~~~                           ~~~~~~~~[t3#########~~~~~~~~~
> here                                         ^
  = asks  # holds  ~ may hold  - lets go  < released
  op 3, lane 2: acquire exclusive at 10.000 ms; ok at 13.000 ms, token 2, ttl 200.000 ms; \
    release ok at 20.000 ms
",
    );
}

#[test]
fn timeouts_losses_and_drops_have_signs_and_words() {
    let text = "
        0-10  A acquire a ttl=30 token=1
        4-24  B acquire b timed_out
        20    A lost a
        32    A drop a";
    is_drawn(
        &draw(&millis(text), &[1, 2], &MODEL),
        "
  ms        |0.0            |6.2            |12.3           |18.5           |24.7
> lane 1    =========================#t1#######################L#########################......x
> lane 2              ====================================================t
  granted   ~~~~~~~~~~~~~~~~~~~~~~~~~[t1##################################################
> here                               ^
  = asks  # holds  . past its deadline  ~ may hold  t timed out  x dropped  L lost
  op 1, lane 1: acquire exclusive at 0.000 ms; ok at 10.000 ms, token 1, ttl 30.000 ms; \
    loss signalled at 20.000 ms; dropped at 32.000 ms
  op 2, lane 2: acquire exclusive at 4.000 ms; timed out at 24.000 ms
",
    );
}

#[test]
fn faults_and_passed_deadlines_have_signs_of_their_own() {
    let text = "
        0-10000000  A acquire a ttl=400000000 token=1
        200000000-210000000 A renew a ttl=300000000
        230000000 A fault note=cut
        300000000 A healed
        2000000-520000000 B acquire b ttl=400000000 token=2
        590000000-600000000 A release a lost";
    is_drawn(
        &draw(&history(text), &[1], &MODEL),
        "
  ms        |0.0            |115.7          |231.3          |347.0          |462.7
> lane 1    =#t1#########################r#######################################............--L
  lane 2    =======================================================................#t2.........>
  granted   ~[t1##################################################################~~~~~~~~~~~~~~
  granted   ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~               #
  faults                                   F cut FFFFF
> here       ^
  = asks  # holds  . past its deadline  ~ may hold  - lets go  r renewed  L lost  > goes on
  op 1, lane 1: acquire exclusive at 0.000 ms; ok at 10.000 ms, token 1, ttl 400.000 ms; \
    renewal ok at 210.000 ms; release lost at 600.000 ms
",
    );
}

#[test]
fn idle_time_is_cut_out_and_marked() {
    let mut text = String::new();
    for (token, at) in [(1, 0), (2, 60_000_000_000_u64)] {
        text += &format!(
            "{at}-{} A acquire a{at} ttl=90000000000 token={}
             {}-{} A release a{at}\n",
            at + 2_000_000,
            token,
            at + 8_000_000,
            at + 10_000_000
        );
    }
    is_drawn(
        &draw(&history(&text), &[1], &MODEL),
        "
  ms        |0.0            |4.0            |8.0     //|60000.0             |60005.2
> lane 1    ========#t1#####################--------<//========#t2#####################--------<
  granted   ~~~~~~~~[t1######################~~~~~~~~//~~~~~~~~[t2######################~~~~~~~~
> here              ^                                //
  = asks  # holds  ~ may hold  - lets go  < released
  // leaves out 59990.000 ms
  op 1, lane 1: acquire exclusive at 0.000 ms; ok at 2.000 ms, token 1, ttl 90000.000 ms; \
    release ok at 10.000 ms
",
    );
}

#[test]
fn a_late_write_is_drawn_beside_its_overtaker() {
    let text = "
        0-30000000  A write - token=1
        5000000-20000000  B write - token=2
        40000000-50000000 B read - token=1";
    let violation = violation(&Check::Resource, text);
    is_drawn(
        &of(&violation, &history(text), &MODEL),
        "
  ms        |0.0            |9.6            |19.3           |28.9           |38.6
  lane 1    =================================================w
> lane 2            =========================w                                =================o
  = asks  w written  o read
  op 3, lane 2: read at 40.000 ms; ok at 50.000 ms, token 1
  op 2, lane 2: write at 5.000 ms; ok at 20.000 ms, token 2
",
    );
}

#[test]
fn a_history_of_a_thousand_lanes_is_forty_lines() {
    let mut text = String::new();
    for n in 0..1000_u64 {
        let at = n * 1_000_000;
        text += &format!(
            "{at}-{} L{n} acquire g{n} ttl=9000000000 token={n}\n",
            at + 500_000_000
        );
    }
    let marked: Vec<u64> = (1..100).collect();
    let drawing = draw(&history(&text), &marked, &MODEL);
    assert!(drawing.lines().count() <= 40, "{drawing}");
    assert!(drawing.contains("and 988 more lanes"), "{drawing}");
    assert!(drawing.contains("and 994 more grants"), "{drawing}");
    assert!(drawing.contains("and 91 more operations"), "{drawing}");
}

#[test]
fn marked_lanes_are_drawn_first() {
    let mut text = String::new();
    for n in 0..14 {
        text += &format!("{n}-{} L{n} try g{n} held\n", n + 20);
    }
    let drawing = draw(&millis(&text), &[14], &MODEL);
    let lanes: Vec<&str> = drawing
        .lines()
        .filter(|l| l.contains("lane ") && !l.contains("op"))
        .map(|l| l.split('=').next().unwrap().trim_end())
        .collect();
    assert_eq!(lanes.first(), Some(&"  lane 1"), "{drawing}");
    assert_eq!(lanes[10..], ["  lane 11", "> lane 14"], "{drawing}");
    assert!(drawing.contains("and 2 more lanes"), "{drawing}");
}

#[test]
fn eight_operations_are_listed_and_the_rest_counted() {
    let mut text = String::new();
    for n in 0..9 {
        text += &format!("{}-{} A try g{n} held\n", n * 10, n * 10 + 5);
    }
    let told = |most: u64| {
        let marked: Vec<u64> = (1..=most).collect();
        draw(&millis(&text), &marked, &MODEL)
    };
    let eighth = "  op 8, lane 1: try exclusive at 70.000 ms; refused at 75.000 ms\n";
    assert!(told(8).ends_with(eighth), "{}", told(8));
    assert!(
        told(9).ends_with(&format!("{eighth}  and 1 more operations\n")),
        "{}",
        told(9)
    );
}

#[test]
fn an_empty_history_has_no_drawing() {
    assert_eq!(draw(&[], &[], &MODEL), "");
}

#[test]
fn a_token_is_drawn_whole_or_not_at_all() {
    for release in 41..60 {
        let text = format!("0-40 A acquire a token=12\n{release}-83 A release a");
        let drawing = latest(&millis(&text), &MODEL);
        let lane = drawing.lines().find(|line| line.contains("lane")).unwrap();
        // A column for each millisecond: from 40 to 44 it just fits.
        let drawn = if release < 44 { "" } else { "#t12" };
        assert!(lane.contains(drawn), "{drawing}");
        assert_eq!(lane.contains("#t"), !drawn.is_empty(), "{drawing}");
    }
}

#[test]
fn a_token_beside_a_cut_is_drawn_behind_it() {
    let text = "0-1       A acquire a ttl=9000 token=12345
                1000-1002 B try b held
                1005-1006 A release a";
    let drawing = draw(&millis(text), &[], &MODEL);
    assert!(drawing.contains("=#//#t12345#"), "{drawing}");
}

/// The drawing of refused tries with these gaps between them, in milliseconds.
fn apart(gaps: &[u64]) -> String {
    let (mut at, mut text) = (0, "0-0 A try g held\n".to_owned());
    for (n, gap) in gaps.iter().enumerate() {
        at += gap;
        text += &format!("{at}-{at} A try g{n} held\n");
    }
    draw(&millis(&text), &[], &MODEL)
}

#[test]
fn at_most_four_long_gaps_are_cut_out() {
    let cases: [(&[u64], &[u64]); 4] = [
        (&[10, 40, 10], &[]),
        (&[10, 41, 10], &[41]),
        (&[1, 90, 1, 90, 1, 90, 90], &[90; 4]),
        (&[1, 90, 1, 90, 1, 90, 90, 90], &[]),
    ];
    for (gaps, left_out) in cases {
        let drawing = apart(gaps);
        let told = drawing.lines().find_map(|l| l.strip_prefix("  // leaves out "));
        let expected: Vec<String> = left_out.iter().map(|gap| format!("{gap}.000 ms")).collect();
        assert_eq!(told.unwrap_or_default(), expected.join(", "), "{drawing}");
    }
}

#[test]
fn times_are_as_exact_as_columns_with_a_blank_between_two() {
    for (gaps, times) in [
        (
            &[9][..],
            "|0.000          |1.735          |3.470          |5.205          |6.940",
        ),
        (
            &[10],
            "|0.0            |1.9            |3.9            |5.8            |7.7            |9.6",
        ),
        (
            &[999],
            "|0.0            |192.6          |385.2          |577.7          |770.3",
        ),
        (
            &[1000],
            "|0              |193            |386            |578            |771            |964",
        ),
        // A column for each millisecond. The time of the second piece ends where that of column 16 would
        // begin.
        (
            &[7, 193, 73],
            "|0.0    //|200.0                |222.0          |238.0          |254.0",
        ),
    ] {
        let drawing = apart(gaps);
        assert_eq!(drawing.lines().next(), Some(&*format!("  ms        {times}")));
    }
}

#[test]
fn a_drawing_spans_marked_leases() {
    let ruler = |ttl: u64| {
        let text = format!(
            "6-20 A acquire a ttl={ttl} token=1
             30 A lost a"
        );
        let drawing = draw(&millis(&text), &[1], &MODEL);
        drawing.lines().next().unwrap().to_owned()
    };
    // As long again as all that happened, and no longer.
    assert_eq!(
        ruler(48),
        "  ms        |6.0            |15.3           |24.5           |33.8           |43.0"
    );
    assert_eq!(
        ruler(49),
        "  ms        |6.0            |10.6           |15.3           |19.9           |24.5"
    );
}

#[test]
fn a_second_release_does_not_lengthen_the_hold() {
    let text = "0-10 A acquire a ttl=1000 token=1
                20-30 A release a
                40-50 B acquire b ttl=1000 token=2
                60-70 A release a lost";
    let drawing = latest(&millis(text), &MODEL);
    let row = drawing.lines().find(|row| row.contains("lane 1")).unwrap();
    let (released, refused) = (row.find('<').unwrap(), row.find('L').unwrap());
    assert!(!row[released..refused].contains('#'), "{drawing}");
}

#[test]
fn a_loss_at_the_end_names_the_lock_that_is_drawn() {
    let text = "0-10 A acquire a name=lost ttl=1000 token=1
                20-30 B acquire b name=other ttl=1000 token=2
                40 A lost a name=lost
                50-60 B release b name=other";
    let drawing = latest(&millis(text), &MODEL);
    assert!(drawing.contains("t1") && !drawing.contains("t2"), "{drawing}");
}
