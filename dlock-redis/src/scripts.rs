//! The scripts, with the parts that they share put in once.

use redis::{Cmd, Script as Text};

const MINT: &str = include_str!("scripts/mint.lua");
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

    /// Gives it to the server.
    pub(crate) fn load(&self) -> Cmd {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(&self.text);
        load
    }
}

/// A set of scripts, each in the file of its name.
macro_rules! scripts {
    ($scripts:ident in $folder:literal: $($name:ident),*) => {
        #[derive(Debug)]
        pub(crate) struct $scripts {
            $(pub(crate) $name: $crate::scripts::Script,)*
        }

        impl $scripts {
            fn of(script: impl Fn(&str) -> $crate::scripts::Script) -> Self {
                Self { $($name: script(include_str!(concat!($folder, stringify!($name), ".lua"))),)* }
            }

            pub(crate) fn all(&self) -> impl Iterator<Item = &$crate::scripts::Script> {
                [$(&self.$name),*].into_iter()
            }
        }
    };
}
pub(crate) use scripts;

scripts!(Scripts in "scripts/":
    acquire, release, abandon, renew, extend, convert, raise, look, tend, gate, mark);

impl Scripts {
    /// On a cluster a message stays with the slot: `PUBLISH` goes to all nodes, and counts only who listens
    /// at its own.
    pub(crate) fn new(is_spread: bool) -> Self {
        let publish = if is_spread { "'SPUBLISH'" } else { "'PUBLISH'" };
        Self::of(|text| {
            let whole = text.replace("--state\n", STATE).replace("--mint\n", MINT);
            Script::new(whole.replace("'PUBLISH'", publish))
        })
    }
}
