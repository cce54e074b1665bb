use super::Lock;
use crate::capabilities::{Capabilities, Capability};

/// All that a backend can do: what it [claims](Lock::capabilities), and what follows from its parts.
///
/// | part | capabilities that follow |
/// |---|---|
/// | [`Lock::renew`] | `Renew` |
/// | [`Lock::rwlock`] | `Downgrade` |
/// | [`Lock::fencing`] | `Fencing`, with its strength; `Gate`, if there is one |
/// | [`Lock::watch`] | `Watch`, `Inspect`, `ForceRelease` |
///
/// None of these is there without its part, whatever the backend claims. One that a backend has taken back
/// with [`Capabilities::without`] stays away although the part is there: a store that can be inspected and
/// not watched, say.
///
/// # Examples
/// ```
/// # dlock_core::doc(|_| async {
/// # use dlock_core as dlock;
/// use dlock::spi::capabilities_of;
/// use dlock::{Capability, memory, runtime};
/// let store = memory::Config::new().without(Capability::Watch).connect(runtime::own_thread()?);
/// let all = capabilities_of(&*store.connect());
/// assert!(all.has(Capability::Inspect) && !all.has(Capability::Watch));
/// # Ok(()) });
/// ```
pub fn capabilities_of(backend: &dyn Lock) -> Capabilities {
    let fencing = backend.fencing();
    let watch = backend.watch().is_some();
    let mut all = backend
        .capabilities()
        .clone()
        .following(Capability::Renew, backend.renew().is_some())
        .following(Capability::Downgrade, backend.rwlock().is_some())
        .following(Capability::Fencing, fencing.is_some())
        .following(Capability::Gate, fencing.is_some_and(|f| f.gate().is_some()))
        .following(Capability::Watch, watch)
        .following(Capability::Inspect, watch)
        .following(Capability::ForceRelease, watch);
    if let Some(fencing) = fencing.filter(|_| all.has(Capability::Fencing)) {
        all.strength = Some(fencing.strength());
    }
    all.settled()
}
