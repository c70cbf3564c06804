//! The scripts behind make report what is missing in one message.

use std::{path::Path, process::Command};

/// Programs that the scripts may use. Go is not one of them.
const ALWAYS_THERE: [&str; 12] =
    ["awk", "bash", "cat", "cut", "dirname", "env", "flock", "head", "mkdir", "sed", "sha256sum", "sort"];

/// Runs a script of `dev/` with only these programs in the PATH.
fn script(path: &str, arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let home = tempfile::TempDir::new().unwrap();
    for program in ALWAYS_THERE {
        let found = ["/usr/bin", "/bin"]
            .map(|folder| Path::new(folder).join(program))
            .into_iter()
            .find(|path| path.exists());
        std::os::unix::fs::symlink(found.unwrap(), home.path().join(program)).unwrap();
    }
    let output = Command::new(format!("{}/../dev/{path}", env!("CARGO_MANIFEST_DIR")))
        .args(arguments)
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
    let (code, stderr) = script("control-plane/build", &[], &[]);
    assert_eq!(code, 1, "{stderr}");
    assert_eq!(stderr.matches("error:").count(), 1, "{stderr}");
    for word in ["Go 1.26", "found: none", "VK_CONTROL_PLANE", "kube-apiserver"] {
        assert!(stderr.contains(word), "{word} in {stderr}");
    }
}

#[test]
fn a_folder_of_binaries_that_is_not_whole_is_refused_with_what_it_misses() {
    for (minor, variable) in [(&[][..], "VK_CONTROL_PLANE"), (&["1.33"], "VK_CONTROL_PLANE_1_33")] {
        let (code, stderr) = script("control-plane/build", minor, &[(variable, "/nowhere")]);
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.contains(&format!("{variable}=/nowhere")) && stderr.contains("'etcd'"), "{stderr}");
    }
}

#[test]
fn a_minor_that_has_no_module_is_refused_with_those_that_have_one() {
    let (code, stderr) = script("control-plane/build", &["1.12"], &[]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("'1.12'") && stderr.contains("[1.33]"), "{stderr}");
}

#[test]
fn ready_binaries_of_the_newest_minor_are_none_of_an_older_one() {
    let ready = [("VK_CONTROL_PLANE", "/nowhere"), ("KUBEBUILDER_ASSETS", "/nowhere")];
    let (code, stderr) = script("control-plane/build", &["1.33"], &ready);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("Go 1.26") && stderr.contains("VK_CONTROL_PLANE_1_33"), "{stderr}");
}
