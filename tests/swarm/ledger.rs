//! Who arrived, was granted and let go, by the server's own commands; and whether a queue may do so.
//!
//! The order of arrival is that in which the requests reached the server, not the place that the scripts gave
//! them.

use std::collections::{BTreeMap, HashMap};

use crate::monitor::Command;

/// A request: the client's number and its own, as 48 hexadecimal digits.
pub(crate) type Id = String;

/// Larger than any place in the queue: who is behind it could not be reached.
const AWAY: f64 = 4_503_599_627_370_496.0;

/// How a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    RanOut,
}

/// A grant, as the server made it.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) id: Id,
    pub(crate) token: u64,
    pub(crate) at: u64,
    /// It has to be claimed yet.
    pub(crate) provisional: bool,
    /// When it runs out, unless it is extended.
    pub(crate) expires: u64,
    pub(crate) ended: Option<(u64, End)>,
    /// How many that had arrived, and were not away, were in the queue when it ended.
    pub(crate) waiting: usize,
}

/// What was seen at the server that needs an excuse.
#[derive(Clone, Debug)]
pub(crate) struct Oddity {
    pub(crate) at: u64,
    #[allow(dead_code)] // it is shown
    pub(crate) what: What,
    pub(crate) id: Id,
}

/// What one who was killed or stopped excuses, and nothing else does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// It could not be reached when its turn came.
    PutAway,
    /// It left the queue without a grant.
    Dropped,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// How the keys of the lock end; what they begin with is the backend's affair.
    holder: Vec<u8>,
    queue: Vec<u8>,
    /// Of all that ever arrived; the number of its arrival.
    pub(crate) arrived: HashMap<Id, (u64, u64)>,
    /// Who is in the queue, by arrival; and who of them is away.
    present: BTreeMap<u64, Id>,
    places: HashMap<Id, (u64, bool)>,
    next: u64,
    pub(crate) grants: Vec<Grant>,
    pub(crate) oddities: Vec<Oddity>,
    /// What can never be.
    pub(crate) wrong: Vec<String>,
    /// The request that the script is about which runs.
    about: Option<Id>,
    left: Option<Id>,
}

fn hex(id: &[u8]) -> Option<Id> {
    (id.len() == 24).then(|| id.iter().map(|b| format!("{b:02x}")).collect())
}

impl Ledger {
    /// Of the lock of that name.
    pub(crate) fn new(name: &str) -> Self {
        let holder = format!("}}:{}:{name}", name.len());
        Self {
            queue: format!("{holder}:q").into_bytes(),
            holder: holder.into_bytes(),
            ..Self::default()
        }
    }

    fn is_holder(&self, key: &[u8]) -> bool {
        key.ends_with(&self.holder)
    }

    /// The grant that stands.
    pub(crate) fn held(&self) -> Option<&Grant> {
        self.grants.last().filter(|grant| grant.ended.is_none())
    }

    /// Who is next.
    pub(crate) fn next_in_line(&self) -> Option<&Id> {
        self.present.values().next()
    }

    pub(crate) fn hear(&mut self, command: &Command) {
        if !command.inner {
            self.turn(command.at);
            self.about = None;
            if command.name() == b"EVALSHA" && self.is_holder(command.word(3)) {
                self.about = hex(command.word(5));
                // An acquire: its mode comes behind owner and ttl.
                if command.word(8).starts_with(b"x:") {
                    self.arrives(command.at);
                }
            }
            return;
        }
        match command.name() {
            b"ZADD" if command.word(1).ends_with(&self.queue) => {
                if let (Some(place), Some(id)) = (command.number(2), hex(command.word(3))) {
                    self.queued(command.at, id, place);
                }
            }
            b"ZREM" if command.word(1).ends_with(&self.queue) => {
                if let Some(id) = hex(command.word(2)) {
                    self.turn(command.at);
                    if let Some((arrival, _)) = self.places.remove(&id) {
                        self.present.remove(&arrival);
                        // Granted, or it is gone: the next command tells.
                        self.left = Some(id);
                    }
                }
            }
            b"SET" if self.is_holder(command.word(1)) => self.written(command),
            b"DEL" if self.is_holder(command.word(1)) => self.ends(command.at),
            b"PEXPIRE" if self.is_holder(command.word(1)) => {
                let life = command.number(2);
                self.extend(command.at, life);
            }
            _ => {}
        }
    }

    fn arrives(&mut self, at: u64) {
        let Some(id) = self.about.clone() else { return };
        // Asked again, it has its place still.
        if self.places.contains_key(&id) || self.grants.last().is_some_and(|grant| grant.id == id) {
            return;
        }
        self.next += 1;
        self.arrived.insert(id, (self.next, at));
    }

    fn queued(&mut self, at: u64, id: Id, place: f64) {
        let away = place >= AWAY;
        match self.places.get_mut(&id) {
            Some((arrival, was_away)) => {
                *was_away = away;
                match away {
                    true => self.present.remove(arrival),
                    false => self.present.insert(*arrival, id.clone()),
                };
            }
            None => {
                let Some((arrival, _)) = self.arrived.get(&id).copied() else {
                    return self.wrong.push(format!("{id} is queued and never arrived"));
                };
                self.places.insert(id.clone(), (arrival, away));
                self.present.insert(arrival, id.clone());
            }
        }
        if away {
            let what = What::PutAway;
            self.oddities.push(Oddity { at, what, id });
        }
    }

    /// Who left the queue, and was not granted by the next command that counts.
    fn turn(&mut self, at: u64) {
        if let Some(id) = self.left.take() {
            let what = What::Dropped;
            self.oddities.push(Oddity { at, what, id });
        }
    }

    fn extend(&mut self, at: u64, life: Option<f64>) {
        if let (Some(grant), Some(life)) = (self.grants.last_mut(), life) {
            grant.expires = at + (life * 1e6) as u64;
            grant.provisional = false;
        }
    }

    /// `1h` or `1p`, the id, the token, a colon and what does not matter here.
    fn written(&mut self, command: &Command) {
        let (at, value) = (command.at, command.word(2));
        let life = command.number(4);
        let id = value.get(2..26).and_then(hex);
        let token = value.get(26..).and_then(|rest| {
            let digits = rest.split(|b| *b == b':').next()?;
            std::str::from_utf8(digits).ok()?.parse().ok()
        });
        let (Some(id), Some(token), Some(life)) = (id, token, life) else {
            return self
                .wrong
                .push("something was written that is no hold".to_owned());
        };
        if self.held().is_some_and(|grant| grant.id == id) {
            return self.extend(at, Some(life));
        }
        self.ends(at);
        if self.left.as_ref() == Some(&id) {
            self.left = None;
        }
        // Or it leaves the queue after it was granted, in the same script.
        if let Some((arrival, _)) = self.places.remove(&id) {
            self.present.remove(&arrival);
        }
        let arrival = self.arrived.get(&id).map(|(arrival, _)| *arrival);
        match (arrival, self.present.first_key_value()) {
            (None, _) => self.wrong.push(format!("{id} is granted and never arrived")),
            (Some(arrival), Some((first, earlier))) if *first < arrival => self.wrong.push(format!(
                "{id}, which arrived as number {arrival}, is granted before {earlier}, which arrived as \
                    number {first} and is there"
            )),
            _ => {}
        }
        self.grants.push(Grant {
            id,
            token,
            at,
            provisional: value.get(1) == Some(&b'p'),
            expires: at + (life * 1e6) as u64,
            ended: None,
            waiting: 0,
        });
    }

    /// The hold that stands ends, if one does.
    fn ends(&mut self, at: u64) {
        let waiting = self.present.len() + usize::from(self.left.is_some());
        let about = self.about.clone();
        let Some(grant) = self.grants.last_mut().filter(|grant| grant.ended.is_none()) else {
            return;
        };
        // The server counts whole milliseconds, from when a script began.
        let ran_out = at + 2_000_000 >= grant.expires;
        let released = about.as_ref() == Some(&grant.id);
        if !released && !ran_out {
            let left = (grant.expires - at) as f64 / 1e6;
            self.wrong.push(format!(
                "{} has {left} ms yet, and its hold is ended by another",
                grant.id
            ));
        }
        let how = if released { End::Released } else { End::RanOut };
        // An expired one ended then, whenever that was noticed.
        let at = if released { at } else { at.min(grant.expires) };
        grant.ended = Some((at, how));
        grant.waiting = waiting;
    }
}
