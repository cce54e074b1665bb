use super::*;

#[test]
fn a_held_name_is_refused_and_leaves_nothing_behind() {
    let mut b = Bench::new();
    b.take(1, Mode::Exclusive);
    let Asked::Held(place) = b.ask(2, Mode::Exclusive, No, 5).unwrap() else {
        panic!("granted twice")
    };
    assert_eq!(place.recheck_in, Some(ms(TTL)));
    assert_eq!(b.release(1), Released::Released);
    assert!(b.told.granted.is_empty());
    assert_eq!(b.table.sizes(), (0, 0, 0));
}

#[test]
fn a_retry_answers_the_same_grant_with_its_remaining_life() {
    let mut b = Bench::new();
    let first = b.take(1, Mode::Exclusive);
    b.now = at(400);
    let again = b.take(1, Mode::Exclusive);
    assert_eq!((again.token, again.expires_in), (first.token, ms(TTL - 400)));
    b.join(2, Mode::Exclusive);
    assert!(is_queued(&b.join(2, Mode::Exclusive), 0));
    assert_eq!(b.inspect().waiting, 1);
}

#[test]
fn a_lease_ends_at_its_ttl_and_not_before() {
    let mut b = Bench::new();
    b.take(1, Mode::Exclusive);
    b.now = at(TTL - 1);
    assert!(matches!(b.ask(2, Mode::Exclusive, No, 5), Ok(Asked::Held(_))));
    b.now = at(TTL);
    assert_eq!(b.renew(1), None, "what ran out is gone even if nobody else came");
    b.take(2, Mode::Exclusive);
    assert_eq!(b.release(1), Released::NotHeld);
    assert_eq!(
        b.inspect().holders.len(),
        1,
        "the late release touches nobody else's lease"
    );
}

#[test]
fn one_release_admits_every_reader_up_to_the_next_writer() {
    let mut b = Bench::new();
    b.take(1, Mode::Exclusive);
    for n in 2..=4 {
        b.join(n, Mode::READER);
    }
    b.join(5, Mode::Exclusive);
    b.join(6, Mode::READER);
    b.release(1);
    assert_eq!(b.granted(), [2, 3, 4]);
    b.release(2);
    b.release(3);
    assert!(
        b.granted().is_empty(),
        "only the last reader's release admits the writer"
    );
    b.release(4);
    assert_eq!(b.granted(), [5]);
    b.release(5);
    assert_eq!(b.granted(), [6]);
}

#[test]
fn a_new_reader_does_not_overtake_a_waiting_writer() {
    let mut b = Bench::new();
    b.take(1, Mode::READER);
    b.join(2, Mode::Exclusive);
    assert!(matches!(b.ask(3, Mode::READER, No, 5), Ok(Asked::Held(_))));
    assert!(is_queued(&b.join(4, Mode::READER), 1));
}

#[test]
fn a_withdrawn_or_lapsed_writer_lets_in_the_readers_behind_it() {
    let mut b = Bench::new();
    b.take(1, Mode::READER);
    b.join(2, Mode::Exclusive);
    b.join(3, Mode::READER);
    assert_eq!(b.abandon(2), Abandoned::Withdrawn);
    assert_eq!(b.granted(), [3]);

    let mut b = Bench::new();
    b.take(1, Mode::READER);
    b.renew_for(1, QUEUE_TTL * 2);
    b.join(2, Mode::Exclusive);
    b.now = at(QUEUE_TTL - 1);
    assert!(is_queued(&b.join(3, Mode::READER), 1));
    b.now = at(QUEUE_TTL);
    let again = b.ask_again(3, QUEUE_TTL);
    assert!(matches!(again, RenewOutcome::Granted(_)), "{again:?}");
    assert_eq!(b.told.dropped, [key(2)]);
}

#[test]
fn loaded_holders_are_in_the_order_of_their_grants() {
    let mut b = Bench::new();
    let tokens: Vec<_> = (1..=3).map(|n| b.take(n, Mode::READER).token).collect();
    let first = b.call(|t, fx| t.change(&t.spot(&key(0).name), fx, |c| c.name.holders()[0].clone()));
    let mut loaded = NameState::default();
    for token in tokens.iter().rev().copied() {
        let first = first.clone().expect("it is held");
        loaded.insert(Entry { token, ..first }, 0);
    }
    loaded.sort();
    let sorted: Vec<_> = loaded.holders().iter().map(|e| e.token).collect();
    assert_eq!(sorted, tokens);
}

#[test]
fn each_waiter_that_lapsed_is_passed_over() {
    let mut b = Bench::new();
    b.take(1, Mode::Exclusive);
    b.renew_for(1, QUEUE_TTL * 4);
    for n in 2..=4 {
        b.join(n, Mode::Exclusive);
        b.now = b.now + ms(QUEUE_TTL / 4);
    }
    b.now = at(QUEUE_TTL);
    b.ask_again(4, QUEUE_TTL);
    assert_eq!(b.told.dropped, [key(2)]);
    b.now = at(QUEUE_TTL + QUEUE_TTL / 4);
    b.release(1);
    assert_eq!((b.told.dropped.as_slice(), b.granted()), (&[key(3)][..], vec![4]));
}

#[test]
fn expiry_hands_over_to_the_waiter_that_asks_again() {
    let mut b = Bench::new();
    b.take(1, Mode::Exclusive);
    let Asked::Queued(place) = b.join(2, Mode::Exclusive) else {
        panic!()
    };
    b.now = b.now + place.recheck_in.unwrap();
    let again = b.ask_again(2, QUEUE_TTL);
    assert!(matches!(again, RenewOutcome::Granted(_)));
    assert!(matches!(
        b.told.changes.as_slice(),
        [(_, Change::Expired { .. }), (_, Change::Granted(_))]
    ));
}

#[test]
fn the_queue_goes_by_priority_then_arrival() {
    let mut b = Bench::new();
    b.take(1, Mode::Exclusive);
    for (n, priority) in [(2, 5), (3, 9), (4, 5), (5, 9), (6, 1)] {
        b.ask(n, Mode::Exclusive, Join, priority).unwrap();
    }
    let mut order = vec![];
    let mut holder = 1;
    while b.release(holder) == Released::Released && !b.told.granted.is_empty() {
        holder = b.granted()[0];
        order.push(holder);
    }
    assert_eq!(order, [3, 5, 2, 4, 6]);
}

#[test]
fn permits_respect_n_and_other_classes_are_refused() {
    let mut b = Bench::new();
    b.take(1, permit(2));
    b.take(2, permit(2));
    assert!(is_queued(&b.join(3, permit(2)), 0));
    for other in [permit(3), Mode::READER] {
        assert_eq!(
            b.ask(4, other, Join, 5).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
    b.join(5, Mode::Exclusive);
    for n in [1, 2, 3, 5] {
        assert_eq!(b.release(n), Released::Released);
    }
    b.take(6, permit(3));
}

#[test]
fn a_claim_window_is_confirmed_by_the_first_renewal() {
    let settings = Settings {
        claim_window: Some(ms(50)),
        ..Settings::default()
    };
    let mut b = Bench::with(settings);
    assert!(
        !b.take(1, Mode::Exclusive).provisional,
        "only a hand-off is provisional"
    );
    b.join(2, Mode::Exclusive);
    b.join(3, Mode::Exclusive);
    b.release(1);
    let pushed = b.told.granted[0].clone();
    assert_eq!((pushed.provisional, pushed.expires_in), (true, ms(50)));
    b.now = at(50);
    let again = b.ask_again(3, QUEUE_TTL);
    assert!(
        matches!(again, RenewOutcome::Granted(g) if g.provisional),
        "an unclaimed window costs one window"
    );
    assert_eq!(b.renew(3), Some(ms(TTL)));
    assert!(!b.take(3, Mode::Exclusive).provisional);
}

#[test]
fn a_minimum_hold_keeps_the_name_taken_and_belongs_to_nobody() {
    let mut b = Bench::new();
    b.take(1, Mode::Exclusive);
    b.join(2, Mode::Exclusive);
    let keep = |b: &mut Bench, d| b.call(|t, fx| t.release(&key(1), Release::KeepFor(ms(d)), fx));
    assert_eq!(keep(&mut b, 300), Released::Released);
    b.now = at(299);
    assert_eq!(
        keep(&mut b, 300),
        Released::Released,
        "a retry says the same and keeps it no longer"
    );
    assert_eq!(b.renew(1), None);
    assert_eq!(b.abandon(1), Abandoned::Nothing);
    assert_eq!(b.convert(1, Mode::READER).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(
        b.ask(1, Mode::Exclusive, No, 5).unwrap_err().kind(),
        ErrorKind::Lost
    );
    assert!(b.told.granted.is_empty());
    b.now = at(300);
    assert_eq!(b.inspect().holders[0].id, key(2).id);
}

#[test]
fn an_abandoned_or_released_request_does_not_come_back() {
    let mut b = Bench::new();
    assert_eq!(b.abandon(1), Abandoned::Nothing);
    assert_eq!(
        b.ask(1, Mode::Exclusive, Join, 5).unwrap_err().kind(),
        ErrorKind::Lost
    );
    let held = b.take(2, Mode::Exclusive);
    b.join(3, Mode::Exclusive);
    assert_eq!(b.abandon(2), Abandoned::WasGranted(held.token));
    assert_eq!(b.granted(), [3]);
    b.release(3);
    assert_eq!(b.release(3), Released::Released, "a retried release");
    assert_eq!(
        b.ask(3, Mode::Exclusive, No, 5).unwrap_err().kind(),
        ErrorKind::Lost
    );
    assert_eq!(b.table.sizes(), (0, 0, 2));
    b.now = at(130_000);
    b.abandon(4);
    assert_eq!(b.table.sizes(), (0, 0, 1), "old tombstones are gone");
}

#[test]
fn a_downgrade_keeps_the_token_and_admits_readers() {
    let mut b = Bench::new();
    let held = b.take(1, Mode::Exclusive);
    b.join(2, Mode::READER);
    b.join(3, Mode::Exclusive);
    let Ok(Converted::Done(after)) = b.convert(1, Mode::READER) else {
        panic!()
    };
    assert_eq!(after.token, held.token);
    assert_eq!(b.granted(), [2]);
}

#[test]
fn a_conversion_to_the_same_mode_changes_nothing() {
    let mut b = Bench::new();
    let held = b.take(1, Mode::Exclusive);
    assert_eq!(b.renew_for(1, 3 * TTL), Some(ms(3 * TTL)));
    b.now = at(TTL);
    let Ok(Converted::Done(same)) = b.convert(1, Mode::Exclusive) else {
        panic!()
    };
    assert_eq!(same.token, held.token);
    assert_eq!(
        same.expires_in,
        ms(3 * TTL),
        "the ttl of the last renewal begins anew"
    );
    b.release(1);
    b.take(2, Mode::READER);
    b.take(3, Mode::READER);
    assert!(matches!(b.convert(2, Mode::READER), Ok(Converted::Done(_))));
}

#[test]
fn an_upgrade_must_be_alone_and_two_of_them_do_not_deadlock() {
    let mut b = Bench::new();
    b.take(1, Mode::READER);
    let second = b.take(2, Mode::READER);
    b.join(3, Mode::Exclusive);
    assert_eq!(b.convert(1, Mode::Exclusive).unwrap(), Converted::Busy);
    assert_eq!(b.convert(2, Mode::Exclusive).unwrap(), Converted::WouldDeadlock);
    assert!(b.renew(2).is_some(), "a failed upgrade keeps the shared lease");
    b.release(2);
    let Ok(Converted::Done(up)) = b.convert(1, Mode::Exclusive) else {
        panic!()
    };
    assert!(up.token > second.token);
    assert_eq!(b.convert(2, Mode::Exclusive).unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn a_raise_lifts_the_lease_and_every_later_token() {
    let mut b = Bench::new();
    b.take(1, Mode::Exclusive);
    let to = Token::new(500).unwrap();
    let raise = |b: &mut Bench, to| b.call(|t, fx| t.raise(&key(1), to, fx));
    assert_eq!(raise(&mut b, to).unwrap(), Raised::Raised(to));
    assert_eq!(
        raise(&mut b, Token::MIN).unwrap(),
        Raised::Raised(to),
        "never lowered"
    );
    b.release(1);
    assert_eq!(raise(&mut b, Token::new(900).unwrap()).unwrap(), Raised::NotHeld);
    assert_eq!(
        raise(&mut b, Token::new(MAX_RAISED).unwrap()).unwrap(),
        Raised::NotHeld,
        "it can be raised so far"
    );
    assert_eq!(b.take(2, Mode::Exclusive).token, Token::new(501));
}

#[test]
fn force_release_ends_all_and_admits_the_next() {
    let mut b = Bench::new();
    b.take(1, Mode::READER);
    b.take(2, Mode::READER);
    b.join(3, Mode::Exclusive);
    assert_eq!(b.call(|t, fx| t.force_release(&key(1).name, fx)), 2);
    assert_eq!(b.granted(), [3]);
    assert_eq!((b.renew(1), b.release(2)), (None, Released::NotHeld));
}

#[test]
fn limits_refuse_and_free_up_again() {
    let settings = Settings {
        max_held: Some(1),
        max_waiters: Some(1),
        ..Settings::default()
    };
    let mut b = Bench::with(settings);
    b.take(3, Mode::Exclusive); // client 0
    let other = Acquire::new(named("b", 6), ms(TTL));
    let refused = b.call(|t, fx| t.attempt(&other, fx));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::LimitReached);
    b.join(4, Mode::Exclusive); // client 1
    assert_eq!(
        b.ask(5, Mode::Exclusive, Join, 5).unwrap_err().kind(),
        ErrorKind::LimitReached
    );
    b.release(3);
    assert!(b.call(|t, fx| t.attempt(&other, fx)).is_ok());
    b.call(|t, fx| t.release(&other.key, Release::KeepFor(ms(300)), fx));
    let next = Acquire::new(named("c", 9), ms(TTL));
    let taken = b.call(|t, fx| t.attempt(&next, fx));
    assert!(taken.is_ok(), "what is kept belongs to nobody");
}

/// A small generator of its own, so that a failure is a function of the seed in its message.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

#[test]
fn no_sequence_of_calls_breaks_exclusion_or_order_or_leaks() {
    for seed in 1..=400u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut b = Bench::with(Settings {
            claim_window: (seed % 2 == 0).then(|| ms(40)),
            max_held: (seed % 3 == 0).then_some(6),
            ..Settings::default()
        });
        let shared = if seed % 4 < 2 { Mode::READER } else { permit(2) };
        let (mut asked, mut time, mut last_exclusive, mut last_any) = (0, 0, 0, 0);
        for _ in 0..200 {
            time += [0, 1, 30, 400][dice.below(4) as usize];
            b.now = at(time);
            let n = 1 + dice.below(asked.max(1));
            match dice.below(10) {
                0..=3 => {
                    asked += 1;
                    let mode = if dice.below(2) == 0 {
                        Mode::Exclusive
                    } else {
                        shared
                    };
                    let queue = if dice.below(4) == 0 { No } else { Join };
                    let _ = b.ask(asked, mode, queue, 1 + dice.below(10) as u8);
                }
                4..=5 => drop(b.release(n)),
                6 => drop(b.abandon(n)),
                7 => drop(b.renew(n)),
                8 => drop(b.convert(
                    n,
                    if dice.below(2) == 0 {
                        Mode::Exclusive
                    } else {
                        shared
                    },
                )),
                _ => drop(b.ask_again(n, 500)),
            }
            let changes: Vec<_> = b.told.changes.drain(..).collect();
            for (_, change) in changes {
                let Change::Granted(holder) = change else { continue };
                let token = holder.token.unwrap().get();
                if holder.mode.is_exclusive() {
                    assert!(
                        token > last_any,
                        "seed {seed}: exclusive {token} after {last_any}"
                    );
                    last_exclusive = token;
                } else {
                    assert!(
                        token >= last_exclusive,
                        "seed {seed}: shared {token} after {last_exclusive}"
                    );
                }
                last_any = last_any.max(token);
            }
            let seen = b.inspect();
            let exclusive = seen.holders.iter().filter(|h| h.mode.is_exclusive()).count();
            let others = seen.holders.len() - exclusive;
            assert!(
                exclusive <= 1 && (exclusive == 0 || others == 0),
                "seed {seed}: {seen:?}"
            );
            assert!(
                seen.holders
                    .iter()
                    .all(|h| h.mode.is_exclusive() || h.mode == shared),
                "seed {seed}"
            );
            assert!(shared == Mode::READER || others <= 2, "seed {seed}: {seen:?}");
            assert!(
                seen.waiting == 0 || !seen.holders.is_empty(),
                "seed {seed}: a free name has waiters"
            );
        }
        for n in 1..=asked {
            b.release(n);
            b.abandon(n);
        }
        assert!(b.is_free(), "seed {seed}: {:?}", b.inspect());
        let (names, queued, _) = b.table.sizes();
        assert_eq!(
            (names, queued, b.table.desk.clients.len()),
            (0, 0, 0),
            "seed {seed}"
        );
    }
}
