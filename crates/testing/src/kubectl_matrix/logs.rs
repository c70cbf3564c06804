//! `kubectl logs`, with every option.

use super::KubectlSession;
use crate::eventually;

/// Waits until the log has `count` lines.
async fn lines(session: &KubectlSession, pod: &str, count: usize) -> Vec<String> {
    eventually(&format!("the log of {pod} has {count} lines"), super::session::TIMEOUT, || async {
        let output = session.run(&["logs", pod]).await;
        let lines: Vec<String> = output.stdout.lines().map(str::to_owned).collect();
        if output.success() && lines.len() >= count { Ok(lines) } else { Err(format!("{output:?}")) }
    })
    .await
}

/// The whole log, its last lines, no lines, and a byte limit.
pub async fn whole_tail_and_limit(session: &KubectlSession) {
    let all = lines(session, "web", 3).await;
    assert_eq!(session.run_ok(&["logs", "web", "-c", "main"]).await.lines().next(), Some(all[0].as_str()));
    assert_eq!(session.run_ok(&["logs", "web", "--tail=2"]).await.lines().count(), 2);
    assert_eq!(session.run_ok(&["logs", "web", "--tail=0"]).await, "");
    assert!(session.run_ok(&["logs", "web", "--tail=-1"]).await.lines().count() >= all.len());
    assert_eq!(session.run_ok(&["logs", "web", "--limit-bytes=5"]).await, all.join("\n")[..5]);
    let prefixed = session.run_ok(&["logs", "web", "--prefix", "--all-containers", "--tail=1"]).await;
    assert!(prefixed.starts_with("[pod/web/main] "), "{prefixed}");
}

/// Timestamps, and lines since a time.
pub async fn times_and_since(session: &KubectlSession) {
    lines(session, "web", 5).await;
    let stamped = session.run_ok(&["logs", "web", "--timestamps"]).await;
    let time = |line: &str| -> jiff::Timestamp {
        line.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no time: {line}"))
    };
    let times: Vec<jiff::Timestamp> = stamped.lines().map(time).collect();
    assert!(times.is_sorted(), "{times:?}");
    let last = times[times.len() - 1];
    assert!(times[0] < last, "{times:?}");
    let since = session.run_ok(&["logs", "web", "--timestamps", &format!("--since-time={last}")]).await;
    assert!(since.lines().all(|line| time(line) >= last), "{since}");
    assert_eq!(since.lines().next(), stamped.lines().find(|line| time(line) == last), "{since}");
    let recent = session.run_ok(&["logs", "web", "--since=1s"]).await;
    assert!(recent.lines().count() < stamped.lines().count(), "{recent}");
    assert!(session.run_ok(&["logs", "web", "--since=1h"]).await.lines().count() >= times.len());
}

/// Following a log shows new lines.
pub async fn follow(session: &KubectlSession) {
    let before = lines(session, "web", 1).await.len();
    let mut following = session.start(&["logs", "web", "--follow", "--tail=1"]);
    let mut seen = 0;
    following
        .line("three new lines", |_| {
            seen += 1;
            (seen > 3).then_some(())
        })
        .await;
    following.kill().await;
    assert!(lines(session, "web", before + 3).await.len() >= before + 3);
}

/// The log of the previous container instance, also when there is none.
pub async fn previous(session: &KubectlSession) {
    let none = session.run(&["logs", "web", "--previous"]).await;
    assert!(!none.success(), "{none:?}");
    assert!(
        none.stderr.contains("previous terminated container \"main\" in pod \"web\" not found"),
        "{none:?}"
    );
    let command = ["sh", "-c", "echo first; sleep 1; exit 1"].map(str::to_owned);
    let command = if session.target.command.is_empty() { &[][..] } else { &command };
    session.pod("crashing", "Always", &session.target.crashing, command).await;
    let previous = eventually("the instance before has a log", super::session::TIMEOUT, || async {
        let output = session.run(&["logs", "crashing", "--previous"]).await;
        if output.success() && !output.stdout.is_empty() {
            Ok(output.stdout)
        } else {
            Err(format!("{output:?}"))
        }
    })
    .await;
    assert!(previous.lines().count() > 0);
    session.run_ok(&["delete", "pod", "crashing", "--wait=false"]).await;
}

/// An unknown container and an unknown pod.
pub async fn refusals(session: &KubectlSession) {
    let unknown = session.run(&["logs", "web", "-c", "nobody"]).await;
    assert!(!unknown.success() && unknown.stderr.contains("nobody"), "{unknown:?}");
    let missing = session.run(&["logs", "missing"]).await;
    assert!(!missing.success() && missing.stderr.contains("not found"), "{missing:?}");
}
