//! The invariants of a simulated run, checked while it runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures::FutureExt;

use super::node::SimRuntime;
use super::world::{World, lock};
use crate::combinators::Quorum;
use crate::gate::{Access, FencedValue};
use crate::guard::Guard;
use crate::inspection::Holder;
use crate::mode::Mode;
use crate::name::LockName;
use crate::runtime::Runtime as _;
use crate::spi::{LeaseKey, Lock};
use crate::timestamp::Timestamp;
use crate::token::Token;

/// The judge sees every guard of every client at once, which is impossible in a real system.
///
/// 1. No two valid guards of one name conflict.
/// 2. A guard that was lost is never valid again.
/// 3. A valid guard is backed by the store: its id holds, in its mode, for at least as long as the guard
///    believes. Where it is a quorum's, by a majority of the stores.
/// 4. Tokens grow: one of an acquisition that began after another had returned is not smaller; exclusive ones
///    are larger.
/// 5. A valid guard is admitted by the fence; it never admits a token below one that came with exclusive
///    access.
/// 6. A guard whose deadline has passed learns it, even if nobody asks.
///
/// It reads deadlines and clocks, and asks no guard whether it is valid, since the question itself would make
/// a guard notice its loss.
///
/// A store that forgets starts a new age, as its [`Strength`](crate::Strength) allows: only rule 2 applies to
/// what was acquired in an earlier age.
pub(super) struct Judge {
    world: Arc<World>,
    backing: Backing,
    books: Mutex<Books>,
}

/// The stores themselves, without a network.
pub(super) enum Backing {
    /// The one store.
    Store(Arc<dyn Lock>),
    /// The stores of a quorum, and each client's quorum by the client's name.
    Majority(Vec<Arc<dyn Lock>>, Mutex<BTreeMap<String, Arc<Quorum>>>),
    /// Stores that lose leases, so that grants cannot be checked.
    Forgetful,
}

#[derive(Default)]
struct Books {
    guards: Vec<Seen>,
    names: BTreeMap<LockName, Marks>,
    violation: Option<String>,
    grants: u64,
    /// How many times the store has forgotten everything.
    age: u64,
}

struct Seen {
    who: String,
    guard: Weak<Guard>,
    /// Of its client.
    runtime: SimRuntime,
    ended: bool,
    /// In which its acquisition began.
    age: u64,
    /// Since when, by its client's clock, it has been past its deadline without noticing.
    overdue: Option<Timestamp>,
}

/// One look at a guard.
struct Look {
    who: String,
    /// The name of its client.
    client: String,
    guard: Arc<Guard>,
    /// The time left until its deadline.
    left: Duration,
}

impl Seen {
    /// Violations that concern this guard alone.
    fn look(&mut self, guard: &Guard) -> Option<&'static str> {
        let (now, deadline) = (self.runtime.now(), guard.deadline());
        if deadline == Timestamp::ZERO {
            self.ended = true;
        } else if self.ended {
            return Some("was lost and is valid again");
        }
        // A paused client notices when it resumes.
        if self.ended || self.runtime.is_paused() || now < deadline + PROMPT {
            self.overdue = None;
            return None;
        }
        let since = *self.overdue.get_or_insert(now);
        (now > since + PROMPT).then_some("is past its deadline, and has not been told that it is lost")
    }
}

/// A running client reports a loss within this time after the deadline.
const PROMPT: Duration = Duration::from_millis(100);

/// The largest tokens of a name.
#[derive(Clone, Copy, Default)]
struct Tokens {
    any: u64,
    exclusive: u64,
}

/// The start of an acquisition: after which tokens, in which age of the store.
#[derive(Clone, Copy)]
pub(super) struct Seniority {
    tokens: Tokens,
    age: u64,
}

struct Marks {
    tokens: Tokens,
    gate: FencedValue,
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            tokens: Tokens::default(),
            gate: FencedValue::new(Vec::new(), None, None),
        }
    }
}

impl Judge {
    pub(super) fn new(world: &Arc<World>, backing: Backing) -> Self {
        Self {
            world: world.clone(),
            backing,
            books: Mutex::default(),
        }
    }

    /// Guards of that client are this quorum's.
    pub(super) fn knows(&self, client: &SimRuntime, quorum: &Arc<Quorum>) {
        if let Backing::Majority(_, quorums) = &self.backing {
            lock(quorums).insert(client.node_name().to_owned(), quorum.clone());
        }
    }

    pub(super) fn violation(&self) -> Option<String> {
        lock(&self.books).violation.clone()
    }

    pub(super) fn grants(&self) -> u64 {
        lock(&self.books).grants
    }

    /// The first violation is the one that is reported: later ones may follow from it.
    pub(super) fn condemn(&self, what: String) {
        self.world.note(|| format!("VIOLATION {what}"));
        let at = self.world.now();
        lock(&self.books)
            .violation
            .get_or_insert_with(|| format!("{what} (at {at:?})"));
    }

    /// Call before an acquisition begins.
    pub(super) fn seniority(&self, name: &LockName) -> Seniority {
        let books = lock(&self.books);
        Seniority {
            tokens: books.names.get(name).map_or_else(Tokens::default, |m| m.tokens),
            age: books.age,
        }
    }

    /// Records that the store has lost its memory: leases, tokens, and the state of its gates.
    pub(super) fn store_forgot(&self) {
        let mut books = lock(&self.books);
        books.age += 1;
        books.names.clear();
    }

    /// Records that an acquisition or upgrade that began at `since` has returned this guard.
    pub(super) fn acquired(&self, who: &str, runtime: &SimRuntime, guard: &Arc<Guard>, since: Seniority) {
        let token = guard.token().map_or(0, Token::get);
        self.world.record("held", token);
        self.world
            .note(|| format!("{who} holds {} {} token {token}", guard.name(), guard.mode()));
        let exclusive = guard.mode().is_exclusive();
        let before = since.tokens;
        let in_order = {
            let mut books = lock(&self.books);
            books.grants += 1;
            let of_this_age = since.age == books.age;
            if of_this_age {
                let tokens = &mut books.names.entry(guard.name().clone()).or_default().tokens;
                tokens.any = tokens.any.max(token);
                if exclusive {
                    tokens.exclusive = tokens.exclusive.max(token);
                }
            }
            if !books
                .guards
                .iter()
                .any(|s| s.guard.as_ptr() == Arc::as_ptr(guard))
            {
                books.guards.push(Seen {
                    who: who.to_owned(),
                    guard: Arc::downgrade(guard),
                    runtime: runtime.clone(),
                    ended: false,
                    age: since.age,
                    overdue: None,
                });
            }
            !of_this_age
                || if exclusive {
                    token > before.any
                } else {
                    token >= before.exclusive && token > 0
                }
        };
        if !in_order {
            self.condemn(format!(
                "{who} got token {token} of {} ({}) though {} (exclusive {}) had been given before it asked",
                guard.name(),
                guard.mode(),
                before.any,
                before.exclusive
            ));
        }
        self.check();
    }

    /// Uses the resource behind the lock.
    pub(super) fn write(&self, who: &str, guard: &Guard) {
        let Some(token) = guard.token() else { return };
        let access = if guard.mode().is_exclusive() {
            Access::Exclusive
        } else {
            Access::Shared
        };
        let (valid, admitted, before) = {
            let mut books = lock(&self.books);
            let age = books.age;
            let own = books
                .guards
                .iter()
                .find(|s| s.guard.as_ptr() == std::ptr::from_ref(guard));
            let Some(own) = own.filter(|s| s.age == age) else {
                return;
            };
            let valid = own.runtime.now() < guard.deadline();
            let gate = &mut books.names.entry(guard.name().clone()).or_default().gate;
            let before = (gate.max_any, gate.max_exclusive);
            (valid, gate.admit(token, access).is_admitted(), before)
        };
        self.world.record("write", admitted.into());
        if valid && !admitted {
            self.condemn(format!(
                "{who} is valid with token {token} of {} ({}), but the fence has seen {before:?}",
                guard.name(),
                guard.mode()
            ));
        }
    }

    /// Checks every guard.
    pub(super) fn check(&self) {
        let mut wrong = None;
        let believed: Vec<Look> = {
            let mut books = lock(&self.books);
            books.guards.retain(|s| s.guard.strong_count() > 0);
            let age = books.age;
            let guards = books.guards.iter_mut().filter_map(|s| {
                let guard = s.guard.upgrade()?;
                if let Some(what) = s.look(&guard) {
                    wrong = Some(format!("{}'s guard of {} {what}", s.who, guard.name()));
                }
                let left = s.runtime.now().until(guard.deadline());
                (s.age == age && !left.is_zero()).then(|| Look {
                    who: s.who.clone(),
                    client: s.runtime.node_name().to_owned(),
                    guard,
                    left,
                })
            });
            guards.collect()
        };
        if let Some(what) = wrong {
            self.condemn(what);
        }
        for (i, look) in believed.iter().enumerate() {
            match &self.backing {
                Backing::Store(store) => self.check_store(&**store, look),
                Backing::Majority(stores, quorums) => {
                    let quorum = lock(quorums).get(&look.client).cloned();
                    if let Some(quorum) = quorum {
                        self.check_majority(stores, &quorum, look);
                    }
                }
                Backing::Forgetful => {}
            }
            let Look { who, guard, .. } = look;
            for Look {
                who: other,
                guard: rival,
                ..
            } in &believed[..i]
            {
                if rival.name() == guard.name() && conflict(guard.mode(), rival.mode()) {
                    self.condemn(format!(
                        "{who} ({}, token {:?}) and {other} ({}, token {:?}) both hold {}",
                        guard.mode(),
                        guard.token(),
                        rival.mode(),
                        rival.token(),
                        guard.name()
                    ));
                }
            }
        }
        self.check_permits(&believed);
    }

    /// Permits do not conflict in pairs: they are counted.
    fn check_permits(&self, believed: &[Look]) {
        let mut used = BTreeMap::<&LockName, u32>::new();
        for Look { guard, .. } in believed {
            if let Mode::Shared { limit: Some(limit) } = guard.mode() {
                let n = used.entry(guard.name()).or_default();
                *n += 1;
                if *n > limit.get() {
                    self.condemn(format!(
                        "{n} hold {}, of which there are {limit} permits",
                        guard.name()
                    ));
                }
            }
        }
    }

    fn check_store(&self, store: &dyn Lock, look: &Look) {
        let Look { who, guard, left, .. } = look;
        let left = *left;
        let Some(holders) = holders(store, guard.name()) else {
            return;
        };
        match holders.iter().find(|h| h.id == guard.id()) {
            None => self.condemn(format!(
                "{who} believes to hold {} ({}, token {:?}) for {left:?} more, but the store does not know \
                    it",
                guard.name(),
                guard.mode(),
                guard.token()
            )),
            Some(h) if guard.mode().is_exclusive() && !h.mode.is_exclusive() => self.condemn(format!(
                "{who} believes to hold {} exclusively, in the store it is {}",
                guard.name(),
                h.mode
            )),
            // Half a percent for the difference of the two clocks' rates.
            Some(h) if left > h.expires_in + h.expires_in / 150 + Duration::from_micros(1) => {
                self.condemn(format!(
                    "{who} believes to hold {} for {left:?}, the store for {:?}",
                    guard.name(),
                    h.expires_in
                ))
            }
            Some(_) => {}
        }
    }
}

impl Judge {
    fn check_majority(&self, stores: &[Arc<dyn Lock>], quorum: &Quorum, look: &Look) {
        let Look { who, guard, left, .. } = look;
        let Some(inside) = quorum.inside(&LeaseKey::new(guard.name().clone(), guard.id())) else {
            return self.condemn(format!(
                "{who} believes to hold {}, and its quorum does not",
                guard.name()
            ));
        };
        // One percent for the difference of the clocks' rates.
        let is_enough = |h: &Holder| {
            h.id == inside.id
                && (!guard.mode().is_exclusive() || h.mode.is_exclusive())
                && *left <= h.expires_in + h.expires_in / 100 + Duration::from_micros(1)
        };
        let backed = |store: &&Arc<dyn Lock>| {
            let holders = holders(&***store, guard.name());
            holders.is_none_or(|holders| holders.iter().any(is_enough))
        };
        let backing = stores.iter().filter(backed).count();
        if backing < quorum.majority() {
            self.condemn(format!(
                "{who} believes to hold {} ({}, token {:?}) for {left:?} more, and only {backing} of {} \
                    stores do",
                guard.name(),
                guard.mode(),
                guard.token(),
                stores.len()
            ));
        }
    }
}

/// The holders of a name; `None` if they cannot be read now.
fn holders(store: &dyn Lock, name: &LockName) -> Option<Vec<Holder>> {
    // A store in memory answers at once.
    let now = store.watch()?.inspect(name).now_or_never()?.ok()?;
    Some(now.holders)
}

fn conflict(a: Mode, b: Mode) -> bool {
    a.is_exclusive() || b.is_exclusive() || a != b
}
