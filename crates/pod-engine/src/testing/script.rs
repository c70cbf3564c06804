//! Scripts of fake containers, in a subset of the shell language.

use std::time::Duration;

/// The parsed command of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Script {
    /// Its steps. At the end it exits with 0.
    pub(super) steps: Vec<Step>,
    /// The exit code on SIGTERM; `None` ignores it.
    pub(super) on_stop: Option<i32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Writes a line.
    Echo(String),
    /// Writes the termination message.
    Message(String),
    /// Sleeps.
    Sleep(Duration),
    /// Sleeps until it is stopped.
    Forever,
    /// Exits.
    Exit(i32),
    /// Exceeds its memory limit. The runtime may learn of it only after the exit.
    Oom { late: bool },
}

/// When and how a script exits without a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) after: Duration,
    pub(super) code: i32,
    pub(super) oom: Option<Oom>,
}

/// When a runtime learns of an out-of-memory kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Oom {
    AtOnce,
    Late,
}

/// The exit code after SIGTERM.
pub(super) const TERMINATED: i32 = 143;
/// The exit code after SIGKILL.
pub(super) const KILLED: i32 = 137;

// === impl Script ===

impl Script {
    /// Parses a command. The error is that of a runtime for a missing program.
    ///
    /// `sh -c` takes statements between semicolons: `echo TEXT`, `message TEXT`, `sleep SECONDS`, `exit CODE`, `oom`, `oom late`, `trap '' TERM`,
    /// `trap 'exit CODE' TERM`, and a loop or anything else that starts with `while`, which never ends. Without a command the image's
    /// own runs forever, and so does `sleep infinity`.
    pub(super) fn read(command: &[String]) -> Result<Self, String> {
        let forever = |on_stop| Self { steps: vec![Step::Forever], on_stop };
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        match words.as_slice() {
            [] | ["pause"] => Ok(forever(Some(0))),
            ["sh" | "/bin/sh", "-c", script, ..] => Ok(Self::parse(script)),
            ["sleep", rest @ ..] => {
                Ok(Self { steps: vec![sleep(rest.first().copied())], on_stop: Some(TERMINATED) })
            }
            ["echo" | "true" | "false" | "cat", ..] => Ok(Self::parse(&words.join(" "))),
            [program, ..] => Err(format!("exec: \"{program}\": executable file not found in $PATH")),
        }
    }

    fn parse(text: &str) -> Self {
        let mut script = Self { steps: Vec::new(), on_stop: Some(TERMINATED) };
        for statement in text.split(';').map(str::trim) {
            let (verb, rest) = statement.split_once(' ').unwrap_or((statement, ""));
            match verb {
                "echo" => script.steps.push(Step::Echo(unquoted(rest))),
                "message" => script.steps.push(Step::Message(unquoted(rest))),
                "sleep" => script.steps.push(sleep(Some(rest))),
                "exit" => script.steps.push(Step::Exit(rest.parse().unwrap_or(2))),
                "false" => script.steps.push(Step::Exit(1)),
                "oom" => script.steps.push(Step::Oom { late: rest == "late" }),
                "trap" => script.on_stop = trap(rest),
                "while" => script.steps.push(Step::Forever),
                _ => {}
            }
        }
        script
    }

    /// When and how it exits without a stop, if it does.
    pub(super) fn end(&self) -> Option<End> {
        let mut after = Duration::ZERO;
        for step in &self.steps {
            match step {
                Step::Echo(_) | Step::Message(_) => {}
                Step::Sleep(time) => after += *time,
                Step::Forever => return None,
                Step::Exit(code) => return Some(End { after, code: *code, oom: None }),
                Step::Oom { late } => {
                    let oom = if *late { Oom::Late } else { Oom::AtOnce };
                    return Some(End { after, code: KILLED, oom: Some(oom) });
                }
            }
        }
        Some(End { after, code: 0, oom: None })
    }

    /// The lines it has written this long after its start, with their times.
    pub(super) fn lines(&self, elapsed: Duration) -> Vec<(Duration, &str)> {
        self.written(elapsed, |step| match step {
            Step::Echo(text) => Some(text),
            _ => None,
        })
    }

    /// The termination message it has written this long after its start.
    pub(super) fn message(&self, elapsed: Duration) -> Option<&str> {
        let written = self.written(elapsed, |step| match step {
            Step::Message(text) => Some(text),
            _ => None,
        });
        written.last().map(|(_, text)| *text)
    }

    fn written(&self, elapsed: Duration, pick: impl Fn(&Step) -> Option<&str>) -> Vec<(Duration, &str)> {
        let mut at = Duration::ZERO;
        let mut found = Vec::new();
        for step in &self.steps {
            match step {
                Step::Sleep(time) => at += *time,
                Step::Forever | Step::Exit(_) | Step::Oom { .. } => break,
                Step::Echo(_) | Step::Message(_) => {}
            }
            if at > elapsed {
                break;
            }
            found.extend(pick(step).map(|text| (at, text)));
        }
        found
    }
}

fn sleep(time: Option<&str>) -> Step {
    let seconds = time.and_then(|time| time.parse::<f64>().ok());
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).map_or(Step::Forever, Step::Sleep)
}

fn trap(rest: &str) -> Option<i32> {
    let action = rest.trim_end_matches("TERM").trim().trim_matches('\'').trim();
    let code = action.strip_prefix("exit").map(|code| code.trim().parse().unwrap_or(0));
    if action.is_empty() { None } else { code.or(Some(TERMINATED)) }
}

fn unquoted(text: &str) -> String {
    text.trim_matches(['"', '\'']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Script {
        Script::read(&["sh".into(), "-c".into(), script.into()]).unwrap()
    }

    #[test]
    fn a_script_ends_when_its_statements_say() {
        let end = |code, seconds| Some(End { after: Duration::from_secs(seconds), code, oom: None });
        assert_eq!(sh("echo up; sleep 2; exit 3").end(), end(3, 2));
        assert_eq!(sh("sleep 1; sleep 2").end(), end(0, 3));
        assert_eq!(sh("trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done").end(), None);
        assert!(sh("sleep 1; oom").end().unwrap().oom.is_some());
    }

    #[test]
    fn a_trap_decides_what_a_request_to_end_does() {
        assert_eq!(sh("sleep 9").on_stop, Some(TERMINATED));
        assert_eq!(sh("trap '' TERM; sleep 9").on_stop, None);
        assert_eq!(sh("trap 'exit 5' TERM; sleep 9").on_stop, Some(5));
    }

    #[test]
    fn lines_appear_when_their_time_has_come() {
        let script = sh("echo one; sleep 2; echo two; exit 1");
        let texts = |seconds| {
            script.lines(Duration::from_secs(seconds)).into_iter().map(|(_, text)| text).collect::<Vec<_>>()
        };
        assert_eq!(texts(1), ["one"]);
        assert_eq!(texts(2), ["one", "two"]);
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        assert!(Script::read(&["/no/such".into()]).unwrap_err().contains("/no/such"));
    }
}
