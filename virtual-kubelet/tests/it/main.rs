//! Runs the real command.

// The lint spares test functions only, not what they call.
#![allow(clippy::unwrap_used)]

mod bridge;
mod config;
mod differential;
mod flags;
mod layout;
mod live;
mod mistakes;
mod setup;
mod verbs;

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use tempfile::TempDir;

/// One run of the command, in a folder and environment of its own.
pub(crate) struct Run {
    command: Command,
    folder: TempDir,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The command with these arguments and an empty environment.
pub(crate) fn vk(arguments: &[&str]) -> Run {
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtual-kubelet"));
    command.args(arguments).env_clear().env("HOME", folder.path()).current_dir(folder.path());
    Run { command, folder }
}

// === impl Run ===

impl Run {
    /// With a configuration file.
    pub(crate) fn file(mut self, text: &str) -> Self {
        let path = self.write("vk.yaml", text);
        self.command.arg("--config").arg(path);
        self
    }

    /// With a variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Writes a file into the folder in which the command runs.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn run(mut self) -> Outcome {
        let output = self.command.stdin(Stdio::null()).output().unwrap();
        Outcome {
            code: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// It went well and had nothing to complain about.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{}", self.stdout);
        self.stdout
    }

    /// It ended with this code, and with one line for each of these problems that holds all of its words.
    #[track_caller]
    pub(crate) fn refused(&self, code: i32, problems: &[&[&str]]) {
        assert_eq!(self.code, code, "{self:#?}");
        assert_eq!(self.stdout, "", "{self:#?}");
        let lines: Vec<&str> = self.stderr.lines().collect();
        assert_eq!(lines.len(), problems.len(), "{self:#?}");
        for line in &lines {
            assert!(line.starts_with("error: "), "{line}");
        }
        for words in problems {
            let found = lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
            assert!(found, "{words:?} in {self:#?}");
        }
    }
}
