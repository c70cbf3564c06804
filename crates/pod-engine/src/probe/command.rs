//! Probes that run a command in the container.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::api::core::v1::{Container, ExecAction};

use super::prober::Outcome;
use crate::backend::{ContainerBackend, Ran, told};

/// As much of the output as anybody gets to see.
pub(crate) const MOST_OUTPUT: usize = 10 << 10;

/// Runs the command and waits for it.
pub(super) async fn probe(
    backend: &dyn ContainerBackend,
    id: &str,
    action: &ExecAction,
    container: &Container,
    limit: Duration,
) -> Outcome {
    let command = expanded(action.command.as_deref().unwrap_or_default(), container);
    match backend.run(id, &command, limit).await {
        Ok(Ran::Ended { code: 0, .. }) => Outcome::Success,
        Ok(Ran::Ended { mut output, .. }) => {
            output.truncate(MOST_OUTPUT);
            Outcome::Failure(String::from_utf8_lossy(&output).into_owned())
        }
        Ok(Ran::TimedOut { message }) => Outcome::Failure(message),
        Err(error) => Outcome::unknown(told(&error)),
    }
}

/// The command with `$(NAME)` replaced by what the spec itself says: variables that come from elsewhere are empty here, since a
/// probe is not given the container's environment.
fn expanded(command: &[String], container: &Container) -> Vec<String> {
    let variables: HashMap<&str, &str> = container
        .env
        .iter()
        .flatten()
        .map(|variable| (variable.name.as_str(), variable.value.as_deref().unwrap_or_default()))
        .collect();
    command.iter().map(|word| expand(word, &variables)).collect()
}

/// `$(NAME)` is the variable's value, `$$` is `$`, and all else stands for itself.
fn expand(text: &str, variables: &HashMap<&str, &str>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let named = after.strip_prefix('(').and_then(|opened| opened.split_once(')'));
        if let Some((name, behind)) = named {
            match variables.get(name) {
                Some(value) => expanded.push_str(value),
                None => expanded.extend(["$(", name, ")"]),
            }
            rest = behind;
        } else if let Some(behind) = after.strip_prefix('(') {
            expanded.push_str("$(");
            rest = behind;
        } else {
            expanded.push('$');
            rest = after.strip_prefix('$').unwrap_or(after);
        }
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_expanded_with_what_the_spec_itself_says() {
        let variables = HashMap::from([("PORT", "80"), ("FROM_ELSEWHERE", "")]);
        let cases = [
            ("plain", "plain"),
            ("$(PORT)", "80"),
            ("a$(PORT)b$(PORT)", "a80b80"),
            ("$(FROM_ELSEWHERE)", ""),
            ("$(UNKNOWN)", "$(UNKNOWN)"),
            ("$$(PORT)", "$(PORT)"),
            ("$PORT", "$PORT"),
            ("$(PORT", "$(PORT"),
            ("cost: 5$", "cost: 5$"),
        ];
        for (text, wanted) in cases {
            assert_eq!(expand(text, &variables), wanted, "{text}");
        }
    }
}
