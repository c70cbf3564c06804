//! The flags of the configuration, made from the table of settings.

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::config::{
    Host, Layer, Layers, Problem, RETIRED, RETIRED_VARIABLES, Resolved, default_state_dir,
    table::{CONFIG_VARIABLE, Kind, SETTINGS, Setting},
};

/// The heading under which `--help` lists them.
const HEADING: &str = "Configuration";

/// What the user wrote on the command line about the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    config: Option<PathBuf>,
    values: BTreeMap<&'static str, Vec<String>>,
}

/// What came of the configuration, and what the user should know about it.
#[derive(Debug)]
pub(super) struct Loaded {
    /// One line for each flag or variable that does nothing.
    pub(super) warnings: Vec<String>,
    /// The configuration, or all that is wrong with it.
    pub(super) outcome: Result<Resolved, Vec<Problem>>,
}

/// Where the command runs: what it would otherwise ask of the process.
pub(super) struct Surroundings<'a> {
    pub(super) providers: &'a [&'a str],
    pub(super) lookup: &'a dyn Fn(&str) -> Option<String>,
    pub(super) root: bool,
}

// === impl Flags ===

impl Flags {
    /// Flags that stand before a verb, with those after it on top.
    pub(super) fn under(mut self, later: Self) -> Self {
        self.config = later.config.or(self.config);
        self.values.extend(later.values);
        self
    }

    /// Reads all layers. `base` is what the verb presumes, `extra` what it adds to the flags.
    pub(super) fn load(&self, base: Layer, extra: Option<Layer>, around: &Surroundings<'_>) -> Loaded {
        let mut problems = Vec::new();
        let mut take = |(layer, found): (Layer, Vec<Problem>)| {
            problems.extend(found);
            layer
        };
        let path = self
            .config
            .clone()
            .or_else(|| (around.lookup)(CONFIG_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from));
        let file = path.map_or_else(Layer::default, |path| {
            let shown = path.display().to_string();
            match std::fs::read_to_string(&path) {
                Ok(text) => take(Layer::from_yaml(&text, &shown)),
                Err(error) => take((
                    Layer::default(),
                    vec![Problem::new("config", format!("cannot read {shown}: {error}"))],
                )),
            }
        });
        let env = take(Layer::from_env(around.lookup));
        let given =
            SETTINGS.iter().filter_map(|setting| Some((setting, self.values.get(setting.flag)?.as_slice())));
        let mut flags = take(Layer::from_flags(given));
        if let Some(extra) = extra {
            flags = flags.under(extra);
        }
        problems.extend(self.retired_problems());

        let read = |path: &std::path::Path| std::fs::read_to_string(path);
        let host = Host {
            providers: around.providers,
            state_dir: default_state_dir(around.root, around.lookup),
            read: &read,
        };
        let outcome = match (Layers { base, file, env, flags }.resolve(&host), problems.is_empty()) {
            (Ok(resolved), true) => Ok(resolved),
            (Ok(_), false) => Err(problems),
            (Err(more), alone) => {
                // What was mistyped in one layer is missing in the whole: that need not be said twice.
                problems.extend(more.into_iter().filter(|problem| alone || !problem.consequence));
                Err(problems)
            }
        };
        Loaded { warnings: self.warnings(around.lookup), outcome }
    }

    /// Retired flags whose values are checked still.
    fn retired_problems(&self) -> Option<Problem> {
        let workers = self.values.get("pod-sync-workers")?.last()?;
        let good = workers.parse::<i64>().is_ok_and(|workers| workers > 0);
        (!good).then(|| {
            Problem::new(
                "pod-sync-workers",
                format!("`{workers}` is not a number of workers: write 1 or more, or leave it out"),
            )
            .from_source("--pod-sync-workers")
        })
    }

    fn warnings(&self, lookup: impl Fn(&str) -> Option<String>) -> Vec<String> {
        let flags = RETIRED
            .iter()
            .filter(|retired| self.values.contains_key(retired.flag))
            .map(|retired| format!("--{} does nothing: {}", retired.flag, retired.instead));
        let variables = RETIRED_VARIABLES
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
        let names =
            SETTINGS.iter().map(|setting| setting.flag).chain(RETIRED.iter().map(|retired| retired.flag));
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
            .help_heading(HEADING)
            .help(format!("The configuration file, in YAML [env: {CONFIG_VARIABLE}]"));
        let retired = RETIRED.iter().map(|retired| argument(retired.flag, retired.switch).hide(true));
        command.arg(config).args(SETTINGS.iter().map(flag)).args(retired)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn flag(setting: &Setting) -> Arg {
    let variables: Vec<&str> = [setting.variable].iter().chain(setting.old_variables).copied().collect();
    let help = format!(
        "{} [env: {}] [default: {}]",
        setting.help,
        variables.join(", "),
        setting.default.replace('`', "")
    );
    let argument = argument(setting.flag, setting.kind == Kind::Switch).help_heading(HEADING).help(help);
    match setting.flag {
        "nodename" => argument.alias("node-name"),
        _ => argument,
    }
}

/// A flag as pflag of the Go original takes it: the last one counts, a switch may have a value behind `=`. Every value is
/// kept, for those that can be repeated.
fn argument(name: &'static str, switch: bool) -> Arg {
    let argument = Arg::new(name).long(name).action(ArgAction::Append).allow_hyphen_values(!switch);
    if switch {
        argument.num_args(0..=1).require_equals(true).default_missing_value("true").value_name("BOOL")
    } else {
        argument.value_name("VALUE")
    }
}
