use super::Lock;
use crate::capabilities::{Capabilities, Capability};
use crate::error::{Error, ErrorKind, Result};

/// Returns everything that a backend can do: what it [claims](Lock::capabilities), and what follows from its
/// parts.
///
/// | part | capabilities that follow |
/// |---|---|
/// | [`Lock::renew`] | `Renew` |
/// | [`Lock::rwlock`] | `Downgrade` |
/// | [`Lock::fencing`] | `Fencing`, with its strength; `Gate`, if there is one |
/// | [`Lock::watch`] | `Watch`, `Inspect`, `ForceRelease` |
///
/// Without the part these capabilities are not there, whatever the backend claims. A capability that a
/// backend withdrew with [`Capabilities::without`] is not there either, even with the part: for a store that
/// can be inspected but not watched, for example.
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
    let mut all = backend.capabilities().clone();
    for (_, is_there, following, _) in parts(backend) {
        all = following.iter().fold(all, |all, c| all.following(*c, is_there));
    }
    if let Some(fencing) = backend.fencing().filter(|_| all.has(Capability::Fencing)) {
        all.strength = Some(fencing.strength());
    }
    all.settled()
}

/// Refuses a backend that claims what it hands out no part for.
pub(crate) fn check_parts(backend: &dyn Lock) -> Result<()> {
    let claims = backend.capabilities();
    for (part, is_there, following, others) in parts(backend) {
        let claimed = following.iter().chain(others).find(|c| claims.has(**c));
        if let Some(capability) = claimed.filter(|_| !is_there) {
            let backend = claims.backend;
            let message = format!(
                "the backend {backend} claims {capability:?} but has no {part} part for \
                it"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
    }
    Ok(())
}

/// The name of a part, whether it is there, which capabilities follow from it, and which others need it.
type Part = (&'static str, bool, &'static [Capability], &'static [Capability]);

fn parts(backend: &dyn Lock) -> [Part; 5] {
    use Capability::{Downgrade, Fencing, ForceRelease, Gate, Inspect};
    use Capability::{List, Queue, Raise, Renew, Upgrade, Watch};
    let fencing = backend.fencing();
    let gate = fencing.and_then(|f| f.gate());
    [
        // A queue entry has a lease of its own, which is renewed like any other.
        ("Renew", backend.renew().is_some(), &[Renew], &[Queue]),
        ("RwLock", backend.rwlock().is_some(), &[Downgrade], &[Upgrade]),
        ("Fencing", fencing.is_some(), &[Fencing], &[Raise]),
        ("FenceGate", gate.is_some(), &[Gate], &[]),
        (
            "Watch",
            backend.watch().is_some(),
            &[Watch, Inspect, ForceRelease],
            &[List],
        ),
    ]
}
