//! The configuration flags, generated from the table of options.

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use vk_provider::ConfigAlias;

use crate::config::{
    DEPRECATED_FLAGS, DEPRECATED_VARIABLES, EffectiveConfig, Layer, LayerStack, Problem, ValidationContext,
    default_state_dir,
    options::{COMMON_FLAGS, CONFIG_VARIABLE, ConfigOption, Kind, OPTIONS},
};

/// Configuration flags given on the command line.
///
/// The help of a command only shows the common flags, unless the command uses `show_all`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    config: Option<PathBuf>,
    values: BTreeMap<&'static str, Vec<String>>,
}

/// A loaded configuration with its warnings.
#[derive(Debug)]
pub(super) struct Loaded {
    /// One line for each deprecated flag or variable.
    pub(super) warnings: Vec<String>,
    /// The configuration, or all its problems.
    pub(super) outcome: Result<EffectiveConfig, Vec<Problem>>,
}

/// The environment of the process, as a parameter.
pub(super) struct Environment<'a> {
    pub(super) providers: &'a [&'a str],
    pub(super) lookup: &'a dyn Fn(&str) -> Option<String>,
    /// The variables of a provider.
    pub(super) provider_variables: &'a dyn Fn(&str) -> &'static [ConfigAlias],
    pub(super) root: bool,
}

// === impl Flags ===

impl Flags {
    /// Combines flags before a subcommand with those after it, which win.
    pub(super) fn overlaid_with(mut self, later: Self) -> Self {
        self.config = later.config.or(self.config);
        self.values.extend(later.values);
        self
    }

    /// Removes a flag and returns its value, for a command that gives it another meaning.
    pub(super) fn take(&mut self, flag: &str) -> Option<String> {
        self.values.remove(flag)?.pop()
    }

    /// Loads all layers. `base` has the defaults of the subcommand, `extra` what it adds to the flags.
    pub(super) fn load(&self, base: Layer, extra: Option<Layer>, environment: &Environment<'_>) -> Loaded {
        let mut problems = Vec::new();
        let mut collect = |(layer, found): (Layer, Vec<Problem>)| {
            problems.extend(found);
            layer
        };
        let path = self.config.clone().or_else(|| {
            (environment.lookup)(CONFIG_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
        });
        let file = path.map_or_else(Layer::default, |path| {
            let shown = path.display().to_string();
            match std::fs::read_to_string(&path) {
                Ok(text) => collect(Layer::from_yaml(&text, &shown)),
                Err(error) => collect((
                    Layer::default(),
                    vec![Problem::new("config", format!("cannot read {shown}: {error}"))],
                )),
            }
        });
        let env = collect(Layer::from_env(environment.lookup));
        let given =
            OPTIONS.iter().filter_map(|option| Some((option, self.values.get(option.flag)?.as_slice())));
        let mut flags = collect(Layer::from_flags(given));
        if let Some(extra) = extra {
            flags = flags.overlaid_with(extra);
        }
        problems.extend(self.deprecated_flag_problems());

        let read = |path: &std::path::Path| std::fs::read_to_string(path);
        let provider_variables = |provider: &str| {
            let set =
                |alias: &ConfigAlias| (environment.lookup)(alias.name).filter(|text| !text.trim().is_empty());
            let aliases = (environment.provider_variables)(provider);
            aliases.iter().filter_map(|alias| Some((*alias, set(alias)?))).collect()
        };
        let host = ValidationContext {
            providers: environment.providers,
            provider_variables: &provider_variables,
            state_dir: default_state_dir(environment.root, environment.lookup),
            read: &read,
        };
        let outcome = match (LayerStack { base, file, env, flags }.resolve(&host), problems.is_empty()) {
            (Ok(resolved), true) => Ok(resolved),
            (Ok(_), false) => Err(problems),
            (Err(more), no_other) => {
                // A mistyped value is also a missing value: report it once.
                problems.extend(more.into_iter().filter(|problem| no_other || !problem.consequence));
                Err(problems)
            }
        };
        Loaded { warnings: self.warnings(environment.lookup), outcome }
    }

    /// Problems with deprecated flags: those that are refused, and values that are still checked.
    fn deprecated_flag_problems(&self) -> Vec<Problem> {
        let last = |flag: &str| self.values.get(flag)?.last();
        let refused =
            DEPRECATED_FLAGS.iter().filter(|deprecated| deprecated.refused).filter_map(|deprecated| {
                let value = last(deprecated.flag).filter(|value| !value.is_empty())?;
                let message = format!("`{value}` cannot be honoured: {}", deprecated.instead);
                Some(Problem::new(deprecated.flag, message).from_source(format!("--{}", deprecated.flag)))
            });
        let workers = last("pod-sync-workers").filter(|workers| {
            let good = workers.parse::<i64>().is_ok_and(|workers| workers > 0);
            !good
        });
        let workers = workers.map(|workers| {
            let message =
                format!("`{workers}` is not a number of workers: write 1 or more, or remove the flag");
            Problem::new("pod-sync-workers", message).from_source("--pod-sync-workers")
        });
        refused.chain(workers).collect()
    }

    fn warnings(&self, lookup: impl Fn(&str) -> Option<String>) -> Vec<String> {
        let flags = DEPRECATED_FLAGS
            .iter()
            .filter(|deprecated| !deprecated.refused && self.values.contains_key(deprecated.flag))
            .map(|deprecated| format!("--{} does nothing: {}", deprecated.flag, deprecated.instead));
        let variables = DEPRECATED_VARIABLES
            .iter()
            .filter(|(name, _)| lookup(name).is_some_and(|value| !value.is_empty()))
            .map(|(name, instead)| format!("environment {name} does nothing: {instead}"));
        flags.chain(variables).collect()
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.config = matches.get_one::<PathBuf>("config").cloned();
        let names = OPTIONS
            .iter()
            .map(|option| option.flag)
            .chain(DEPRECATED_FLAGS.iter().map(|deprecated| deprecated.flag));
        for name in names {
            if let Some(values) = matches.get_many::<String>(name) {
                self.values.insert(name, values.cloned().collect());
            }
        }
        Ok(())
    }
}

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("PATH")
            .value_parser(clap::value_parser!(PathBuf))
            .overrides_with("config")
            .help(format!("Configuration file (YAML) [env: {CONFIG_VARIABLE}]"));
        let deprecated =
            DEPRECATED_FLAGS.iter().map(|deprecated| argument(deprecated.flag, deprecated.switch).hide(true));
        command.arg(config).args(OPTIONS.iter().map(flag)).args(deprecated)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Shows an option in the help, unless it is deprecated.
pub(super) fn show_all(argument: Arg) -> Arg {
    let deprecated = DEPRECATED_FLAGS.iter().any(|flag| argument.get_id() == flag.flag);
    if deprecated { argument } else { argument.hide(false) }
}

fn flag(option: &ConfigOption) -> Arg {
    let variables: Vec<&str> = [option.variable].iter().chain(option.old_variables).copied().collect();
    let help = format!("{} [env: {}] [default: {}]", option.help, variables.join(", "), option.default)
        .replace('`', "");
    let value_name = match option.kind {
        Kind::Switch => "BOOL",
        Kind::Path => "PATH",
        Kind::Duration => "DURATION",
        Kind::Number => "N",
        Kind::Text | Kind::Map | Kind::List => "VALUE",
    };
    let argument = argument(option.flag, option.kind == Kind::Switch)
        .value_name(value_name)
        .help_heading(option.group.heading())
        .help(help)
        .hide(!COMMON_FLAGS.contains(&option.flag));
    match option.flag {
        "nodename" => argument.alias("node-name"),
        _ => argument,
    }
}

/// A flag with the semantics of the Go original's pflag: the last one wins, and a switch may have a value after `=`. All
/// values are kept for flags that can be repeated.
fn argument(name: &'static str, switch: bool) -> Arg {
    let argument = Arg::new(name).long(name).action(ArgAction::Append).allow_hyphen_values(!switch);
    if switch {
        argument.num_args(0..=1).require_equals(true).default_missing_value("true")
    } else {
        argument
    }
}
