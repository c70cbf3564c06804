//! Waits for a condition instead of a fixed time.

use std::fmt::Display;
use std::panic::Location;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// Short enough for conditions that hold soon.
const FIRST_INTERVAL: Duration = Duration::from_millis(10);
/// Long enough not to load the API server.
const LONGEST_INTERVAL: Duration = Duration::from_millis(200);

/// Repeats `check` until it succeeds, and returns its result.
///
/// The panic message contains the last error of `check`.
///
/// # Panics
///
/// When `deadline` has passed, with `what`, the caller's location and the last error.
#[track_caller]
pub fn eventually<T, E, F, Fut>(what: &str, deadline: Duration, mut check: F) -> impl Future<Output = T>
where
    E: Display,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    // An async fn would lose the caller's location.
    let caller = Location::caller();
    async move {
        match within(deadline, &mut check).await {
            Ok(found) => found,
            Err(seen) => panic!("not within {deadline:?}: {what} (at {caller}); last seen: {seen}"),
        }
    }
}

/// As [`eventually`], but returns the last error instead of panicking.
pub(crate) async fn within<T, E, F, Fut>(deadline: Duration, mut check: F) -> Result<T, String>
where
    E: Display,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let end = Instant::now() + deadline;
    let mut interval = FIRST_INTERVAL;
    let mut seen = String::from("nothing: the first check did not return");
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
        let mut checks = 0;
        let found = eventually("the third check succeeds", Duration::from_secs(5), || {
            checks += 1;
            let check = checks;
            async move { if check == 3 { Ok(check) } else { Err(format!("check {check}")) } }
        })
        .await;
        assert_eq!(found, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "it rains")]
    async fn panics_with_the_last_error() {
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
