//! What a simulated container does.

use std::time::Duration;

use serde_json::Value;

/// What a simulated container does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// Lines of its log, and when they appear after the start.
    pub output: Vec<(Duration, String)>,
    /// When it exits, and with which code. Otherwise it runs until it is stopped.
    pub exit: Option<(Duration, i32)>,
}

// === impl Script ===

impl Script {
    /// What a simple command does: `echo`, `sleep`, `true`, `false` and `exit`, also in `sh -c`. Everything else runs on.
    pub fn of_command(container: &Value) -> Self {
        let strings = |name: &str| {
            let list = container[name].as_array().into_iter().flatten();
            list.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
        };
        let command = [strings("Command"), strings("Arg")].concat();
        match command.as_slice() {
            [shell, option, text, ..] if shell.ends_with("sh") && option.ends_with('c') => {
                Self::of_text(text)
            }
            [] => Self::default(),
            other => Self::of_text(&other.join(" ")),
        }
    }

    fn of_text(text: &str) -> Self {
        let mut script = Self::default();
        let mut at = Duration::ZERO;
        for statement in text.split([';', '\n']).flat_map(|part| part.split("&&")) {
            let statement = statement.trim();
            let (program, rest) = statement.split_once(' ').unwrap_or((statement, ""));
            match program.rsplit('/').next().unwrap_or(program) {
                "echo" => script.output.push((at, rest.trim().trim_matches(['\'', '"']).to_owned())),
                "sleep" => match rest.trim().parse() {
                    Ok(seconds) => at += Duration::from_secs_f64(seconds),
                    Err(_) => return script,
                },
                "true" | "" | ":" => {}
                "false" => {
                    script.exit = Some((at, 1));
                    return script;
                }
                "exit" => {
                    script.exit = Some((at, rest.trim().parse().unwrap_or(2)));
                    return script;
                }
                _ => return script,
            }
        }
        script.exit = Some((at, 0));
        script
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn simple_commands_are_understood() {
        let script =
            Script::of_command(&json!({"Command": ["sh", "-c"], "Arg": ["echo a; sleep 2 && exit 3"]}));
        assert_eq!(script.output, [(Duration::ZERO, "a".to_owned())]);
        assert_eq!(script.exit, Some((Duration::from_secs(2), 3)));
        assert_eq!(Script::of_command(&json!({"Command": ["/bin/false"]})).exit, Some((Duration::ZERO, 1)));
        assert_eq!(Script::of_command(&json!({"Command": ["nginx"]})).exit, None);
        assert_eq!(Script::of_command(&json!({"Image": "nginx"})), Script::default());
    }
}
