//! Planted bugs: proof that the conformance kit bites.
//!
//! Each is one `if` in the reference backend or in the engine, asked as `self.bug.is(Bug::…)`. They exist
//! only in a build with `--cfg dlock_saboteur`; in any other, `is` is a constant `false` and nothing can be
//! planted.

mod bugs;

pub use self::bugs::Bug;

/// Which bug is planted, if any.
#[cfg(dlock_saboteur)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Planted(Option<Bug>);

#[cfg(dlock_saboteur)]
impl Planted {
    /// No bug.
    pub const NONE: Self = Self(None);

    /// Plants a bug.
    pub const fn new(bug: Bug) -> Self {
        Self(Some(bug))
    }

    /// Whether that bug is planted.
    pub fn is(self, bug: Bug) -> bool {
        self.0 == Some(bug)
    }
}

/// Which bug is planted: none, in this build.
#[cfg(not(dlock_saboteur))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Planted;

#[cfg(not(dlock_saboteur))]
impl Planted {
    /// No bug.
    pub const NONE: Self = Self;

    /// Always `false` in this build.
    #[inline(always)]
    pub const fn is(self, _: Bug) -> bool {
        false
    }
}
