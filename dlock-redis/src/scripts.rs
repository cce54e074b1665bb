//! The scripts, with the parts that they share put in once.

use redis::Script as Text;

const HEAD: &str = include_str!("scripts/head.lua");
const STATE: &str = include_str!("scripts/state.lua");

/// A script, and by what the server knows it.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) hash: String,
    pub(crate) text: String,
}

impl Script {
    pub(crate) fn new(text: String) -> Self {
        let hash = Text::new(&text).get_hash().to_owned();
        Self { hash, text }
    }
}

#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) acquire: Script,
    pub(crate) release: Script,
    pub(crate) abandon: Script,
    pub(crate) renew: Script,
    pub(crate) extend: Script,
    pub(crate) convert: Script,
    pub(crate) raise: Script,
    pub(crate) look: Script,
    pub(crate) tend: Script,
    pub(crate) gate: Script,
    pub(crate) mark: Script,
}

impl Scripts {
    /// On a cluster a message stays with the slot: `PUBLISH` goes to all nodes, and counts only who listens
    /// at its own.
    pub(crate) fn new(is_spread: bool) -> Self {
        let publish = if is_spread { "'SPUBLISH'" } else { "'PUBLISH'" };
        let shared = HEAD.to_owned() + STATE;
        let whole =
            |text: &str| Script::new(text.replace("--state\n", &shared).replace("'PUBLISH'", publish));
        Self {
            acquire: whole(include_str!("scripts/acquire.lua")),
            release: whole(include_str!("scripts/release.lua")),
            abandon: whole(include_str!("scripts/abandon.lua")),
            renew: whole(include_str!("scripts/renew.lua")),
            extend: whole(include_str!("scripts/extend.lua")),
            convert: whole(include_str!("scripts/convert.lua")),
            raise: whole(include_str!("scripts/raise.lua")),
            look: whole(include_str!("scripts/look.lua")),
            tend: whole(include_str!("scripts/tend.lua")),
            gate: whole(include_str!("scripts/gate.lua")),
            mark: whole(include_str!("scripts/mark.lua")),
        }
    }

    pub(crate) fn all(&self) -> [&Script; 11] {
        [
            &self.acquire,
            &self.release,
            &self.abandon,
            &self.renew,
            &self.extend,
            &self.convert,
            &self.raise,
            &self.look,
            &self.tend,
            &self.gate,
            &self.mark,
        ]
    }
}
