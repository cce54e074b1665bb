//! Legal histories by construction, and the same with one event corrupted.

use dlock_conformance::Rng;

use super::*;

/// A legal history of an exclusive lock, by construction: the truth is drawn first, what clients saw is put
/// around it.
fn generated(seed: u64, grants: usize) -> Vec<Event> {
    let mut rng = Rng::new(seed);
    let mut text = String::new();
    let mut now = 1_000;
    for n in 0..grants {
        let from = now;
        let until = from + 20 + rng.below(100);
        // Waiters began some time ago and learn of their grant a little later.
        let begin = from - rng.below(800);
        let granted = from + 1 + rng.below(8);
        let lets_go = until - 1 - rng.below(8);
        let token = n + 1;
        text += &format!("{begin}-{granted} L{n}x acquire g{n} ttl=100000 token={token}\n");
        match rng.below(3) {
            0 => text += &format!("{lets_go} L{n}x drop g{n}\n"),
            _ => text += &format!("{lets_go}-{} L{n}x release g{n}\n", until + rng.below(50)),
        }
        now = until + 1 + rng.below(30);
    }
    history(&text)
}

/// Lanes of the generated histories are strings of which the sums may collide; each operation gets a lane of
/// its own here.
fn in_lanes_of_their_own(mut events: Vec<Event>) -> Vec<Event> {
    for event in &mut events {
        event.lane = event.op_id as u32;
    }
    events
}

#[test]
fn generated_histories_are_legal_until_one_event_is_corrupted() {
    let model = model(Ends::Lease);
    for seed in 0..60 {
        let good = in_lanes_of_their_own(generated(seed, 40));
        assert_eq!(
            judge(&good, &model, wgl::BUDGET),
            Ok(Judgement::Legal),
            "seed {seed}"
        );

        // A token that was given before.
        let mut repeated = good.clone();
        let mut returns = repeated
            .iter_mut()
            .filter(|e| e.kind == EventKind::Return && e.op == Some(Op::Acquire));
        let first = returns.next().unwrap().token;
        returns.nth(20).unwrap().token = first;
        assert!(
            is_illegal(&judge(&repeated, &model, wgl::BUDGET).unwrap()),
            "seed {seed}: token"
        );

        // A release that was never asked for: its holder holds on, the next are granted all the same.
        let mut kept = good.clone();
        let victim = kept
            .iter()
            .find(|e| e.kind == EventKind::Invoke && e.op == Some(Op::Release))
            .unwrap()
            .op_id;
        kept.retain(|e| e.op_id != victim);
        assert!(
            is_illegal(&judge(&kept, &model, wgl::BUDGET).unwrap()),
            "seed {seed}: release"
        );
    }
}

#[test]
fn long_histories_without_tokens_are_decided_within_the_budget() {
    let mut model = model(Ends::Lease);
    model.fenced = false;
    let events = in_lanes_of_their_own(generated(7, 5_000));
    assert_eq!(judge(&events, &model, wgl::BUDGET), Ok(Judgement::Legal));
}
