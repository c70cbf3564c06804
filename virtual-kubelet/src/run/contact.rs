//! The first words with the API server.

use std::time::Duration;

use rand::{SeedableRng as _, rngs::StdRng};
use tokio::time::Instant;
use tracing::warn;
use vk_kube::{Client, Identity, Kind};
use vk_supervisor::{Backoff, Clock};

use crate::cli::Failure;

/// Asks the API server who we are, again and again until it answers or the time is up. `hint` says what to do when it does
/// not know us.
pub(super) async fn first(
    client: &Client,
    limit: Option<Duration>,
    hint: &str,
    clock: &Clock,
) -> Result<Identity, Failure> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    let mut rng = StdRng::from_rng(&mut rand::rng());
    loop {
        let asked = match deadline.zip(limit) {
            Some((deadline, limit)) => {
                let asked = tokio::time::timeout_at(deadline, Identity::fetch(client)).await;
                asked.unwrap_or_else(|_| Err(vk_kube::Error::timeout(limit)))
            }
            None => Identity::fetch(client).await,
        };
        let error = match asked {
            Ok(identity) => return Ok(identity),
            Err(error) => error,
        };
        let server = client.server();
        // Whoever brings no credentials is anonymous, and may not even ask. Others may soon, when the API server is new.
        let anonymous = error.kind == Kind::Forbidden && error.message.contains("system:anonymous");
        if error.kind == Kind::Unauthorized || anonymous {
            return Err(
                anyhow::anyhow!("the API server {server} refuses our credentials: {error} ({hint})").into()
            );
        }
        let wait = backoff.next(error.retry_after, &mut rng);
        if deadline.is_some_and(|deadline| Instant::now() + wait > deadline) {
            let what = if error.kind == Kind::Forbidden { "not let in by" } else { "cannot reach" };
            let hint = advice(&error, clock);
            return Err(anyhow::anyhow!("{what} the API server {server}: {error} ({hint})").into());
        }
        warn!(server, %error, "the API server does not answer: trying again");
        tokio::time::sleep(wait).await;
    }
}

fn advice(error: &vk_kube::Error, clock: &Clock) -> String {
    let untimely = ["certificate expired", "certificate not valid yet"];
    if untimely.iter().any(|words| error.message.contains(words)) {
        let now = clock.now();
        return format!(
            "the clock of this machine shows {now:.0}: set it, or renew the server's certificate"
        );
    }
    let check = if error.kind == Kind::Forbidden { "credentials" } else { "address" };
    format!("check the {check} in the kubeconfig, or give it more time with --startup-timeout")
}

#[cfg(test)]
mod tests {
    use vk_kube::Error;

    use super::*;

    #[test]
    fn a_certificate_out_of_its_time_leads_to_the_clock() {
        let clock = Clock::new(|| "2001-02-03T04:05:06Z".parse().unwrap());
        let untimely =
            Error::new(Kind::Unreachable, "invalid peer certificate: certificate not valid yet: ...");
        assert!(
            advice(&untimely, &clock).contains("shows 2001-02-03T04:05:06Z"),
            "{}",
            advice(&untimely, &clock)
        );
        let silent = Error::new(Kind::Unreachable, "connection refused");
        assert!(advice(&silent, &clock).contains("address"));
    }
}
