//! `Debug` for types with parts that have none, or that say too much.

/// Implements it, with a format and its arguments as `write!` takes them.
macro_rules! shown {
    ($type:ty, $it:ident => $($said:tt)+) => {
        impl ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let $it = self;
                write!(f, $($said)+)
            }
        }
    };
}
pub(crate) use shown;
