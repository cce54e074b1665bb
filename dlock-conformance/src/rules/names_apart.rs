//! Sets of names of which each must be a lock of its own.

use super::prelude::*;

/// Whether a store may say that it takes no such names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// They are names like any other.
    No,
    /// `InvalidInput` is honest; taking one name for another is not.
    InvalidInput,
}

/// Holds all of these at once, sees that each is held under its own name, and that a release ends that one
/// alone.
pub(super) async fn all_apart(cx: &Cx, names: &[LockName], refusal: Refusal) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    let mut held = Vec::new();
    for name in names {
        match a.try_acquire(name, &ask).await {
            Ok(Some(guard)) => held.push((name, guard)),
            Ok(None) => fail!(
                "`{name}` is refused although nobody holds it; held are {:?}: two names are one lock",
                held.iter().map(|(n, _)| *n).collect::<Vec<_>>()
            ),
            Err(e) if refusal == Refusal::InvalidInput && e.kind() == ErrorKind::InvalidInput => {
                cx.evidence("names_refused");
            }
            Err(e) => fail!("acquiring `{name}`: {e} ({:?})", e.kind()),
        }
    }
    for (name, _) in &held {
        cx.expect_held(&*b, name, &ask, "while every name of the set is held")
            .await?;
        cx.evidence("names_held_at_once");
    }
    let mut taken = Vec::new();
    while !held.is_empty() {
        let (name, guard) = held.remove(0);
        guard.release().await.seen(format_args!("releasing `{name}`"))?;
        taken.push(
            cx.expect_free(&*b, name, &ask, "after its own release, the others still held")
                .await?,
        );
        for (other, _) in &held {
            cx.expect_held(&*b, other, &ask, format!("after the release of `{name}`"))
                .await?;
        }
    }
    for guard in taken {
        guard.release().await.seen("the second holder releases")?;
    }
    Ok(())
}

/// The texts as names of this run.
pub(super) fn names(cx: &Cx, endings: &[&str]) -> Vec<LockName> {
    endings.iter().map(|ending| cx.name(ending)).collect()
}

/// A name of this run that is exactly that long, and ends like that.
pub(super) fn name_of_length(cx: &Cx, length: usize, ending: &[u8]) -> LockName {
    let room = length.saturating_sub(cx.namespace().len() + 1 + ending.len());
    let mut bytes = vec![b'n'; room];
    bytes.extend_from_slice(ending);
    cx.name_bytes(bytes)
}
