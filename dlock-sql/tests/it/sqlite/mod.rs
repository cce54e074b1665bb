mod admission;
mod support;
