//! Which planted bug is switched on.

/// Whether that bug is switched on: the one that the environment variable `DLOCK_BUG` names, in a build with
/// planted bugs. In any other build none is.
#[cfg(dlock_saboteur)]
pub(crate) fn on(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("DLOCK_BUG").unwrap_or_default()) == name
}

/// Whether that bug is switched on: never, in this build.
#[cfg(not(dlock_saboteur))]
pub(crate) const fn on(_: &str) -> bool {
    false
}
