//! `kubectl logs`, with every option.

use super::Stage;
use crate::eventually;

/// Waits until the log has so many lines.
async fn lines(stage: &Stage, pod: &str, count: usize) -> Vec<String> {
    eventually(&format!("the log of {pod} has {count} lines"), super::stage::PATIENCE, || async {
        let output = stage.run(&["logs", pod]).await;
        let lines: Vec<String> = output.stdout.lines().map(str::to_owned).collect();
        if output.success() && lines.len() >= count { Ok(lines) } else { Err(format!("{output:?}")) }
    })
    .await
}

/// The whole log, its last lines, none of it, so many bytes.
pub async fn whole_tail_and_limit(stage: &Stage) {
    let all = lines(stage, "web", 3).await;
    assert_eq!(stage.good(&["logs", "web", "-c", "main"]).await.lines().next(), Some(all[0].as_str()));
    assert_eq!(stage.good(&["logs", "web", "--tail=2"]).await.lines().count(), 2);
    assert_eq!(stage.good(&["logs", "web", "--tail=0"]).await, "");
    assert!(stage.good(&["logs", "web", "--tail=-1"]).await.lines().count() >= all.len());
    assert_eq!(stage.good(&["logs", "web", "--limit-bytes=5"]).await, all.join("\n")[..5]);
    let prefixed = stage.good(&["logs", "web", "--prefix", "--all-containers", "--tail=1"]).await;
    assert!(prefixed.starts_with("[pod/web/main] "), "{prefixed}");
}

/// Times before lines, and only lines since then.
pub async fn times_and_since(stage: &Stage) {
    lines(stage, "web", 5).await;
    let stamped = stage.good(&["logs", "web", "--timestamps"]).await;
    let time = |line: &str| -> jiff::Timestamp {
        line.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no time: {line}"))
    };
    let times: Vec<jiff::Timestamp> = stamped.lines().map(time).collect();
    assert!(times.is_sorted(), "{times:?}");
    let last = times[times.len() - 1];
    assert!(times[0] < last, "{times:?}");
    let since = stage.good(&["logs", "web", "--timestamps", &format!("--since-time={last}")]).await;
    assert!(since.lines().all(|line| time(line) >= last), "{since}");
    assert_eq!(since.lines().next(), stamped.lines().find(|line| time(line) == last), "{since}");
    let recent = stage.good(&["logs", "web", "--since=1s"]).await;
    assert!(recent.lines().count() < stamped.lines().count(), "{recent}");
    assert!(stage.good(&["logs", "web", "--since=1h"]).await.lines().count() >= times.len());
}

/// A log that is followed shows what comes.
pub async fn follow(stage: &Stage) {
    let before = lines(stage, "web", 1).await.len();
    let mut following = stage.start(&["logs", "web", "--follow", "--tail=1"]);
    let mut seen = 0;
    following
        .line("three new lines", |_| {
            seen += 1;
            (seen > 3).then_some(())
        })
        .await;
    following.kill().await;
    assert!(lines(stage, "web", before + 3).await.len() >= before + 3);
}

/// The log of the instance before, and that there is none.
pub async fn previous(stage: &Stage) {
    let none = stage.run(&["logs", "web", "--previous"]).await;
    assert!(!none.success(), "{none:?}");
    assert!(
        none.stderr.contains("previous terminated container \"main\" in pod \"web\" not found"),
        "{none:?}"
    );
    let command = ["sh", "-c", "echo first; sleep 1; exit 1"].map(str::to_owned);
    let command = if stage.subject.command.is_empty() { &[][..] } else { &command };
    stage.pod("crashing", "Always", &stage.subject.crashing, command).await;
    let previous = eventually("the instance before has a log", super::stage::PATIENCE, || async {
        let output = stage.run(&["logs", "crashing", "--previous"]).await;
        if output.success() && !output.stdout.is_empty() {
            Ok(output.stdout)
        } else {
            Err(format!("{output:?}"))
        }
    })
    .await;
    assert!(previous.lines().count() > 0);
    stage.good(&["delete", "pod", "crashing", "--wait=false"]).await;
}

/// A container that there is not, and a pod that has not started.
pub async fn refusals(stage: &Stage) {
    let unknown = stage.run(&["logs", "web", "-c", "nobody"]).await;
    assert!(!unknown.success() && unknown.stderr.contains("nobody"), "{unknown:?}");
    let missing = stage.run(&["logs", "missing"]).await;
    assert!(!missing.success() && missing.stderr.contains("not found"), "{missing:?}");
}
