//! `create`: creates and starts the container of a directory. At level `process` this process becomes the program.
//!
//! A single-threaded, short-lived process: libcontainer changes the process that calls it.

use std::{
    env,
    fmt::Write as _,
    fs, io,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    process::{Command, ExitCode},
    sync::Arc,
};

use libcontainer::{
    container::builder::ContainerBuilder, oci_spec::runtime::Spec, syscall::syscall::SyscallType,
};
use rustix::{
    process::{Signal, set_parent_process_death_signal},
    thread::set_no_new_privs,
};
use tracing::{
    Event, Level as Severity, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use super::{
    ShimLaunch,
    console::{self, ProcessStdio},
    executor::{self, ContainerExecutor},
    print_error,
    protocol::{self, HelperReport, HelperRequest},
    state::{self, StateFile},
};
use crate::{files, isolation::Isolation, procfs, sys};
use vk_provider::go_text::io_error;

pub(super) const LAUNCH: &str = "launch.json";
pub(super) const BUNDLE: &str = "config.json";
/// Directory for the state of libcontainer.
pub(super) const RUNTIME: &str = "runtime";

/// Entry point of `create`.
pub(super) fn run() -> ExitCode {
    run_helper(|order, launch, report| match launch.isolation {
        Isolation::Process => process(order, launch, report),
        Isolation::Oci => oci(order, launch, report),
    })
}

/// Runs a helper: reads its request, and reports errors to the supervisor.
pub(super) fn run_helper(
    work: impl FnOnce(&HelperRequest, &ShimLaunch, &Arc<OwnedFd>) -> Result<(), String>,
) -> ExitCode {
    // The supervisor blocks some signals, and the program must not inherit that.
    sys::process::reset_signals();
    // Without its supervisor nothing would look after the new container.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let prepared = || -> io::Result<(HelperRequest, ShimLaunch, Arc<OwnedFd>)> {
        let order: HelperRequest = protocol::from_input()?;
        let report = Arc::new(sys::fd::take_inherited(order.report)?);
        let launch =
            files::read_json(Path::new(LAUNCH))?.ok_or_else(|| io::Error::other("no launch.json"))?;
        Ok((order, launch, report))
    };
    let (order, launch, report) = match prepared() {
        Ok(prepared) => prepared,
        Err(error) => {
            print_error(format_args!("shim: read the request: {error}"));
            return ExitCode::FAILURE;
        }
    };
    match work(&order, &launch, &report) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let _ = protocol::report_to(&*report, &HelperReport::Error(message));
            ExitCode::FAILURE
        }
    }
}

/// Becomes the program.
pub(super) fn process(order: &HelperRequest, launch: &ShimLaunch, report: &OwnedFd) -> Result<(), String> {
    let cwd = launch.cwd.as_ref().ok_or("launch.json has no working directory")?;
    let console = ProcessStdio::take(order).map_err(|error| error.to_string())?;
    let dir = env::current_dir().map_err(|error| format!("find the container's directory: {error}"))?;
    let argv = order.command.as_ref().unwrap_or(&order.process.args);
    let path = order.process.variable("PATH");
    env::set_current_dir(cwd).map_err(|error| {
        format!("chdir to cwd (\"{}\") set in config.json failed: {}", cwd.display(), io_error(&error))
    })?;
    let program = executor::lookup(argv, path.unwrap_or(executor::PATH))?;
    adjust_oom(launch, report);
    console.enter(None).map_err(|error| format!("set up stdio: {error}"))?;
    if launch.no_new_privs {
        set_no_new_privs(true).map_err(|error| format!("set no_new_privs: {error}"))?;
    }
    let pid = std::process::id().cast_signed();
    if order.command.is_none() {
        let written = StateFile::Starting { pid: Some(pid), ticks: procfs::start_ticks(pid) };
        state::write(&dir, &written).map_err(|error| format!("write the state: {error}"))?;
    }
    send_report(report, &HelperReport::Pid(pid));
    // The program survives a killed supervisor: the provider finds it by the recorded state and kills it.
    let _ = set_parent_process_death_signal(None);
    let mut command = Command::new(&program);
    command.env_clear().envs(order.process.variables()).env(procfs::CONTAINER_VARIABLE, container_id(&dir));
    executor::run(command, &program, argv)
}

fn oci(order: &HelperRequest, launch: &ShimLaunch, report: &Arc<OwnedFd>) -> Result<(), String> {
    // Errors of libcontainer say what failed but not why; its log messages do.
    let _ = tracing::subscriber::set_global_default(ErrorReporter { report: report.clone() });
    let dir = env::current_dir().map_err(|error| format!("find the bundle: {error}"))?;
    let id = container_id(&dir);
    let spec = Spec::load(BUNDLE).map_err(|error| format!("read {BUNDLE}: {error}"))?;
    let uid = spec.process().as_ref().map_or(0, |process| process.user().uid());
    let console = ProcessStdio::take(order).map_err(|error| error.to_string())?;
    console.give_to(uid);
    adjust_oom(launch, report);

    let runtime = dir.join(RUNTIME);
    // Left over from a killed helper.
    let _ = fs::remove_dir_all(&runtime);
    fs::create_dir(&runtime).map_err(|error| format!("create {}: {error}", runtime.display()))?;
    let init = |error: libcontainer::error::LibcontainerError| {
        format!("error during container init: {}", error_chain(&error))
    };
    let builder = ContainerBuilder::new(id, SyscallType::Linux)
        .with_executor(ContainerExecutor { report: report.clone(), process: order.process.clone().into() })
        .with_root_path(&runtime)
        .map_err(init)?;
    let (builder, terminal) = match console {
        ProcessStdio::Pipes([stdin, stdout, stderr]) => {
            (builder.with_stdin(stdin).with_stdout(stdout).with_stderr(stderr), None)
        }
        ProcessStdio::Terminal(socket) => {
            // libcontainer connects to this path. It is bound by a relative name, because the full path may be too
            // long.
            let listener = UnixListener::bind("runtime/console.sock")
                .map_err(|error| format!("listen for the terminal: {error}"))?;
            let path = runtime.join("console.sock");
            (builder.with_console_socket(Some(path)), Some((listener, socket)))
        }
    };
    let mut container = builder.as_init(&dir).with_systemd(false).as_sibling(true).build().map_err(init)?;
    if let Some((listener, socket)) = terminal {
        forward_terminal(&listener, &socket).map_err(|error| format!("receive the terminal: {error}"))?;
    }
    let pid = container.pid().ok_or("the container has no process")?;
    send_report(report, &HelperReport::Pid(pid.as_raw()));
    container.start().map_err(init)
}

/// Passes the terminal that libcontainer created to the supervisor.
fn forward_terminal(listener: &UnixListener, socket: &UnixStream) -> io::Result<()> {
    use std::os::fd::AsFd as _;
    let (from, _) = listener.accept()?;
    let terminal = console::receive_terminal(&from)?;
    protocol::send(socket, b"t", &[terminal.as_fd()])
}

/// Sets the OOM score adjustment of what is started from here on. A failure is only reported: the container runs
/// anyway.
pub(super) fn adjust_oom(launch: &ShimLaunch, report: &OwnedFd) {
    let Some(score) = launch.oom_score_adj else { return };
    if let Err(error) = fs::write("/proc/self/oom_score_adj", score.to_string()) {
        send_report(report, &HelperReport::Detail(format!("set oom_score_adj to {score}: {error}")));
    }
}

pub(super) fn send_report(report: &OwnedFd, message: &HelperReport) {
    // If the supervisor is gone, this process is killed in a moment.
    let _ = protocol::report_to(report, message);
}

/// The text of an error with its causes.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let lower_case_error = error.to_string();
        if !text.contains(&lower_case_error) {
            text.push_str(": ");
            text.push_str(&lower_case_error);
        }
        cause = error.source();
    }
    text
}

/// Reports errors that libcontainer logs, from any of its processes.
struct ErrorReporter {
    report: Arc<OwnedFd>,
}

impl Subscriber for ErrorReporter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Severity::ERROR
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        send_report(&self.report, &HelperReport::Detail(text.0));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The fields of a log event, the message first.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}{}{}", if self.0.is_empty() { "" } else { ", " }, self.0);
        } else {
            let separator = if self.0.is_empty() { "" } else { ", " };
            let _ = write!(self.0, "{separator}{} {value:?}", field.name());
        }
    }
}

/// The id of a container, which is the name of its directory.
fn container_id(dir: &Path) -> String {
    dir.file_name().map_or_else(|| "container".to_owned(), |name| name.to_string_lossy().into_owned())
}
