//! Waiting for a condition instead of for a time.

use std::fmt::Display;
use std::panic::Location;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// Short enough that a fast condition costs nothing noticeable.
const FIRST_INTERVAL: Duration = Duration::from_millis(10);
/// Long enough that a slow condition does not load the API server.
const LONGEST_INTERVAL: Duration = Duration::from_millis(200);

/// Repeats `check` until it succeeds, and returns what it found.
///
/// The error of `check` says what was seen instead; the last one is part of the panic message.
///
/// # Panics
///
/// When `deadline` has passed, with `what`, the caller's place and what was last seen.
#[track_caller]
pub fn eventually<T, E, F, Fut>(what: &str, deadline: Duration, mut check: F) -> impl Future<Output = T>
where
    E: Display,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    // An async fn would lose the caller's place, which is the line one wants to see.
    let caller = Location::caller();
    async move {
        match within(deadline, &mut check).await {
            Ok(found) => found,
            Err(seen) => panic!("not within {deadline:?}: {what} (at {caller}); last seen: {seen}"),
        }
    }
}

/// As [`eventually`], for callers that say themselves what is wrong: the error is what was last seen.
pub(crate) async fn within<T, E, F, Fut>(deadline: Duration, mut check: F) -> Result<T, String>
where
    E: Display,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let end = Instant::now() + deadline;
    let mut interval = FIRST_INTERVAL;
    let mut seen = String::from("nothing yet: the first look did not end");
    loop {
        match timeout_at(end, check()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(other)) => seen = other.to_string(),
            Err(_) => {}
        }
        if Instant::now() >= end {
            return Err(seen);
        }
        sleep(interval).await;
        interval = (interval * 2).min(LONGEST_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn returns_what_the_check_found() {
        let mut looks = 0;
        let found = eventually("the third look succeeds", Duration::from_secs(5), || {
            looks += 1;
            let look = looks;
            async move { if look == 3 { Ok(look) } else { Err(format!("look {look}")) } }
        })
        .await;
        assert_eq!(found, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "it rains")]
    async fn panics_with_what_was_seen_last() {
        eventually("the sun shines", Duration::from_millis(20), || async { Err::<(), _>("it rains") }).await;
    }

    #[tokio::test]
    #[should_panic(expected = "the sun shines")]
    async fn a_check_that_hangs_does_not_outlive_the_deadline() {
        eventually("the sun shines", Duration::from_millis(20), || {
            std::future::pending::<Result<(), String>>()
        })
        .await;
    }
}
