//! Drawings as they stand in a failure text. A change of how things are drawn shows here.

use std::time::Duration;

use super::*;
use crate::checker::{Check, Judgement, wgl};
use crate::claims::Skew;
use crate::history::Ends;
use crate::history::fixture::history;

const MODEL: Model = Model {
    ends: Ends::Lease,
    skew: Skew {
        ppm: 0,
        fixed: Duration::ZERO,
    },
    fenced: true,
};

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
fn a_violation_is_drawn_with_whom_it_is_about_and_nobody_else() {
    let bystander = "2000000-3000000 C try c held";
    let text = format!("{CLASH}\n{bystander}");
    let violation = violation(&Check::Exclusion, &text);
    assert_eq!(
        of(&violation, &history(&text), &MODEL),
        draw(&history(CLASH), &[1, 3], &MODEL)
    );
}

#[test]
fn the_last_operations_are_drawn_where_nothing_else_is_known() {
    let mut text = String::new();
    for n in 0..40_u64 {
        let at = n * 1_000_000;
        text += &format!("{at}-{} A try g{n} held\n", at + 500_000);
    }
    let drawing = latest(&history(&text), &MODEL);
    assert_eq!(drawing.matches('h').count(), LATEST + 1, "{drawing}");
    assert!(drawing.contains("h refused"), "{drawing}");
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
  op 1, lane 1: acquire exclusive at 0.000 ms; ok at 10.000 ms, token 1, ttl 1000.000 ms; release ok at 50.000 ms
  op 3, lane 2: acquire exclusive at 20.000 ms; ok at 30.000 ms, token 2, ttl 1000.000 ms; release ok at 70.000 ms
",
    );
}

#[test]
fn faults_stalls_and_passed_deadlines_have_signs_of_their_own() {
    let text = "
        0-10000000  A acquire a ttl=400000000 token=1
        200000000-210000000 A renew a ttl=300000000
        220000000 - stall ttl=9000000
        230000000 A fault note=cut
        300000000 A healed
        2000000-520000000 B acquire b ttl=400000000 token=2
        590000000-600000000 A release a lost";
    is_drawn(&draw(&history(text), &[1], &MODEL),
        "
  ms        |0.0            |115.7          |231.3          |347.0          |462.7
> lane 1    =#t1#########################r#######################################............--L
  lane 3    =======================================================................#t2.........>
  granted   ~[t1##################################################################~~~~~~~~~~~~~~
  granted   ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~               #
  faults                                   F cut FFFFF
  stalls                                 SS
> here       ^
  = asks  # holds  . past its deadline  ~ may hold  - lets go  r renewed  L lost  > goes on
  op 1, lane 1: acquire exclusive at 0.000 ms; ok at 10.000 ms, token 1, ttl 400.000 ms; renewal ok at 210.000 ms; release lost at 600.000 ms
",
    );
}

#[test]
fn idle_time_is_cut_out_and_said_to_be() {
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
    is_drawn(&draw(&history(&text), &[1], &MODEL),
        "
  ms        |0.0            |4.0            |8.0     //|60000.0             |60005.2
> lane 1    ========#t1#####################--------<//========#t2#####################--------<
  granted   ~~~~~~~~[t1######################~~~~~~~~//~~~~~~~~[t2######################~~~~~~~~
> here              ^                                //
  = asks  # holds  ~ may hold  - lets go  < released
  // leaves out 59990.000 ms
  op 1, lane 1: acquire exclusive at 0.000 ms; ok at 2.000 ms, token 1, ttl 90000.000 ms; release ok at 10.000 ms
",
    );
}

#[test]
fn a_write_that_came_too_late_is_drawn_beside_the_one_that_overtook_it() {
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
    assert!(drawing.contains("and 988 lanes more"), "{drawing}");
}

#[test]
fn nothing_is_drawn_of_nothing() {
    assert_eq!(draw(&[], &[], &MODEL), "");
}
