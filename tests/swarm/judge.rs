//! Whether what was seen may have been.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use crate::Plan;
use crate::ledger::{End, Grant, Ledger};
use crate::processes::Told;
use crate::storm::Seen;

/// The server counts whole milliseconds.
const ROUND: u64 = 2_000_000;

/// A hold as its process believed in it.
struct Belief<'a> {
    id: &'a str,
    token: u64,
    from: u64,
    until: u64,
    released: Option<u64>,
}

/// Delays of one kind.
#[derive(Default)]
struct Delays {
    all: Vec<u64>,
    bound: u64,
}

fn ms(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

pub(crate) fn judge(plan: &Plan, seen: &Seen) -> Result<String, String> {
    let Seen { ledger, told, late } = seen;
    let nanos = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    let slack = nanos(plan.slack) + 4 * nanos(*late);
    if let Some(wrong) = ledger.wrong.first() {
        return Err(format!("{wrong} ({} such things)", ledger.wrong.len()));
    }
    let of = |id: &str| told.iter().find(|t| id.starts_with(&t.client));
    grants_are_in_order(ledger, &of)?;
    let beliefs = beliefs(told)?;
    beliefs_are_of_grants(ledger, &beliefs)?;
    no_two_clients_believe_at_once(&beliefs)?;
    all_are_served(ledger, told, &beliefs)?;
    let mut delays = hand_overs(plan, ledger, &of, slack)?;
    stops_cost_one_window(ledger, told)?;
    delays.insert(
        "release, as the two processes see it",
        between_processes(ledger, &beliefs),
    );
    Ok(table(&delays))
}

/// Tokens grow; nobody is granted twice, left out or passed over, but those who were hit.
fn grants_are_in_order<'a>(ledger: &'a Ledger, of: &impl Fn(&str) -> Option<&'a Told>) -> Result<(), String> {
    for pair in ledger.grants.windows(2) {
        if pair[0].token >= pair[1].token {
            return Err(format!(
                "the token {} is granted after {}",
                pair[1].token, pair[0].token
            ));
        }
    }
    let was_hit = |id: &str, at: u64| of(id).is_none_or(|told| told.was_hit_before(at));
    let mut before: HashMap<&str, &Grant> = HashMap::new();
    for grant in &ledger.grants {
        if let Some(first) = before.insert(&grant.id, grant) {
            let lost_its_turn = matches!(first.ended, Some((_, End::RanOut))) && was_hit(&grant.id, grant.at);
            if !lost_its_turn {
                return Err(format!("{} is granted twice: {first:?}, {grant:?}", grant.id));
            }
        }
        if let Some((at, End::RanOut)) = grant.ended
            && !was_hit(&grant.id, at)
        {
            return Err(format!(
                "the hold of a process that lives ran out: {grant:?}, arrived {:?}, killed {:?}; that \
                    process then: {:?}",
                ledger.arrived.get(&grant.id),
                of(&grant.id).map(|told| told.killed),
                of(&grant.id).map(|told| around(told, grant))
            ));
        }
    }
    match ledger.oddities.iter().find(|odd| !was_hit(&odd.id, odd.at)) {
        Some(odd) => Err(format!("a waiter that lives was passed over: {odd:?}")),
        None => Ok(()),
    }
}

/// What a process said of that grant, and from just before it to just after its end.
fn around<'a>(told: &'a Told, grant: &Grant) -> Vec<&'a str> {
    let at = |line: &str| {
        let nth = if line.starts_with('g') { 3 } else { 2 };
        line.split(' ').nth(nth).and_then(|word| word.parse::<u64>().ok())
    };
    let near = grant.at.saturating_sub(20_000_000)..grant.expires + 50_000_000;
    let lines = told.lines.iter().map(String::as_str);
    lines
        .filter(|line| {
            line.starts_with('f') || line.contains(&grant.id) || at(line).is_some_and(|at| near.contains(&at))
        })
        .collect()
}

/// What the processes wrote down.
fn beliefs(told: &[Told]) -> Result<Vec<Belief<'_>>, String> {
    let mut all = Vec::new();
    for told in told {
        let mut held: HashMap<&str, Belief<'_>> = HashMap::new();
        for line in &told.lines {
            let mut words = line.split(' ');
            let (kind, id) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let numbers: Vec<u64> = words.map_while(|w| w.parse().ok()).collect();
            match (kind, numbers.as_slice()) {
                ("g", [token, now, deadline]) => {
                    let (token, from, until, released) = (*token, *now, *deadline, None);
                    let belief = Belief {
                        id,
                        token,
                        from,
                        until,
                        released,
                    };
                    if held.insert(id, belief).is_some() {
                        return Err(format!("{id} was told twice that it is granted"));
                    }
                }
                ("r", [now, deadline]) => {
                    if let Some(belief) = held.get_mut(id) {
                        belief.until = *now.min(deadline);
                        belief.released = Some(*now);
                    }
                }
                ("f", _) if told.stops.is_empty() => {
                    return Err(format!("a process that nobody stopped: {line}"));
                }
                _ => {}
            }
        }
        for belief in held.values_mut() {
            belief.until = belief.until.min(told.killed.unwrap_or(u64::MAX));
        }
        all.extend(held.into_values());
    }
    all.sort_by_key(|belief| belief.from);
    Ok(all)
}

fn beliefs_are_of_grants(ledger: &Ledger, beliefs: &[Belief<'_>]) -> Result<(), String> {
    let granted: HashMap<u64, &str> = ledger.grants.iter().map(|g| (g.token, g.id.as_str())).collect();
    match beliefs.iter().find(|b| granted.get(&b.token) != Some(&b.id)) {
        Some(b) => Err(format!(
            "{} believes in a grant with token {}, which the server gave to {:?}",
            b.id,
            b.token,
            granted.get(&b.token)
        )),
        None => Ok(()),
    }
}

fn no_two_clients_believe_at_once(beliefs: &[Belief<'_>]) -> Result<(), String> {
    let mut last: Option<&Belief<'_>> = None;
    // Of one that was killed before it could believe there is nothing left.
    for belief in beliefs.iter().filter(|b| b.from < b.until) {
        if let Some(before) = last
            && before.until > belief.from
        {
            let both = ms(before.until - belief.from);
            return Err(format!(
                "{} and {} both believe in the lock, for {both} ms",
                before.id, belief.id
            ));
        }
        last = Some(belief);
    }
    Ok(())
}

fn all_are_served(ledger: &Ledger, told: &[Told], beliefs: &[Belief<'_>]) -> Result<(), String> {
    let served: HashMap<&str, &Belief<'_>> = beliefs.iter().map(|b| (b.id, b)).collect();
    for told in told.iter().filter(|t| t.killed.is_none()) {
        if told.lines.last().is_none_or(|line| line != "end") {
            return Err("a process that was not killed has waiters that were never served".to_owned());
        }
        if !told.stops.is_empty() {
            // What was lost by a stop was asked for anew, under another number; all have ended.
            continue;
        }
        let mut of_it = ledger.arrived.keys().filter(|id| id.starts_with(&told.client));
        if let Some(id) = of_it.find(|id| !served.contains_key(id.as_str())) {
            return Err(format!("{id} arrived, and was never served"));
        }
    }
    Ok(())
}

/// From each end of a hold to the next grant; and from what was done to the holder.
fn hand_overs<'a>(
    plan: &Plan,
    ledger: &'a Ledger,
    of: &impl Fn(&str) -> Option<&'a Told>,
    slack: u64,
) -> Result<BTreeMap<&'static str, Delays>, String> {
    let nanos = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    let (ttl, window) = (nanos(plan.ttl), nanos(plan.window));
    let mut all: BTreeMap<&'static str, Delays> = BTreeMap::new();
    for pair in ledger.grants.windows(2) {
        let (grant, next) = (&pair[0], &pair[1]);
        let told = of(&grant.id).ok_or_else(|| format!("{} is of no process", grant.id))?;
        // To a dead process nothing is given once the server knows that its connection is gone.
        if told.killed.is_some_and(|killed| grant.at > killed + slack) {
            return Err(format!(
                "granted to a process that had been dead for {} ms: {grant:?}",
                ms(grant.at - told.killed.unwrap_or(0))
            ));
        }
        let Some((end, how)) = grant.ended else {
            return Err(format!("another is granted, and this hold has no end: {grant:?}"));
        };
        if grant.waiting == 0 {
            continue;
        }
        let gap = next.at.saturating_sub(end);
        let hit = told.killed.into_iter().chain(
            told.stops
                .iter()
                .filter(|(_, until)| *until > grant.at)
                .map(|(from, _)| *from),
        );
        let hit = hit.min().unwrap_or(0).max(grant.at);
        let delay = next.at.saturating_sub(hit);
        let (kind, delay, bound) = match (how, told.killed.is_some(), grant.provisional) {
            (End::Released, _, _) => ("release, at the server", gap, slack),
            (End::RanOut, true, true) => ("killed before it claimed its turn", delay, window + slack),
            (End::RanOut, true, false) => ("killed while it held", delay, ttl + slack),
            (End::RanOut, false, true) => ("stopped before it claimed its turn", delay, window + slack),
            (End::RanOut, false, false) => ("stopped while it held", delay, ttl + slack),
        };
        let delays = all.entry(kind).or_default();
        delays.all.push(delay);
        delays.bound = bound;
        if delay > bound + ROUND || gap > slack + ROUND {
            return Err(format!(
                "{kind}: the next one had the lock {:.0} ms later, {:.0} ms after that hold had ended; \
                    allowed are {:.0} ms, {:.0} ms of them slack: {grant:?}, {next:?}",
                ms(delay),
                ms(gap),
                ms(bound),
                ms(slack)
            ));
        }
    }
    Ok(all)
}

/// Of the many that a stopped process has in line only the first costs anything.
fn stops_cost_one_window(ledger: &Ledger, told: &[Told]) -> Result<(), String> {
    for told in told {
        for (from, until) in &told.stops {
            let until = told.killed.unwrap_or(u64::MAX).min(*until);
            let unclaimed = |g: &&Grant| {
                let ran_out = matches!(g.ended, Some((_, End::RanOut)));
                g.provisional && ran_out && g.id.starts_with(&told.client) && (*from..until).contains(&g.at)
            };
            let unclaimed: Vec<_> = ledger.grants.iter().filter(unclaimed).collect();
            if unclaimed.len() > 1 {
                return Err(format!(
                    "a process that was stopped had its turn {} times: {unclaimed:?}",
                    unclaimed.len()
                ));
            }
        }
    }
    Ok(())
}

/// From before the release to when the next one knows, where both were left alone.
fn between_processes(ledger: &Ledger, beliefs: &[Belief<'_>]) -> Delays {
    let by_token: HashMap<u64, &Belief<'_>> = beliefs.iter().map(|b| (b.token, b)).collect();
    let pairs = ledger
        .grants
        .windows(2)
        .filter(|pair| pair[0].waiting > 0 && matches!(pair[0].ended, Some((_, End::Released))));
    let gap = |pair: &[Grant]| {
        let released = by_token.get(&pair[0].token)?.released?;
        by_token.get(&pair[1].token)?.from.checked_sub(released)
    };
    Delays {
        all: pairs.filter_map(gap).collect(),
        bound: 0,
    }
}

/// What happened, whether or not it may have.
pub(crate) fn figures(Seen { ledger, told, late }: &Seen) -> String {
    let killed = told.iter().filter(|t| t.killed.is_some()).count();
    let stops: usize = told.iter().map(|t| t.stops.len()).sum();
    format!(
        "{:>7}  requests at one lock, of {} processes\n{:>7}  grants\n{killed:>7}  processes \
            killed\n{stops:>7}  stops\n\
         {:>7}  ms this machine was late by at worst",
        ledger.arrived.len(),
        told.len(),
        ledger.grants.len(),
        late.as_millis(),
    )
}

fn table(delays: &BTreeMap<&'static str, Delays>) -> String {
    let mut text = "      0  grants out of order, twice, to nobody or beside another\n\n\
        | hand-over after | how many | median | slowest | allowed |\n|---|---|---|---|---|\n"
        .to_owned();
    for (kind, Delays { all, bound }) in delays {
        let mut all = all.clone();
        all.sort_unstable();
        let [median, slowest] =
            [all.len() / 2, all.len().saturating_sub(1)].map(|n| ms(all.get(n).copied().unwrap_or(0)));
        let bound = if *bound > 0 {
            format!("{:.0} ms", ms(*bound))
        } else {
            String::new()
        };
        let _ = writeln!(
            text,
            "| {kind} | {} | {median:.1} ms | {slowest:.1} ms | {bound} |",
            all.len()
        );
    }
    text
}
