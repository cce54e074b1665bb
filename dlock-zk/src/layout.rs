//! How the nodes of a lock are laid out.

/// How the nodes of a lock are laid out.
///
/// All who use a lock must have it the same way: locks of one name in different layouts do not exclude one
/// another, and nobody notices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Dlock's own: all modes.
    #[default]
    Own,
    /// That of Apache Curator's `InterProcessMutex`, so that both exclude one another while a service is
    /// moved from one to the other. The lock `orders` below the root `/locks` is Curator's mutex of the path
    /// `/locks/orders`. Exclusive locks alone; every other mode is `Unsupported`. What is in a name beside
    /// letters, digits, `.`, `-`, `_` and `~` is percent-encoded in the path.
    Curator,
}
