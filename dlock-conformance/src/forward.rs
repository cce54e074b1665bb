//! Methods of a wrapper that only pass a call on to what it wraps.

/// Implements these methods by the same methods of that part.
macro_rules! forward {
    ($it:ident => $part:expr; $(fn $method:ident(&self $(, $name:ident: $type:ty)*) -> $answer:ty;)+) => {$(
        fn $method(&$it $(, $name: $type)*) -> $answer {
            $part.$method($($name),*)
        }
    )+};
}
pub(crate) use forward;
