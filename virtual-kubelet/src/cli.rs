//! The command line.

mod completions;
mod config;
#[cfg(feature = "cluster")]
mod detach;
#[cfg(feature = "dev")]
mod dev;
mod doctor;
mod flags;
#[cfg(feature = "local")]
mod image;
mod output;
mod providers;
mod run;
mod version;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{
    Registry,
    config::{Layer, Problem, Resolved},
};

pub use self::flags::Flags;

/// Something went wrong while the command ran.
const FAILED: u8 = 1;
/// The command line or the configuration is wrong. The code that clap uses too.
const MISUSED: u8 = 2;

/// A kubelet look-alike: registers virtual nodes and runs their pods on any backend.
#[derive(Debug, Parser)]
#[command(name = "virtual-kubelet", bin_name = "virtual-kubelet", version, about)]
#[command(after_help = "Without a command: run.")]
pub struct Cli {
    #[command(flatten)]
    flags: Flags,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run virtual nodes (the default)
    Run(run::Run),
    /// Start a control plane on this machine with virtual nodes in it
    #[cfg(feature = "dev")]
    Dev(dev::Dev),
    /// Waits for the end of `dev`, and removes what it has left
    #[cfg(feature = "dev")]
    #[command(hide = true)]
    DevGuardian,
    /// List the providers, or show one
    Providers(providers::Providers),
    /// Show, describe or check the configuration
    Config(config::Config),
    /// Look whether pods could run here, and say what to do where they could not
    Doctor(doctor::Doctor),
    /// Take virtual nodes of the provider cluster out of their lower cluster
    #[cfg(feature = "cluster")]
    Detach(detach::Detach),
    /// Import, list, pull or remove images of the provider local
    #[cfg(feature = "local")]
    Image(image::Image),
    /// Show which version this is
    Version(version::Version),
    /// Print a script that completes this command in a shell
    Completions(completions::Completions),
}

/// Why a command did not do what it should.
#[derive(Debug)]
pub enum Failure {
    /// The configuration is wrong; everything that is.
    Configuration(Vec<Problem>),
    /// Something went wrong on the way.
    Runtime(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Runtime(error)
    }
}

// === impl Cli ===

impl Cli {
    /// Does what the command line asks, with these providers to choose from.
    pub async fn run(self, registry: Registry) -> Result<(), Failure> {
        match self.verb {
            None => run::Run::new(self.flags).execute(Flags::default(), registry).await,
            Some(Verb::Run(verb)) => verb.execute(self.flags, registry).await,
            #[cfg(feature = "dev")]
            Some(Verb::Dev(verb)) => verb.execute(self.flags, registry).await,
            #[cfg(feature = "dev")]
            Some(Verb::DevGuardian) => Ok(crate::dev::guard().await?),
            #[cfg(feature = "cluster")]
            Some(Verb::Detach(verb)) => verb.execute(self.flags, &registry).await,
            Some(Verb::Doctor(verb)) => verb.execute(self.flags, &registry).await,
            #[cfg(feature = "local")]
            Some(Verb::Image(verb)) => verb.execute(self.flags, &registry).await,
            Some(Verb::Config(verb)) => verb.execute(self.flags, &registry),
            Some(Verb::Providers(verb)) => Ok(verb.execute(&registry)?),
            Some(Verb::Version(verb)) => Ok(verb.execute()?),
            Some(Verb::Completions(verb)) => Ok(verb.execute()?),
        }
    }
}

/// Tells how a command ended, and the exit code for it.
pub(crate) fn report(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Runtime(error)) => {
            output::complain("error", &format!("{error:#}"));
            ExitCode::from(FAILED)
        }
        Err(Failure::Configuration(problems)) => {
            for problem in problems {
                output::complain("error", &problem.to_string());
            }
            ExitCode::from(MISUSED)
        }
    }
}

/// Tells what is wrong with the command line in one line; or shows the help that was asked for.
pub(crate) fn misuse(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if !error.use_stderr() {
        return report(output::print(&text).map_err(Failure::from));
    }
    // The rest is a summary of the usage, which `--help` gives in full.
    let said = text.split("\n\nUsage:").next().unwrap_or_default();
    let said = said.split("\n\nFor more information").next().unwrap_or_default();
    let said = said.trim_start_matches("error: ").trim().replace("\n\n  tip: ", "; ");
    output::complain("error", &format!("{said} (see --help)"));
    ExitCode::from(MISUSED)
}

/// Loads the configuration and tells of what does nothing.
fn load(flags: &Flags, base: Layer, extra: Option<Layer>, registry: &Registry) -> Result<Resolved, Failure> {
    let around = flags::Surroundings {
        providers: &registry.names(),
        lookup: &|name| std::env::var(name).ok(),
        root: nix::unistd::geteuid().is_root(),
    };
    let loaded = flags.load(base, extra, &around);
    for warning in &loaded.warnings {
        output::complain("warning", warning);
    }
    loaded.outcome.map_err(Failure::Configuration)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_may_stand_before_and_after_the_verb() {
        let before =
            Cli::try_parse_from(["vk", "--nodename", "a", "--os", "linux", "run", "--nodename=b"]).unwrap();
        let Some(Verb::Run(run)) = before.verb else { panic!("not run") };
        let flags = before.flags.under(run.into_flags());
        let expected = Cli::try_parse_from(["vk", "--nodename", "b", "--os", "linux"]).unwrap().flags;
        assert_eq!(flags, expected);
    }
}
