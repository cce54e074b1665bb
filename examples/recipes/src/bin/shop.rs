//! The web service: `DLOCK_URL=... cargo run -p dlock-recipes --bin shop 127.0.0.1:8080`
#![allow(clippy::print_stdout)] // showing is what it is for

use std::error::Error;

use dlock_recipes::{backend, shop, shutdown};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = backend::connect().await?;
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    // First the requests end, and only then the client that they use.
    axum::serve(listener, shop::router(client.clone()))
        .with_graceful_shutdown(async { drop(shutdown::requested().await) })
        .await?;
    client.close().await?;
    Ok(())
}
