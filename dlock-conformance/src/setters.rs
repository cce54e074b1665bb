//! Methods that set a field.

/// Makes a setter for each of these fields: of the argument itself, or of what is made of it.
macro_rules! setters {
    ($($field:ident: $type:ty $(=> $value:expr)?),+ $(,)?) => {$(
        #[doc = concat!("Sets the field `", stringify!($field), "`, which says what it is.")]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $crate::setters::setters!(@value $field $($value)?);
            self
        }
    )+};
    (@value $field:ident) => { $field };
    (@value $field:ident $value:expr) => { $value };
}
pub(crate) use setters;
