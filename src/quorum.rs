//! Several stores as one: checks of their URLs, and of the stores when they are opened.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::combinators::Quorum;
use dlock_core::{Error, ErrorKind, Result, Runtime, spi};
use futures::future::try_join_all;

use crate::backends::Opener;
use crate::invalid;

/// With two members neither may be away, so that two are worse than one.
const FEWEST: usize = 3;

/// A store that was opened, and may be out of reach.
pub(crate) struct Member {
    pub(crate) backend: Arc<dyn spi::Lock>,
    /// Its address, without a secret.
    pub(crate) at: String,
    /// Two members with the same identity are certainly one store.
    pub(crate) identity: Option<Arc<str>>,
    /// Whether it can be used now.
    pub(crate) ready: Result<()>,
}

/// Checks everything that can be checked without asking a store.
pub(crate) fn check(members: &[Opener]) -> Result<()> {
    if members.len() < FEWEST {
        return Err(invalid(format!(
            "a quorum needs at least {FEWEST} members, but {} are given",
            members.len()
        )));
    }
    let mut before: Vec<(String, Option<&str>)> = Vec::new();
    for member in members {
        let (at, prefix) = member.member_address()?;
        if before.iter().any(|(other, _)| *other == at) {
            return Err(same_store(&at, &at));
        }
        // Different backends have options of different names, and separate prefixes.
        let kin = |other: &&Opener| std::mem::discriminant(*other) == std::mem::discriminant(member);
        let n = members.iter().take(before.len()).rposition(|other| kin(&other));
        if n.is_some_and(|n| before[n].1 != prefix) {
            return Err(invalid(
                "the members' URLs must not differ in their prefix: a name would be different locks",
            ));
        }
        before.push((at, prefix));
    }
    Ok(())
}

fn same_store(one: &str, other: &str) -> Error {
    let what = match one == other {
        true => format!("two of the members' URLs lead to {one}"),
        false => format!("{one} and {other} are the same server"),
    };
    invalid(format!("{what}: it would have two votes"))
}

/// Opens all of them; a minority may be away.
pub(crate) async fn open(
    mut members: Vec<Opener>,
    patience: Duration,
    runtime: Arc<dyn Runtime>,
) -> Result<Arc<dyn spi::Lock>> {
    Opener::keep_apart(&mut members);
    let opened = members
        .into_iter()
        .map(|member| member.open_member(runtime.clone()));
    let opened = try_join_all(opened).await?;
    for (n, member) in opened.iter().enumerate() {
        let same = |other: &&Member| other.identity.is_some() && other.identity == member.identity;
        if let Some(other) = opened[..n].iter().find(same) {
            return Err(same_store(&other.at, &member.at));
        }
    }
    let (all, majority) = (opened.len(), opened.len() / 2 + 1);
    let mut backends = Vec::new();
    let mut away = None;
    let mut there = 0;
    for member in opened {
        match member.ready {
            Ok(()) => there += 1,
            // Out of reach, which may pass. A wrong password or an unsuitable server does not.
            Err(e) if e.is_retryable() => away = Some(e),
            Err(e) => return Err(e),
        }
        backends.push(member.backend);
    }
    match away {
        Some(e) if there < majority => Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "only {there} of the {all} members of the quorum can be used now, and a majority is \
                    {majority}; another one: {e}"
            ),
        )),
        _ => Ok(Arc::new(Quorum::new(backends, runtime, patience)?)),
    }
}
