//! Variables of containers.

use vk_container_group::plan::Diagnostics;
use vk_provider::resolve::{CommandLine, ContainerInputs, Origin, Variable};

use crate::api::{Parameters, flatten};

/// The longest value of a variable, in characters.
const LONGEST_VALUE: usize = 256;
/// The longest name.
const LONGEST_NAME: usize = 128;
/// Words of `Arg`, of `Command`, and the characters of each.
const MAX_ARGS: usize = 10;
const MAX_COMMAND: usize = 20;
const LONGEST_WORD: usize = 256;
/// The field that the service can fill in.
const POD_IP: &str = "status.podIP";

/// Writes the variables of a container.
pub(super) fn write(
    inputs: &ContainerInputs,
    path: &str,
    prefix: &str,
    out: &mut Parameters,
    diagnostics: &mut Diagnostics,
) {
    for (at, variable) in inputs.env.iter().enumerate() {
        let item = flatten(&format!("{prefix}.EnvironmentVar"), at, "");
        let field = format!("{path}.env[{}]", variable.name);
        out.set(format!("{item}.Key"), &variable.name);
        if variable.name.chars().count() > LONGEST_NAME {
            diagnostics
                .refuse(&field, format!("the name is longer than the {LONGEST_NAME} characters of ECI"));
        }
        if let Some(deferred) = &variable.deferred {
            if deferred.whole && deferred.field == POD_IP {
                out.set(format!("{item}.FieldRef.FieldPath"), POD_IP);
            } else {
                diagnostics.refuse(&field, refusal(&deferred.field));
            }
            continue;
        }
        let length = variable.value.chars().count();
        if length > LONGEST_VALUE {
            diagnostics.refuse(
                &field,
                format!(
                    "the value has {length} characters; ECI allows {LONGEST_VALUE}: use a file of a volume"
                ),
            );
        }
        out.set_secret(format!("{item}.Value"), &variable.value);
    }
    hide(inputs, path, prefix, out, diagnostics);
}

/// Hides the variables in the views of the service if one of them is secret.
fn hide(
    inputs: &ContainerInputs,
    path: &str,
    prefix: &str,
    out: &mut Parameters,
    diagnostics: &mut Diagnostics,
) {
    let secret: Vec<&str> = inputs.env.iter().filter(|one| is_secret(one)).map(|one| &*one.name).collect();
    if secret.is_empty() {
        return;
    }
    if prefix.starts_with("Init") {
        let names = secret.join(", ");
        diagnostics.warn(
            format!("{path}.env"),
            format!("{names}: ECI does not hide variables of init containers; whoever may describe the group reads them"),
        );
    } else {
        out.set(format!("{prefix}.EnvironmentVarHide"), true);
    }
}

fn is_secret(variable: &Variable) -> bool {
    variable.origin == Origin::Secret
}

fn refusal(field: &str) -> String {
    if field == POD_IP {
        "it contains status.podIP, which is not known before the group exists: use a variable with nothing else in it".to_owned()
    } else {
        format!("{field} is not known before the group exists: remove it")
    }
}

/// Writes command and arguments. An empty list is left out: it would take the image's entry point away.
pub(super) fn write_command(
    inputs: &ContainerInputs,
    path: &str,
    prefix: &str,
    out: &mut Parameters,
    diagnostics: &mut Diagnostics,
) {
    for (line, field) in [(&inputs.command, "command"), (&inputs.args, "args")] {
        let Some(line) = line else { continue };
        check(line, &format!("{path}.{field}"), diagnostics);
    }
    let (command, args) = (words(inputs.command.as_ref()), words(inputs.args.as_ref()));
    // Arguments after a command are the same as a longer command, which may have more words.
    let joined = args.len() > MAX_ARGS && !command.is_empty();
    let (command, args) =
        if joined { ([command, args].concat(), Vec::new()) } else { (command.to_vec(), args.to_vec()) };
    let secret =
        [&inputs.command, &inputs.args].into_iter().flatten().any(|line| line.origin == Origin::Secret);
    for (words, name, field, most) in
        [(command, "Command", "command", MAX_COMMAND), (args, "Arg", "args", MAX_ARGS)]
    {
        if words.len() > most {
            diagnostics.refuse(
                format!("{path}.{field}"),
                format!(
                    "{} words; ECI allows {most}: put them into a script in the image or in a ConfigMap",
                    words.len()
                ),
            );
        }
        for (at, word) in words.iter().enumerate() {
            let key = flatten(&format!("{prefix}.{name}"), at, "");
            if secret { out.set_secret(key, word) } else { out.set(key, word) }
        }
    }
}

fn words(line: Option<&CommandLine>) -> &[String] {
    line.map_or(&[], |line| &line.words)
}

fn check(line: &CommandLine, field: &str, diagnostics: &mut Diagnostics) {
    if let Some(deferred) = &line.deferred {
        diagnostics.refuse(field, refusal(&deferred.field));
    }
    let long = line.words.iter().position(|word| word.chars().count() > LONGEST_WORD);
    if let Some(at) = long {
        diagnostics.refuse(
            field,
            format!(
                "word {} is longer than the {LONGEST_WORD} characters of ECI: put it into a script",
                at + 1
            ),
        );
    }
    if line.origin == Origin::Secret {
        diagnostics.warn(field, "contains a value of a Secret; whoever may describe the group reads it");
    }
}
