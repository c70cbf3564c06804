//! Which of the shim's processes this one is.

use std::{
    env, fmt,
    io::{self, Write as _},
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    process::ExitCode,
};

use super::{Program, create, exec, pause, supervise};
use crate::sys;

/// What a process of our binary does that was started as a shim: the verb is the first argument that is one, and what is before it is
/// how the next process is started.
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

/// The program from a binary that a container cannot write to, however it comes by it: for processes that enter one. Must be kept while
/// it is started. Where that cannot be had it is protected by being in use.
pub(super) fn protected(program: Program) -> (Program, Option<OwnedFd>) {
    match sys::mount::read_only(&program.path) {
        Ok(binary) => {
            let path = format!("/proc/self/fd/{}", binary.as_raw_fd()).into();
            (Program { path, args: program.args }, Some(binary))
        }
        Err(_) => (program, None),
    }
}

/// Says on the error output what is wrong: of a supervisor it is kept beside its container, of a command it is the container's own.
pub(super) fn complain(words: fmt::Arguments<'_>) {
    // Nobody may listen.
    let _ = writeln!(io::stderr(), "{words}");
}
