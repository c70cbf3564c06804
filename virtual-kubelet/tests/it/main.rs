//! Runs the real command.

// The lint only exempts test functions, not their helpers.
#![allow(clippy::unwrap_used)]

mod config;
mod differential;
mod explain_pod;
mod flags;
mod groups;
mod invalid_config;
mod layout;
mod live;
mod network_cleanup;
mod setup;
mod subcommands;

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use tempfile::TempDir;

/// A run of the command, with its own directory and environment.
pub(crate) struct Run {
    command: Command,
    folder: TempDir,
}

/// The result of a run.
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
    /// Adds a configuration file.
    pub(crate) fn file(mut self, text: &str) -> Self {
        let path = self.write("vk.yaml", text);
        self.command.arg("--config").arg(path);
        self
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Writes a file to the working directory of the command.
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
    /// Checks for success without output on standard error.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{}", self.stdout);
        self.stdout
    }

    /// Checks the exit code, and for each problem one line that contains all of its words.
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
