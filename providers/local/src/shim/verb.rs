//! Subcommands of the shim.

use std::{
    env, fmt,
    io::{self, Write as _},
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    process::ExitCode,
};

use super::{Program, create, exec, pause, supervise};
use crate::sys;

/// The main function of a shim process. The first argument that is a subcommand is the one to run; the arguments before
/// it are needed to start further processes.
pub fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let verbs = ["supervise", "create", "exec", "pause", "paused"];
    let Some(place) = args.iter().position(|arg| verbs.contains(&arg.as_str())) else {
        complain(format_args!("shim: expected one of {} and a directory, got {args:?}", verbs.join(", ")));
        return ExitCode::from(2);
    };
    let [verb, dir, rest @ ..] = &args[place..] else {
        complain(format_args!("shim: {} needs a directory", args[place]));
        return ExitCode::from(2);
    };
    let program = Program { path: "/proc/self/exe".into(), args: args[..place].to_vec() };
    let dir = Path::new(dir);
    match verb.as_str() {
        "supervise" => supervise::run(dir, program),
        "create" => create::run(),
        "exec" => exec::run(),
        "pause" => pause::run(dir, &program, rest),
        _ => pause::rest(dir),
    }
}

/// The program on a read-only mount, for processes that enter a container: it cannot be overwritten from there. The
/// descriptor must be kept until the program is started. If that is not possible, the kernel still protects a running
/// binary from writes.
pub(super) fn protected(program: Program) -> (Program, Option<OwnedFd>) {
    match sys::mount::read_only(&program.path) {
        Ok(binary) => {
            let path = format!("/proc/self/fd/{}", binary.as_raw_fd()).into();
            (Program { path, args: program.args }, Some(binary))
        }
        Err(_) => (program, None),
    }
}

/// Prints an error to stderr: a supervisor's goes to a file beside its container, a command's to the container's
/// output.
pub(super) fn complain(words: fmt::Arguments<'_>) {
    // Nothing may be listening.
    let _ = writeln!(io::stderr(), "{words}");
}
