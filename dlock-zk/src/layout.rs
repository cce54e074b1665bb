//! How the nodes of a lock are laid out.

/// How the nodes of a lock are laid out.
///
/// All clients of a lock must use one layout: locks of one name in different layouts do not exclude one
/// another, and no error says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// dlock's own layout, with all modes.
    #[default]
    Own,
    /// The layout of Apache Curator's `InterProcessMutex`, so that the two exclude one another while a
    /// service migrates. The lock `orders` below the root `/locks` is Curator's mutex at `/locks/orders`.
    /// Exclusive locks only; every other mode is `Unsupported`. Characters of a name other than letters,
    /// digits, `.`, `-`, `_` and `~` are percent-encoded in the path.
    Curator,
}
