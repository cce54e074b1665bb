//! Several stores as one: what their URLs must have in common, and what is looked at when they are opened.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::combinators::Quorum;
use dlock_core::{Error, ErrorKind, Result, Runtime, spi};
use futures::future::try_join_all;

use crate::backends::Opener;
use crate::invalid;

/// With two, neither may be away: less is to be had of them than of one.
const FEWEST: usize = 3;

/// A store that was opened, and may be out of reach.
pub(crate) struct Member {
    pub(crate) backend: Arc<dyn spi::Lock>,
    /// Where it is, without a secret.
    pub(crate) at: String,
    /// Of two members that have the same it is certain that they are one store.
    pub(crate) identity: Option<Arc<str>>,
    /// Whether it can be used now.
    pub(crate) ready: Result<()>,
}

/// Checks what can be without asking a store.
pub(crate) fn check(members: &[Opener]) -> Result<()> {
    if members.len() < FEWEST {
        return Err(invalid(format!(
            "a quorum has {FEWEST} members or more, and {} are given: with fewer, none may be away",
            members.len()
        )));
    }
    let mut before: Vec<(String, Option<&str>)> = Vec::new();
    for member in members {
        let (at, prefix) = member.of_a_quorum()?;
        if before.iter().any(|(other, _)| *other == at) {
            return Err(one_store(&at, &at));
        }
        // Of different backends: each calls it by another name, and has its own.
        let kin = |other: &&Opener| std::mem::discriminant(*other) == std::mem::discriminant(member);
        let n = members.iter().take(before.len()).rposition(|other| kin(&other));
        if n.is_some_and(|n| before[n].1 != prefix) {
            return Err(invalid(
                "the members' URLs differ in their prefix: locks of one name would be different locks",
            ));
        }
        before.push((at, prefix));
    }
    Ok(())
}

fn one_store(one: &str, other: &str) -> Error {
    let what = match one == other {
        true => format!("two of the members' URLs lead to {one}"),
        false => format!("{one} and {other} are one server"),
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
            return Err(one_store(&other.at, &member.at));
        }
    }
    let (all, majority) = (opened.len(), opened.len() / 2 + 1);
    let mut backends = Vec::new();
    let mut away = None;
    let mut there = 0;
    for member in opened {
        match member.ready {
            Ok(()) => there += 1,
            // Out of reach. A password that is wrong or a server that is none for locks is nothing that
            // passes.
            Err(e) if e.is_retryable() => away = Some(e),
            Err(e) => return Err(e),
        }
        backends.push(member.backend);
    }
    match away {
        Some(e) if there < majority => Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "{there} of the {all} members of the quorum can be used now, and it takes {majority}; of \
                    another one: {e}"
            ),
        )),
        _ => Ok(Arc::new(Quorum::new(backends, runtime, patience)?)),
    }
}
