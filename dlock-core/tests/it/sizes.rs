//! Callers move futures about: they stay small, and what is rare in them is in a box.

use crate::world::*;

#[test]
fn futures_of_the_user_api_are_small() {
    simulate(|w| async move {
        let lock = w.client().lock("a").unwrap();
        let guard = lock.acquire().await.unwrap();
        // A span holds the future that it is around twice.
        let acquire = if cfg!(feature = "tracing") { 1300 } else { 650 };
        let renew = size_of_val(&guard.renew());
        for (what, size, limit) in [
            ("acquire", size_of_val(&lock.acquire()), acquire),
            ("renew", renew, 300),
            ("release", size_of_val(&guard.release()), 300),
        ] {
            assert!(size <= limit, "{what}: {size} bytes");
        }
    });
}
