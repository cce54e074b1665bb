mod admission;
mod clients;
mod durable;
mod failure;
mod gate;
mod processes;
mod support;
mod watch;
