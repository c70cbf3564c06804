use std::{collections::BTreeMap, os::unix::fs::symlink, path::PathBuf};

use jiff::Timestamp;
use rustix::fs::{CWD, Mode, mkfifoat};

use super::*;
use crate::snapshot::Mounted;

/// An ended container whose message is in this file.
fn container(file: &Path, log: &Path, policy: &str) -> Container {
    Container {
        id: "id".to_owned(),
        name: "app".to_owned(),
        attempt: 0,
        sandbox: "sandbox".to_owned(),
        state: ContainerState::Exited,
        created: Timestamp::UNIX_EPOCH,
        started: None,
        finished: None,
        exit_code: 1,
        reason: "Error".to_owned(),
        message: String::new(),
        image: String::new(),
        image_ref: String::new(),
        image_id: String::new(),
        log_path: log.to_str().expect("text").to_owned(),
        user: None,
        mounts: vec![Mounted {
            container_path: "/dev/termination-log".to_owned(),
            host_path: file.to_str().expect("text").to_owned(),
            read_only: false,
        }],
        labels: BTreeMap::new(),
        annotations: BTreeMap::from([
            (annotation::TERMINATION_PATH.to_owned(), "/dev/termination-log".to_owned()),
            (annotation::TERMINATION_POLICY.to_owned(), policy.to_owned()),
        ]),
    }
}

struct Fixture {
    _place: tempfile::TempDir,
    file: PathBuf,
    log: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let dirs = tempfile::tempdir().expect("a directory");
        let (file, log) = (dirs.path().join("message"), dirs.path().join("0.log"));
        fs::write(&file, "").expect("a file");
        let lines: Vec<String> =
            (0..90).map(|n| format!("2026-11-15T16:30:00Z stderr F line {n}\n")).collect();
        fs::write(&log, lines.concat()).expect("a file");
        Self { _place: dirs, file, log }
    }

    async fn message(&self, policy: &str, change: impl FnOnce(&mut Container)) -> String {
        let mut container = container(&self.file, &self.log, policy);
        change(&mut container);
        append_to(&mut container).await;
        container.message
    }
}

#[tokio::test]
async fn the_file_counts_and_the_log_stands_in_where_that_is_wanted() {
    let fixture = Fixture::new();
    let (file, fallback) = ("File", "FallbackToLogsOnError");
    assert_eq!(fixture.message(file, |_| {}).await, "");
    let from_log = fixture.message(fallback, |_| {}).await;
    assert!(from_log.starts_with("line 10\n") && from_log.ends_with("line 89\n"), "{from_log}");
    assert_eq!(fixture.message(fallback, |container| container.exit_code = 0).await, "");
    assert_eq!(fixture.message(fallback, |it| "ContainerCannotRun".clone_into(&mut it.reason)).await, "");
    // Without a file to be found, the log it is.
    assert_eq!(fixture.message(fallback, |it| it.mounts.clear()).await, from_log);
    assert_eq!(fixture.message(file, |it| it.mounts.clear()).await, "");
    let no_path = |it: &mut Container| drop(it.annotations.remove(annotation::TERMINATION_PATH));
    assert_eq!(fixture.message(fallback, no_path).await, from_log);
    fs::write(&fixture.file, "it broke").expect("written");
    for policy in [file, fallback] {
        assert_eq!(fixture.message(policy, |_| {}).await, "it broke");
    }
    let runtime = |it: &mut Container| "killed".clone_into(&mut it.message);
    assert_eq!(fixture.message(file, runtime).await, "killed: it broke");
    // A container that runs has no last words.
    let running = |it: &mut Container| it.state = ContainerState::Running;
    assert_eq!(fixture.message(file, running).await, "");
    fs::remove_file(&fixture.file).expect("removed");
    assert_eq!(fixture.message(file, |_| {}).await, "");
    assert_eq!(fixture.message(fallback, |_| {}).await, from_log);
    fs::remove_file(&fixture.log).expect("removed");
    let error = fixture.message(fallback, |_| {}).await;
    assert!(
        error.starts_with("Error on reading termination message from logs: failed to try resolving"),
        "{error}"
    );
}

#[tokio::test]
async fn only_the_end_of_a_large_file_counts() {
    let fixture = Fixture::new();
    fs::write(&fixture.file, format!("{}{}", "x".repeat(100_000), "y".repeat(4096))).expect("written");
    assert_eq!(fixture.message("File", |_| {}).await, "y".repeat(4096));
    let line = format!("2026-11-15T16:30:00Z stderr F {}\n", "z".repeat(99));
    fs::write(&fixture.log, line.repeat(80)).expect("written");
    fs::write(&fixture.file, "").expect("written");
    assert_eq!(fixture.message("FallbackToLogsOnError", |_| {}).await.len(), 2048);
}

#[tokio::test]
async fn what_is_no_text_is_replaced_byte_by_byte() {
    let fixture = Fixture::new();
    fs::write(&fixture.file, b"a\xff\xfe\xe2\x82b\xe2\x82\xac").expect("written");
    assert_eq!(fixture.message("File", |_| {}).await, "a\u{fffd}\u{fffd}\u{fffd}\u{fffd}b€");
}

#[tokio::test]
async fn a_container_cannot_make_us_wait_or_read_something_else() {
    let fixture = Fixture::new();
    let secret = fixture.file.with_file_name("secret");
    fs::write(&secret, "stolen").expect("a file");
    fs::remove_file(&fixture.file).expect("removed");
    symlink(&secret, &fixture.file).expect("a link");
    let error = fixture.message("File", |_| {}).await;
    assert!(error.starts_with("Error on reading termination log "), "{error}");
    assert!(!error.contains("stolen"), "{error}");
    fs::remove_file(&fixture.file).expect("removed");
    // It has no writer, so a plain read would block forever.
    mkfifoat(CWD, &fixture.file, Mode::from_raw_mode(0o666)).expect("a pipe");
    let error = fixture.message("File", |_| {}).await;
    assert!(error.ends_with("message: not a regular file"), "{error}");
    fs::remove_file(&fixture.file).expect("removed");
    fs::create_dir(&fixture.file).expect("a directory");
    let error = fixture.message("File", |_| {}).await;
    assert!(error.ends_with("message: not a regular file"), "{error}");
}
