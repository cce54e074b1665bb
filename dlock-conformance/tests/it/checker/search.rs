//! What the search says for itself: how far it came, what it could not place, and how many steps it took.

use super::*;

fn searched(text: &str, fenced: bool, budget: u64) -> Judgement {
    let events = in_millis(text);
    assert_eq!(validate(&events), Ok(()));
    let mut model = model(Ends::Lease);
    model.fenced = fenced;
    wgl::check(&spans(&events, &model), &model, budget)
}

#[test]
fn an_unplaced_step_names_the_longest_order() {
    let cases: [(&str, &str, &[u64]); 5] = [
        (
            "0-10  A acquire a ttl=1000 token=1
             20-30 B acquire b ttl=1000 token=2",
            "(1 of 4 steps, held by operation 1 (lane 1), largest token 1), the grant of operation 2 (lane \
                2, token 2), which was over by 30.000 ms, has no place",
            &[1, 2],
        ),
        (
            "0-10  A acquire a ttl=1000
             20-30 A release a
             40-50 A renew a ttl=1000",
            "(2 of 3 steps, held by nobody, largest token 0), a renewal of operation 1 (lane 1), which was \
                over by 50.000 ms, has no place",
            &[1],
        ),
        (
            "0-10  A acquire a ttl=1000
             20-30 A release a lost",
            "(1 of 2 steps, held by operation 1 (lane 1), largest token 0), the end of operation 1 (lane \
                1), which was over by 30.000 ms, has no place",
            &[1, 1],
        ),
        (
            "0-10  A acquire a ttl=1000 mode=2 token=1
             0-11  B acquire b ttl=1000 mode=2 token=2
             20-30 C acquire c ttl=1000 mode=2 token=3",
            "(2 of 6 steps, held by operation 1 (lane 1), operation 2 (lane 2), largest token 2), the grant \
                of operation 3 (lane 3, token 3), which was over by 30.000 ms, has no place",
            &[1, 2, 3],
        ),
        // Either comes first and the other has no place then: of orders that are equally long the first that
        // was tried.
        (
            "0-100 A acquire a ttl=1000
             0-50  B acquire b ttl=1000",
            "(1 of 4 steps, held by operation 2 (lane 2), largest token 0), the grant of operation 1 (lane \
                1), which was over by 100.000 ms, has no place",
            &[2, 1],
        ),
    ];
    for (text, sentence, operations) in cases {
        let sentence = format!("`x`: no order explains it: after the longest one {sentence}");
        let judgement = searched(text, true, wgl::BUDGET);
        assert_eq!(explained(&judgement), (sentence, operations.to_vec()));
    }
}

#[test]
fn an_order_that_was_tried_in_vain_is_taken_back() {
    // The writer returned first, but came last: the reader's lease was over before its acquire returned.
    let text = "
        0-60  R acquire r mode=reader ttl=10
        0-50  W acquire w ttl=1000
        90-95 W release w";
    assert_eq!(searched(text, true, wgl::BUDGET), Judgement::Legal);
}

#[test]
fn tokens_may_be_in_the_order_that_the_invokes_are_not() {
    let text = "
        0-100   A acquire a ttl=9000 token=2
        5-50    B acquire b ttl=9000 token=1
        60-70   B release b
        110-130 A release a";
    assert_eq!(searched(text, true, wgl::BUDGET), Judgement::Legal);
}

#[test]
fn a_budget_is_exact_to_the_step() {
    let text = "0-10 A acquire a ttl=100";
    assert_eq!(searched(text, true, 1), Judgement::Legal);
    let unknown = "`x`: no order was found and none was excluded within 0 steps";
    assert_eq!(searched(text, true, 0), Judgement::Unknown(unknown.to_owned()));
}

#[test]
fn the_search_restarts_after_quiescence() {
    // Twelve readers at once can have come in any order, but whichever it was, two writers clash long after.
    let mut text = String::new();
    for n in 0..12 {
        text += &format!("0-10 R{n} acquire r{n} mode=reader ttl=1000\n20-30 R{n} release r{n}\n");
    }
    text += "40-50 A acquire a ttl=1000\n60-70 B acquire b ttl=1000\n";
    assert!(is_illegal(&searched(&text, true, 50)));
}

#[test]
fn the_order_of_tokens_saves_the_search_of_all_others() {
    // They returned in the order that is wrong.
    let mut text = String::new();
    for n in 0..12 {
        text += &format!("0-{} L{n} acquire a{n} ttl=1 token={}\n", 100 - n, n + 1);
    }
    assert_eq!(searched(&text, true, 200), Judgement::Legal);
}
