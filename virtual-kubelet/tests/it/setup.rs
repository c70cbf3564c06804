//! The scripts behind make say in one message what is missing.

use std::{path::Path, process::Command};

/// Programs that the scripts may count on. Go is none of them, wherever it is installed.
const ALWAYS_THERE: [&str; 12] =
    ["awk", "bash", "cat", "cut", "dirname", "env", "flock", "head", "mkdir", "sed", "sha256sum", "sort"];

/// Runs a script of `dev/` where only those programs are found.
fn script(path: &str, variables: &[(&str, &str)]) -> (i32, String) {
    let home = tempfile::TempDir::new().unwrap();
    for program in ALWAYS_THERE {
        let found = ["/usr/bin", "/bin"]
            .map(|folder| Path::new(folder).join(program))
            .into_iter()
            .find(|path| path.exists());
        std::os::unix::fs::symlink(found.unwrap(), home.path().join(program)).unwrap();
    }
    let output = Command::new(format!("{}/../dev/{path}", env!("CARGO_MANIFEST_DIR")))
        .env_clear()
        .env("PATH", home.path())
        .env("HOME", home.path())
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn without_go_and_without_ready_binaries_the_build_says_what_to_do() {
    let (code, stderr) = script("control-plane/build", &[]);
    assert_eq!(code, 1, "{stderr}");
    assert_eq!(stderr.matches("error:").count(), 1, "{stderr}");
    for word in ["Go 1.26", "found: none", "VK_CONTROL_PLANE", "kube-apiserver"] {
        assert!(stderr.contains(word), "{word} in {stderr}");
    }
}

#[test]
fn a_folder_of_binaries_that_is_not_whole_is_refused_with_what_it_misses() {
    let (code, stderr) = script("control-plane/build", &[("VK_CONTROL_PLANE", "/nowhere")]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("/nowhere") && stderr.contains("'etcd'"), "{stderr}");
}
