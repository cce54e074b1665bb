//! What all processes together were told, and whether it may be.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlock_core::{Held, Token};

/// A hold that its process may believe in.
struct Hold {
    process: usize,
    name: &'static str,
    shared: bool,
    held: Held,
}

/// The largest tokens of a name.
#[derive(Default)]
struct Tokens {
    /// Granted to a writer, and to anybody.
    exclusive: Option<Token>,
    any: Option<Token>,
    /// Of a write that was admitted.
    written: Option<Token>,
}

#[derive(Default)]
struct State {
    holds: Vec<Hold>,
    tokens: HashMap<&'static str, Tokens>,
    /// Processes that are no more.
    dead: Vec<usize>,
    grants: u32,
    admitted: u32,
    refused: u32,
    wrong: Option<String>,
}

#[derive(Default)]
pub(crate) struct Judge(Mutex<State>);

impl Judge {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn granted(&self, process: usize, name: &'static str, shared: bool, held: &Held) {
        let mut state = self.state();
        if state.dead.contains(&process) {
            return;
        }
        state.holds.push(Hold {
            process,
            name,
            shared,
            held: held.clone(),
        });
        state.grants += 1;
        state.compare();
        // Who was told late and knows it may have been overtaken.
        if !held.is_valid() {
            return;
        }
        let (token, tokens) = (held.token(), state.tokens.entry(name).or_default());
        let before = if shared { tokens.exclusive } else { tokens.any };
        tokens.any = tokens.any.max(token);
        if !shared {
            tokens.exclusive = tokens.exclusive.max(token);
        }
        if token <= before {
            state.wrong(format!("{name}: {token:?} was granted after {before:?}"));
        }
    }

    /// It stops believing, before it lets go.
    pub(crate) fn ends(&self, held: &Held) {
        let mut state = self.state();
        state.compare();
        state.holds.retain(|hold| hold.held.token() != held.token());
    }

    pub(crate) fn dies(&self, process: usize) {
        let mut state = self.state();
        state.holds.retain(|hold| hold.process != process);
        state.dead.push(process);
    }

    /// The largest token of the writes that were admitted so far.
    pub(crate) fn written(&self, name: &'static str) -> Option<Token> {
        self.state().tokens.get(name).and_then(|tokens| tokens.written)
    }

    /// A write was admitted, or was not. What had been admitted before it was sent is the `floor`.
    pub(crate) fn wrote(&self, name: &'static str, token: Token, floor: Option<Token>, admitted: bool) {
        let mut state = self.state();
        if !admitted {
            state.refused += 1;
            return;
        }
        state.admitted += 1;
        let tokens = state.tokens.entry(name).or_default();
        tokens.written = tokens.written.max(Some(token));
        if Some(token) < floor {
            state.wrong(format!(
                "{name}: a write of {token:?} was admitted after one of {floor:?}"
            ));
        }
    }

    /// Something else must not be.
    pub(crate) fn wrong(&self, what: String) {
        self.state().wrong(what);
    }

    /// Looks at all holds, and panics if anything was wrong so far.
    pub(crate) fn check(&self) {
        let mut state = self.state();
        state.compare();
        assert!(state.wrong.is_none(), "{:?}", state.wrong);
    }
}

impl State {
    /// Validity ends once, and all of these were granted before. So if two are valid, one after the other,
    /// both were when the first was looked at.
    fn compare(&mut self) {
        for (n, one) in self.holds.iter().enumerate() {
            for other in &self.holds[n + 1..] {
                let exclude = one.name == other.name && !(one.shared && other.shared);
                if exclude && one.held.is_valid() && other.held.is_valid() {
                    let tokens = (one.held.token(), other.held.token());
                    let wrong = format!("{}: two valid guards, {tokens:?}", one.name);
                    return self.wrong(wrong);
                }
            }
        }
    }

    /// The first thing that was wrong is what is told.
    fn wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }
}

impl fmt::Display for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let State {
            grants,
            admitted,
            refused,
            ..
        } = &*self.state();
        write!(
            f,
            "{grants} grants, {admitted} writes admitted and {refused} refused"
        )
    }
}
