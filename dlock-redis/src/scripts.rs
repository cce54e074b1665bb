//! The scripts, with their shared parts inserted.

use std::sync::{Arc, LazyLock};

use redis::{Cmd, Script as Text};

const MINT: &str = include_str!("scripts/mint.lua");
const STATE: &str = include_str!("scripts/state.lua");
const EACH: &str = include_str!("scripts/each.lua");

/// A script, and by what the server knows it.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) hash: Arc<str>,
    pub(crate) text: Arc<str>,
    /// The same for many requests at once, if there is one.
    pub(crate) many: Option<Arc<Self>>,
}

impl Script {
    pub(crate) fn new(text: String) -> Self {
        Self {
            hash: Text::new(&text).get_hash().into(),
            text: text.into(),
            many: None,
        }
    }

    /// Gives it to the server.
    pub(crate) fn load(&self) -> Cmd {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(&*self.text);
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

            /// What a server has to be given.
            pub(crate) fn all(&self) -> impl Iterator<Item = &$crate::scripts::Script> {
                let all = [$(&self.$name),*].into_iter();
                all.flat_map(|script| [Some(script), script.many.as_deref()]).flatten()
            }
        }
    };
}
pub(crate) use scripts;

scripts!(Scripts in "scripts/":
    acquire, release, abandon, renew, extend, convert, raise, look, tend, gate, mark);

impl Scripts {
    /// Those for a server, or for a cluster. They are put together and hashed once in a process.
    pub(crate) fn get(is_spread: bool) -> Arc<Self> {
        static SERVER: LazyLock<Arc<Scripts>> = LazyLock::new(|| Arc::new(Scripts::new(false)));
        static CLUSTER: LazyLock<Arc<Scripts>> = LazyLock::new(|| Arc::new(Scripts::new(true)));
        Arc::clone(if is_spread { &CLUSTER } else { &SERVER })
    }

    /// On a cluster a message stays with the slot: `PUBLISH` goes to all nodes, and counts only who listens
    /// at its own.
    fn new(is_spread: bool) -> Self {
        let publish = if is_spread { "'SPUBLISH'" } else { "'PUBLISH'" };
        let whole = |text: &str| {
            let whole = text.replace("--state\n", STATE).replace("--mint\n", MINT);
            whole.replace("'PUBLISH'", publish)
        };
        let mut all = Self::of(|text| Script::new(whole(text)));
        // On a cluster each slot has a queue of its own, and too few are in one for them to gain.
        if !is_spread {
            for (script, simple) in [
                (&mut all.acquire, include_str!("scripts/acquires.lua")),
                (&mut all.release, include_str!("scripts/releases.lua")),
                (&mut all.abandon, ""),
            ] {
                let each = EACH.replace("--one\n", &script.text);
                script.many = Some(Arc::new(Script::new(each.replace("--simple\n", simple))));
            }
        }
        all
    }
}
