//! Tells the binary which commit it was built from and by which compiler, where that can be found out.

// Cargo reads the instructions of a build script from its standard output.
#![allow(clippy::print_stdout)]

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo:rerun-if-env-changed=VK_GIT_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    // The log has a line for every commit, HEAD itself changes with the branch only.
    for file in ["../.git/HEAD", "../.git/logs/HEAD"] {
        if Path::new(file).exists() {
            println!("cargo:rerun-if-changed={file}");
        }
    }
    // A release build outside of a checkout passes the commit in.
    let commit =
        env::var("VK_GIT_COMMIT").ok().or_else(|| answer("git", &["rev-parse", "--short=12", "HEAD"]));
    if let Some(commit) = commit {
        println!("cargo:rustc-env=VK_GIT_COMMIT={commit}");
    }
    let compiler = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    if let Some(version) = answer(&compiler, &["--version"]) {
        println!("cargo:rustc-env=VK_RUSTC={version}");
    }
}

/// What a command prints, if it exists and succeeds.
fn answer(command: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(command).args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
