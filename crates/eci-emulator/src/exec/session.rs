//! A command that runs: a process, or what a script says.

use std::{io, sync::Arc, time::Duration};

use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet};

use crate::{cloud::Script, emulator::Emulator, process};

/// A command for a container.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) group: u64,
    pub(crate) container: usize,
    pub(crate) words: Vec<String>,
    pub(crate) stdin: bool,
    pub(crate) tty: bool,
}

/// What comes from a command.
#[derive(Debug)]
pub(crate) enum Output {
    Out(Vec<u8>),
    Err(Vec<u8>),
    /// The exit code.
    End(i32),
}

/// What goes to a command.
#[derive(Debug)]
pub(crate) enum Input {
    Data(Vec<u8>),
    Size { columns: u16, rows: u16 },
}

/// A command that runs. It ends when this is dropped.
pub(crate) struct Running {
    input: Option<mpsc::Sender<Input>>,
    output: mpsc::Receiver<Output>,
    _tasks: JoinSet<()>,
}

// === impl Running ===

impl Running {
    pub(crate) fn new(
        input: mpsc::Sender<Input>,
        output: mpsc::Receiver<Output>,
        tasks: JoinSet<()>,
    ) -> Self {
        Self { input: Some(input), output, _tasks: tasks }
    }

    pub(crate) async fn next(&mut self) -> Option<Output> {
        self.output.recv().await
    }

    pub(crate) fn input(&self) -> Option<mpsc::Sender<Input>> {
        self.input.clone()
    }

    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }
}

/// Starts a command.
pub(crate) fn start(emulator: &Arc<Emulator>, command: &Command) -> io::Result<Running> {
    match &emulator.processes {
        Some(processes) => processes.exec(command),
        None => Ok(simulate(command, &environment(emulator, command))),
    }
}

/// The variables of a simulated container, one line for each.
fn environment(emulator: &Arc<Emulator>, command: &Command) -> String {
    emulator.with_cloud(|cloud| {
        let group = cloud.group(command.group);
        let container = group.and_then(|group| Some((group, group.containers.get(command.container)?)));
        let Some((group, container)) = container else { return String::new() };
        let ip = group.ip.as_deref().unwrap_or_default();
        let variables = process::variables(&container.spec, &group.spec, ip);
        variables
            .into_iter()
            .flat_map(|(name, value)| [name, "=".to_owned(), value, "\n".to_owned()])
            .collect()
    })
}

/// `cat` repeats its input and `env` shows the variables; everything else is what [`Script::of_command`] makes of it.
fn simulate(command: &Command, environment: &str) -> Running {
    let (input, mut receiver) = mpsc::channel(16);
    let (sender, output) = mpsc::channel(16);
    let mut tasks = JoinSet::new();
    let words = command.words.clone();
    let variables = environment.as_bytes().to_vec();
    let is_cat = words.last().is_some_and(|last| last == "cat");
    tasks.spawn(async move {
        if is_cat {
            while let Some(input) = receiver.recv().await {
                if let Input::Data(bytes) = input
                    && sender.send(Output::Out(bytes)).await.is_err()
                {
                    return;
                }
            }
            let _ = sender.send(Output::End(0)).await;
            return;
        }
        if words == ["env"] {
            let _ = sender.send(Output::Out(variables)).await;
            let _ = sender.send(Output::End(0)).await;
            return;
        }
        let script = Script::of_command(&json!({"Command": words}));
        let mut passed = Duration::ZERO;
        for (at, line) in script.output {
            tokio::time::sleep(at.saturating_sub(passed)).await;
            passed = at;
            if sender.send(Output::Out(format!("{line}\n").into_bytes())).await.is_err() {
                return;
            }
        }
        let Some((at, code)) = script.exit else { return std::future::pending().await };
        tokio::time::sleep(at.saturating_sub(passed)).await;
        let _ = sender.send(Output::End(code)).await;
    });
    Running::new(input, output, tasks)
}
