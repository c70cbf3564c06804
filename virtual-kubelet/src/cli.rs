//! The command line.

mod completions;
mod config;
mod connection;
mod descheduler;
#[cfg(feature = "cluster")]
mod detach;
#[cfg(feature = "dev")]
mod dev;
mod doctor;
mod explain_pod;
mod extender;
mod flags;
mod groups;
#[cfg(feature = "local")]
mod image;
mod output;
mod placement;
mod providers;
mod run;
mod version;
mod webhook;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{
    Registry,
    config::{EffectiveConfig, Layer, Problem},
};

pub use self::flags::Flags;

/// Exit code of a command that failed.
const FAILED: u8 = 1;
/// Exit code for an invalid command line or configuration, like clap's.
const USAGE_ERROR: u8 = 2;

/// The end of the top-level help.
const AFTER_HELP: &str =
    "`virtual-kubelet run --help` shows all options. Without a command, `run` is assumed.";

/// Registers virtual nodes and runs their pods on any backend.
#[derive(Debug, Parser)]
#[command(name = "virtual-kubelet", bin_name = "virtual-kubelet", version, about)]
#[command(after_help = AFTER_HELP)]
pub struct Cli {
    #[command(flatten)]
    flags: Flags,
    #[command(subcommand)]
    subcommand: Option<CliCommand>,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run virtual nodes (default command)
    Run(run::Run),
    /// Start a local control plane with virtual nodes, for development
    #[cfg(feature = "dev")]
    Dev(dev::Dev),
    /// Wait for `dev` to exit, then clean up
    #[cfg(feature = "dev")]
    #[command(hide = true)]
    DevGuardian,
    /// List the providers
    Providers(providers::Providers),
    /// Print or check the configuration
    Config(config::Config),
    /// Check whether pods can run on this machine, or with --placement, whether placement is set up
    Doctor(doctor::Doctor),
    /// Show what would become of pods: whether they run, their size and price; without a cluster
    ExplainPod(explain_pod::ExplainPod),
    /// List what a cloud holds for virtual nodes and what it costs; remove what belongs to no pod
    Groups(groups::Groups),
    /// Remove everything that nodes of the provider `cluster` created in their lower cluster
    #[cfg(feature = "cluster")]
    Detach(detach::Detach),
    /// Import, list, pull or remove images of the provider `local`
    #[cfg(feature = "local")]
    Image(image::Image),
    /// Place pods on virtual nodes that have room; print manifests for it, show where a pod could go
    Placement(Box<placement::Placement>),
    /// Evict pods that are stuck on a virtual node, if another node has room
    Descheduler(descheduler::Descheduler),
    /// Answer kube-scheduler whether pods fit on virtual nodes
    Extender(extender::Extender),
    /// Serve the webhook that converts pods, for Kubernetes before 1.36
    Webhook(webhook::Webhook),
    /// Print the version
    Version(version::Version),
    /// Print a shell completion script
    Completions(completions::Completions),
}

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// Invalid configuration, with all problems.
    Configuration(Vec<Problem>),
    /// A runtime error.
    Runtime(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Runtime(error)
    }
}

// === impl Cli ===

impl Cli {
    /// Runs the command with the given providers.
    pub async fn run(self, registry: Registry) -> Result<(), Failure> {
        match self.subcommand {
            None => run::Run::new(self.flags).execute(Flags::default(), registry).await,
            Some(CliCommand::Run(command)) => command.execute(self.flags, registry).await,
            #[cfg(feature = "dev")]
            Some(CliCommand::Dev(command)) => command.execute(self.flags, registry).await,
            #[cfg(feature = "dev")]
            Some(CliCommand::DevGuardian) => Ok(crate::dev::run_cleanup().await?),
            #[cfg(feature = "cluster")]
            Some(CliCommand::Detach(command)) => command.execute(self.flags, &registry).await,
            Some(CliCommand::ExplainPod(command)) => command.execute(self.flags, &registry).await,
            Some(CliCommand::Groups(command)) => command.execute(self.flags, &registry).await,
            Some(CliCommand::Doctor(command)) => command.execute(self.flags, &registry).await,
            #[cfg(feature = "local")]
            Some(CliCommand::Image(command)) => command.execute(self.flags, &registry).await,
            Some(CliCommand::Placement(command)) => command.execute(self.flags, &registry).await,
            Some(CliCommand::Descheduler(command)) => command.execute(self.flags, &registry).await,
            Some(CliCommand::Extender(command)) => command.execute(self.flags, &registry).await,
            Some(CliCommand::Webhook(command)) => command.execute(self.flags, &registry).await,
            Some(CliCommand::Config(command)) => command.execute(self.flags, &registry),
            Some(CliCommand::Providers(verb)) => Ok(verb.execute(&registry)?),
            Some(CliCommand::Version(verb)) => Ok(verb.execute()?),
            Some(CliCommand::Completions(verb)) => Ok(verb.execute()?),
        }
    }
}

/// Prints the errors of a command and returns its exit code.
pub(crate) fn report(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Runtime(error)) => {
            output::print_diagnostic("error", &format!("{error:#}"));
            ExitCode::from(FAILED)
        }
        Err(Failure::Configuration(problems)) => {
            for problem in problems {
                output::print_diagnostic("error", &problem.to_string());
            }
            ExitCode::from(USAGE_ERROR)
        }
    }
}

/// Prints a command line error as one line, or the requested help.
pub(crate) fn report_usage_error(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if !error.use_stderr() {
        return report(output::print(&text).map_err(Failure::from));
    }
    // Drop clap's usage summary; `--help` has it in full.
    let message = text.split("\n\nUsage:").next().unwrap_or_default();
    let message = message.split("\n\nFor more information").next().unwrap_or_default();
    let message = message.trim_start_matches("error: ").trim().replace("\n\n  tip: ", "; ");
    output::print_diagnostic("error", &format!("{message} (see --help)"));
    ExitCode::from(USAGE_ERROR)
}

/// Loads the configuration and prints warnings about deprecated flags.
fn load(
    flags: &Flags,
    base: Layer,
    extra: Option<Layer>,
    registry: &Registry,
) -> Result<EffectiveConfig, Failure> {
    let environment = flags::Environment {
        providers: &registry.names(),
        lookup: &|name| std::env::var(name).ok(),
        provider_variables: &|provider| registry.get(provider).map_or(&[], |factory| factory.variables()),
        root: rustix::process::geteuid().is_root(),
    };
    let loaded = flags.load(base, extra, &environment);
    for warning in &loaded.warnings {
        output::print_diagnostic("warning", warning);
    }
    loaded.outcome.map_err(Failure::Configuration)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::config::options::{Group, OPTIONS};

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Long options that the help of a command shows, with their headings; without `--help` and `--version`.
    fn shown_options(command: &clap::Command) -> Vec<(String, Option<String>)> {
        command
            .get_arguments()
            .filter(|argument| !argument.is_hide_set())
            .filter(|argument| !matches!(argument.get_id().as_str(), "help" | "version"))
            .filter_map(|argument| {
                let long = argument.get_long()?.to_owned();
                Some((long, argument.get_help_heading().map(ToOwned::to_owned)))
            })
            .collect()
    }

    #[test]
    fn the_short_help_shows_the_commands_and_at_most_ten_options() {
        let mut command = Cli::command();
        let options = shown_options(&command);
        assert!((1..=10).contains(&options.len()), "{options:?}");
        let help = command.render_help().to_string();
        for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
            assert!(
                help.contains(&format!("  {} ", subcommand.get_name())),
                "{}: {help}",
                subcommand.get_name()
            );
        }
        let shown = help.lines().filter(|line| line.trim_start().starts_with("--")).count();
        assert!(shown <= options.len(), "{help}");
        assert!(help.contains("run --help"), "{help}");
    }

    #[test]
    fn every_option_of_run_is_in_a_group_and_has_one_line() {
        let mut command = Cli::command();
        command.build();
        let run = command.find_subcommand_mut("run").unwrap();
        let options = shown_options(run);
        let headings = Group::ALL.map(Group::heading);
        for (option, heading) in &options {
            let grouped = heading.as_deref().is_some_and(|heading| headings.contains(&heading));
            assert!(grouped || option == "config", "--{option} is in group {heading:?}");
        }
        for option in OPTIONS {
            assert!(options.iter().any(|(shown, _)| shown == option.flag), "--{} is not shown", option.flag);
        }
        let help = run.render_help().to_string();
        for heading in headings {
            assert!(help.contains(&format!("\n{heading}:\n")), "{heading}: {help}");
        }
        for option in OPTIONS {
            let flag = format!("--{}", option.flag);
            let line = help
                .lines()
                .find(|line| line.split([' ', '[']).find(|word| !word.is_empty()) == Some(&flag))
                .unwrap_or_default();
            assert!(line.contains(option.variable), "{flag} is not on one line: {help}");
        }
    }

    #[test]
    fn flags_may_be_given_before_and_after_the_subcommand() {
        let before =
            Cli::try_parse_from(["vk", "--nodename", "a", "--os", "linux", "run", "--nodename=b"]).unwrap();
        let Some(CliCommand::Run(run)) = before.subcommand else { panic!("not run") };
        let flags = before.flags.overlaid_with(run.into_flags());
        let expected = Cli::try_parse_from(["vk", "--nodename", "b", "--os", "linux"]).unwrap().flags;
        assert_eq!(flags, expected);
    }
}
