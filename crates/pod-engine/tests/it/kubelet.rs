//! Compares the pure modules with recordings of a real kubelet.
//!
//! `corpus/` has pods with the steps they go through. `recorded/` has, for each checkpoint and runtime, the status that the kubelet wrote and
//! the state of its runtime. The tests pass the runtime's state to [`status`] and [`plan`]. The provider `cri` does the same with real
//! containers (`providers/cri`); `make e2e-cri` does both with all pods, and records them again.

mod replay;

use std::path::{Path, PathBuf};

use vk_testing::corpus::{Case, Recording};

use replay::Replay;

/// Recordings whose status does not follow from the runtime's state, and why.
const BEYOND: [(&str, &str); 3] = [
    ("resources-more-than-there-are", "refused on sight: the runtime never hears of it"),
    ("node-does-not-match", "refused on sight"),
    ("sysctl-forbidden", "refused on sight"),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/kubelet")
}

fn cases() -> Vec<String> {
    Case::all(&folder().join("corpus"), &[]).into_iter().map(|case| case.name).collect()
}

/// The recorded moments, by runtime and case.
fn recordings() -> Vec<(String, String, Recording)> {
    let mut all = Vec::new();
    for runtime in Recording::names(&folder().join("recorded"), "") {
        let folder = folder().join("recorded").join(&runtime);
        for case in Recording::names(&folder, ".json") {
            let recording = Recording::load(&folder, &case);
            all.push((runtime.clone(), case, recording));
        }
    }
    all
}

#[test]
fn every_case_is_recorded_and_every_recording_has_a_case() {
    let cases = cases();
    assert!(cases.len() >= 40, "only {} cases", cases.len());
    for runtime in Recording::names(&folder().join("recorded"), "") {
        let recorded = Recording::names(&folder().join("recorded").join(&runtime), ".json");
        assert_eq!(recorded, cases, "{runtime}: record them with `make e2e-cri ARGS=--record`");
    }
}

#[test]
fn the_status_of_what_the_runtime_had_is_the_one_that_the_kubelet_wrote() {
    let mut wrong = Vec::new();
    let mut looked_at = 0;
    for (runtime, case, recording) in recordings() {
        if BEYOND.iter().any(|(name, _)| *name == case) {
            continue;
        }
        for replay in Replay::all(&recording) {
            looked_at += 1;
            let found = replay.differences();
            wrong.extend(
                found.into_iter().map(|text| format!("{runtime}: {case}: {}: {text}", replay.name())),
            );
        }
    }
    assert!(looked_at >= 100, "only {looked_at} moments");
    assert!(wrong.is_empty(), "{} differences in {looked_at} moments:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn nothing_is_to_be_done_where_the_kubelet_did_nothing() {
    let mut wrong = Vec::new();
    for (runtime, case, recording) in recordings() {
        if BEYOND.iter().any(|(name, _)| *name == case) {
            continue;
        }
        for replay in Replay::all(&recording).into_iter().filter(Replay::rests) {
            let found = replay.demands();
            wrong.extend(
                found.into_iter().map(|text| format!("{runtime}: {case}: {}: {text}", replay.name())),
            );
        }
    }
    assert!(wrong.is_empty(), "{} demands:\n{}", wrong.len(), wrong.join("\n"));
}
