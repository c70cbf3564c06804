//! Lease times, which depend on each other.

use std::time::Duration;

use super::{
    GoDuration, Lease, OnShutdown, Problem, Settings,
    validation::{or, positive},
};

/// Like the kubelet. The controller manager considers a node lost after 50 seconds without renewal.
const DURATION: Duration = Duration::from_secs(40);
/// Like the Kubernetes components with leader election.
const ELECTED_DURATION: Duration = Duration::from_secs(15);
/// The lease counts in seconds and is renewed every quarter.
const MIN: Duration = Duration::from_secs(4);
/// The lease of the API is an int32 of seconds.
const MAX: Duration = Duration::from_secs(i32::MAX as u64);
/// Time between the last write and the end of the lease, for requests in flight.
const MARGIN: Duration = Duration::from_secs(1);
const RETRY_PERIOD: Duration = Duration::from_secs(1);

pub(super) fn resolve(settings: &Settings, problems: &mut Vec<Problem>) -> Lease {
    let leader_elect = settings.leader_elect.unwrap_or(false);
    let duration = or(settings.lease_duration, if leader_elect { ELECTED_DURATION } else { DURATION });
    let shown = GoDuration(duration);
    let mut wrong = |key: &str, message: String| problems.push(Problem::new(key, message));
    // Rounded to milliseconds.
    let thirds = Duration::from_millis(u64::try_from(duration.as_millis() * 2 / 3).unwrap_or(u64::MAX));
    let renew_deadline = or(settings.renew_deadline, thirds);
    let deadline = GoDuration(renew_deadline);
    if duration < MIN {
        wrong(
            "leaseDuration",
            format!("{shown} is too short: write 4s or more, as the lease is renewed every quarter of it"),
        );
    } else if duration > MAX || duration.subsec_nanos() > 0 {
        wrong(
            "leaseDuration",
            format!("{shown} cannot be written into a lease: write whole seconds, fewer than 2^31"),
        );
    } else if renew_deadline + MARGIN > duration {
        let most = GoDuration(duration.saturating_sub(MARGIN));
        wrong(
            "renewDeadline",
            format!(
                "{deadline} is too long: write {most} or less, as leaseDuration is {shown} and requests in flight need a second"
            ),
        );
    } else if renew_deadline < duration / 2 {
        let least = GoDuration(duration / 2);
        wrong(
            "renewDeadline",
            format!(
                "{deadline} is too short: write {least} or more, as the lease of {shown} is renewed every quarter of it"
            ),
        );
    }
    let retry_period = positive("retryPeriod", settings.retry_period, RETRY_PERIOD, problems);
    if duration >= MIN && retry_period >= duration {
        let message =
            format!("{} is too long: write less than leaseDuration, {shown}", GoDuration(retry_period));
        problems.push(Problem::new("retryPeriod", message));
    }
    if leader_elect && settings.shutdown.node == Some(OnShutdown::Delete) {
        let message = "`delete` cannot be combined with leaderElect, because another replica takes over the Node: use `leave`";
        problems.push(Problem::new("shutdown.node", message));
    }
    Lease { leader_elect, duration, renew_deadline, retry_period }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> GoDuration {
        GoDuration(Duration::from_secs(seconds))
    }

    fn good(settings: &Settings) -> Lease {
        let mut problems = Vec::new();
        let lease = resolve(settings, &mut problems);
        assert_eq!(problems, []);
        lease
    }

    fn problem(settings: &Settings) -> String {
        let mut problems = Vec::new();
        resolve(settings, &mut problems);
        let [problem] = problems.as_slice() else { panic!("{problems:?}") };
        problem.to_string()
    }

    #[test]
    fn a_lease_that_replicas_share_is_shorter() {
        let alone = good(&Settings::default());
        assert_eq!((alone.leader_elect, alone.duration.as_secs()), (false, 40));
        assert_eq!(alone.renew_deadline, Duration::from_millis(26_666));
        let shared = good(&Settings { leader_elect: Some(true), ..Settings::default() });
        assert_eq!((shared.duration.as_secs(), shared.renew_deadline.as_secs()), (15, 10));
        assert_eq!(shared.retry_period.as_secs(), 1);
        let own =
            Settings { leader_elect: Some(true), lease_duration: Some(seconds(60)), ..Settings::default() };
        assert_eq!(good(&own).renew_deadline.as_secs(), 40);
        good(&Settings { lease_duration: Some(seconds(4)), ..Settings::default() });
    }

    #[test]
    fn times_that_do_not_fit_together_say_so() {
        let lease = |duration, deadline, retry| Settings {
            lease_duration: Some(seconds(duration)),
            renew_deadline: Some(seconds(deadline)),
            retry_period: Some(seconds(retry)),
            ..Settings::default()
        };
        for (settings, key, words) in [
            (lease(15, 15, 1), "renewDeadline: ", ["15s is too long", "14s or less"]),
            (lease(15, 7, 1), "renewDeadline: ", ["7s is too short", "7s500ms or more"]),
            (lease(15, 10, 15), "retryPeriod: ", ["15s is too long", "leaseDuration, 15s"]),
            (lease(15, 10, 0), "retryPeriod: ", ["more than 0", "10s"]),
            (lease(3, 2, 1), "leaseDuration: ", ["3s is too short", "4s or more"]),
        ] {
            let problem = problem(&settings);
            assert!(problem.starts_with(key), "{problem}");
            assert!(words.iter().all(|word| problem.contains(word)), "{problem}");
        }
    }

    #[test]
    fn replicas_do_not_delete_the_node_that_another_goes_on_with() {
        let mut settings = Settings { leader_elect: Some(true), ..Settings::default() };
        settings.shutdown.node = Some(OnShutdown::Delete);
        let problem = problem(&settings);
        assert!(problem.starts_with("shutdown.node: ") && problem.contains("leaderElect"), "{problem}");
    }
}
