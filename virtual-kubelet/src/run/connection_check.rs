//! The first request to the API server.

use std::time::Duration;

use rand::{SeedableRng as _, rngs::StdRng};
use tokio::time::Instant;
use tracing::warn;
use vk_kube::{Client, Identity, Kind};
use vk_supervisor::{Backoff, Clock};

use crate::cli::Failure;

/// Asks the API server for our identity, with retries until it answers or the time limit is reached. `hint` says what to do
/// if it rejects our credentials.
pub(super) async fn wait_for_api_server(
    client: &Client,
    limit: Option<Duration>,
    hint: &str,
    clock: &Clock,
) -> Result<Identity, Failure> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    let mut rng = StdRng::from_rng(&mut rand::rng());
    let mut previous = None;
    loop {
        let asked = match deadline.zip(limit) {
            Some((deadline, limit)) => {
                let asked = tokio::time::timeout_at(deadline, Identity::fetch(client)).await;
                // An answer to an earlier request says more than that the time is up.
                asked.unwrap_or_else(|_| {
                    Err(previous.take().unwrap_or_else(|| vk_kube::Error::timeout(limit)))
                })
            }
            None => Identity::fetch(client).await,
        };
        let error = match asked {
            Ok(identity) => return Ok(identity),
            Err(error) => error,
        };
        let server = client.server();
        // Without credentials we are anonymous and may not even ask. For others Forbidden may be temporary: a new API
        // server creates its roles after it starts.
        let anonymous = error.kind == Kind::Forbidden && error.message.contains("system:anonymous");
        if error.kind == Kind::Unauthorized || anonymous {
            return Err(anyhow::anyhow!(
                "the API server {server} rejected the credentials: {error} ({hint})"
            )
            .into());
        }
        let wait = backoff.next(error.retry_after, &mut rng);
        if deadline.is_some_and(|deadline| Instant::now() + wait > deadline) {
            let what = if error.kind == Kind::Forbidden { "access denied by" } else { "cannot reach" };
            let hint = hint_for(&error, clock);
            return Err(anyhow::anyhow!("{what} the API server {server}: {error} ({hint})").into());
        }
        warn!(server, %error, "cannot reach the API server; retrying");
        previous = Some(error);
        tokio::time::sleep(wait).await;
    }
}

fn hint_for(error: &vk_kube::Error, clock: &Clock) -> String {
    let untimely = ["certificate expired", "certificate not valid yet"];
    if untimely.iter().any(|words| error.message.contains(words)) {
        let now = clock.now();
        return format!("this machine's clock is {now:.0}; correct it, or renew the server's certificate");
    }
    let check = if error.kind == Kind::Forbidden { "credentials" } else { "address" };
    format!("check the {check} in the kubeconfig, or increase --startup-timeout")
}

#[cfg(test)]
mod tests {
    use vk_kube::Error;

    use super::*;

    #[test]
    fn an_expired_certificate_hints_at_the_clock() {
        let clock = Clock::new(|| "2001-02-03T04:05:06Z".parse().unwrap());
        let untimely =
            Error::new(Kind::Unreachable, "invalid peer certificate: certificate not valid yet: ...");
        assert!(
            hint_for(&untimely, &clock).contains("clock is 2001-02-03T04:05:06Z"),
            "{}",
            hint_for(&untimely, &clock)
        );
        let silent = Error::new(Kind::Unreachable, "connection refused");
        assert!(hint_for(&silent, &clock).contains("address"));
    }
}
