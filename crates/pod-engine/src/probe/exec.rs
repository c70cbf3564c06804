//! Probes that run a command in the container.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::api::core::v1::{Container, ExecAction};

use super::prober::ProbeOutcome;
use crate::backend::{ContainerBackend, ExecOutput, full_message};

/// Maximum output in messages, in bytes.
const MAX_OUTPUT: usize = 10 << 10;

/// Runs the command.
pub(super) async fn probe(
    backend: &dyn ContainerBackend,
    id: &str,
    action: &ExecAction,
    container: &Container,
    timeout: Duration,
) -> ProbeOutcome {
    let command = expanded(action.command.as_deref().unwrap_or_default(), container);
    match backend.run(id, &command, timeout).await {
        Ok(ExecOutput::Exited { code: 0, .. }) => ProbeOutcome::Success,
        Ok(ExecOutput::Exited { mut output, .. }) => {
            output.truncate(MAX_OUTPUT);
            ProbeOutcome::Failure(String::from_utf8_lossy(&output).into_owned())
        }
        Ok(ExecOutput::TimedOut { message }) => ProbeOutcome::Failure(message),
        Err(error) => ProbeOutcome::unknown(full_message(&error)),
    }
}

/// Expands `$(NAME)` with the literal values of the spec. Variables with a `valueFrom` are empty: a probe does not have the container's
/// environment.
fn expanded(command: &[String], container: &Container) -> Vec<String> {
    let variables: HashMap<&str, &str> = container
        .env
        .iter()
        .flatten()
        .map(|variable| (variable.name.as_str(), variable.value.as_deref().unwrap_or_default()))
        .collect();
    command.iter().map(|word| expand(word, &variables)).collect()
}

/// `$(NAME)` is the value of the variable and `$$` is `$`; everything else is literal.
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
    fn a_command_is_expanded_with_literal_values_of_the_spec() {
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
